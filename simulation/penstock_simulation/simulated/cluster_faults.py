"""`ClusterFaults`: what faults do to a cluster of several machines. The faults are in `member_faults`."""

from __future__ import annotations

from typing import Protocol


class ClusterFaults(Protocol):
    """Steers a cluster. Each call starts something, and returns at once."""

    def kill_store(self, store: str, down_s: float) -> None:
        """See `member_faults.StoreKilled`."""

    def pause_machine(self, store: str, duration_s: float) -> None:
        """See `member_faults.MachinePause`."""

    def lose_machine(self, store: str, down_s: float) -> None:
        """See `member_faults.MachineLost`."""

    def cut_coordination(self, host: str, duration_s: float, *, to_server: bool, from_server: bool) -> None:
        """See `member_faults.CoordinationCut`."""

    def stop_coordination(self, server: int, duration_s: float) -> None:
        """See `member_faults.CoordinationDown`."""

    def hold_coordination(self, server: int, duration_s: float) -> None:
        """See `member_faults.CoordinationLag`."""

    def expire(self, host: str) -> None:
        """See `member_faults.SessionsEnd`."""

    def expire_for_client(self, host: str) -> None:
        """See `member_faults.SessionsEndForClient`."""

    def lose_answers(self, host: str, count: int) -> None:
        """See `member_faults.AnswersLost`."""

    def drain(self, store: str, duration_s: float) -> None:
        """See `member_faults.Drain`."""

    def stop(self, host: str, down_s: float) -> None:
        """See `member_faults.OrderlyStop`."""

    def move(self, container: int, store: str) -> None:
        """See `member_faults.AdministratorMove`."""
