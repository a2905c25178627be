"""The option ``--outage``: every phase of a job outlasts an outage of the given length, its first calls included."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.cli import COMMANDS, session
from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError
from penstock.spark.store import outage_settings
from support.command_line import run_command

#: Arguments of each command with the option. A command that is missing here fails the first test.
JOBS: Mapping[str, list[str]] = {
    "export": ["s/x", "--to", "parquet", "--directory", "files", "--once"],
    "replay": ["s/x", "s/y"],
    "backfill": ["s/x", "rows.parquet"],
    "verify": ["s/x"],
}


def settings_of(command: str, *options: str) -> ClientSettings:
    """Return the settings of the client that a command makes for its first calls, and end the command there."""
    made: list[ClientSettings] = []

    def connect(uri: str, settings: ClientSettings | None = None) -> Client:
        made.append(settings or ClientSettings())
        raise PenstockError("no more of this command")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "connect", connect)
        ran = run_command(command, *JOBS[command], *options)
    assert "no more of this command" in ran.stderr, ran
    [only] = made
    return only


def test_these_are_all_commands_with_the_option() -> None:
    with_option = {
        name for name, command in COMMANDS.items()
        if not command.is_group and "outage" in getattr(command.load(), "__annotations__", {})
    }  # fmt: skip
    assert with_option == set(JOBS)


@pytest.mark.parametrize("command", sorted(JOBS))
def test_the_first_calls_of_a_job_outlast_the_outage(command: str) -> None:
    """As finding the end of the stream. With the option, also if the server is away at the start."""
    given = settings_of(command, "--outage", "15m")
    assert (given.retry_time_max_s, given.first_contact_timeout_s) == (900.0, 900.0)


@pytest.mark.parametrize("command", sorted(JOBS))
def test_without_the_option_a_wrong_address_is_reported_at_once(command: str) -> None:
    usual = settings_of(command)
    assert usual.retry_time_max_s == 120.0
    assert usual.first_contact_timeout_s == ClientSettings().first_contact_timeout_s


@pytest.mark.parametrize("outage_s", [0.1, 120.0, 86_400.0])
def test_the_number_of_attempts_never_ends_a_call_before_the_outage(outage_s: float) -> None:
    """Each pause after the first ones is at least half of the longest one."""
    settings = outage_settings(outage_s)
    assert settings.controller_attempt_count_max * settings.retry_delay_max_s / 2 >= outage_s
    assert settings.request_timeout_s <= outage_s or outage_s >= ClientSettings().request_timeout_s
