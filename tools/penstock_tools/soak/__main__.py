"""``python -m penstock_tools.soak``: the soak run, and its report. Needs the tests' directory on the path."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from penstock_tools.soak.report import write_report
from penstock_tools.soak.run import SoakRun, SoakSettings
from support.namespaces import NamespacesUnavailableError
from support.s3_server import S3UnavailableError
from support.zookeeper_server import ZooKeeperUnavailableError


def main() -> int:
    """Run; return 1 if a promise was broken or something grows, 2 if there is no cluster here."""
    parser = argparse.ArgumentParser(prog="./run soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    default = Path(tempfile.gettempdir()) / f"penstock-soak-{time.strftime('%Y%m%d-%H%M%S')}"
    parser.add_argument(
        "--directory", type=Path, default=default, help="for all data and results; it must not exist (%(default)s)"
    )
    parser.add_argument("--no-spark", action="store_true", help="without the query of Spark")
    parser.add_argument("--sample-seconds", type=float, default=60.0, help="interval of samples")
    arguments = parser.parse_args()
    settings = SoakSettings(
        arguments.hours * 3600, arguments.seed, arguments.directory.resolve(), not arguments.no_spark,
        arguments.sample_seconds,
    )  # fmt: skip
    sys.stderr.write(f"{arguments.hours:g} hours, seed {arguments.seed}, in {settings.directory}\n")
    run = SoakRun(settings)
    try:
        run.run()
    except (NamespacesUnavailableError, S3UnavailableError, ZooKeeperUnavailableError) as error:
        sys.stderr.write(f"there can be no cluster here: {error}\n")
        return 2
    finally:
        is_well = (settings.directory / "run.jsonl").exists() and write_report(settings.directory)
    sys.stdout.write(f"{settings.directory / 'report.md'}\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
