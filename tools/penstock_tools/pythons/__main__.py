"""``./run pythons``: run the tests that need no server, and one real server, on every supported Python of this machine.

A version that this machine does not have is reported. The exit code is 1 if tests fail, if a package has no wheel, or
if a version is missing that ``--require`` names.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from penstock_tools.pythons.checks import QUICK, REPOSITORY, Result, State, check
from penstock_tools.pythons.interpreters import find_interpreter, supported_versions
from penstock_tools.pythons.wheels import without_wheels


def parsed(arguments: list[str] | None, supported: list[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(prog="./run pythons", description=__doc__)
    parser.add_argument("--require", default="", help="versions that must be there, e.g. 3.11,3.13")
    parser.add_argument("--only", default=",".join(supported), help="versions to check; default: all supported ones")
    parser.add_argument("--quick", action="store_true", help=f"of the tests only {', '.join(QUICK)}, and the server")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="of the tests only these files and folders")
    parser.add_argument("--jobs", type=int, default=0, help="processes of pytest for each version (default 0: none)")
    parser.add_argument(
        "--wheels", action="store_true", help="also ask the package index for wheels of all extras, for each version"
    )
    options = parser.parse_args(arguments)
    if options.quick and options.tests:
        parser.error("--quick and --tests exclude each other")
    for name in ("require", "only"):
        versions = [version for version in getattr(options, name).split(",") if version]
        if unknown := sorted(set(versions) - set(supported)):
            parser.error(f"--{name}: {', '.join(unknown)} is not supported; there are {', '.join(supported)}")
        setattr(options, name, versions)
    return options


def exit_code(results: list[Result], required: list[str]) -> int:
    """Return 1 if a version failed, or a required one did not pass; else 0."""
    passed = {result.version for result in results if result.state is State.PASSED}
    return int(any(result.state is State.FAILED for result in results) or not passed.issuperset(required))


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # The report of the command.


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    project_file = REPOSITORY / "pyproject.toml"
    supported = supported_versions(project_file)
    options = parsed(arguments, supported)
    results = []
    # A required version is checked also if `--only` leaves it out.
    for version in [version for version in supported if version in {*options.only, *options.require}]:
        interpreter = find_interpreter(version, os.environ)
        if interpreter is None:
            result = Result(version, State.MISSING, "not in PATH, not in pyenv's versions, not found by uv")
        else:
            extra, paths = ("parts", QUICK) if options.quick else ("test", options.tests or ["tests"])
            result = check(interpreter, extra, paths, options.jobs)
        results.append(result)
        required = " (required)" if version in options.require else ""
        _say(f"Python {version}{required}: {result.state}, {result.duration_s:.0f} s: {result.detail}")
        if options.wheels:
            missing = without_wheels(version, project_file, Path(sys.executable))
            _say(f"Python {version}: " + (f"no wheels for {missing}" if missing else "wheels of all extras exist"))
            if missing:
                results.append(Result(version, State.FAILED, f"no wheels for {missing}"))
    return exit_code(results, options.require)


if __name__ == "__main__":
    sys.exit(main())
