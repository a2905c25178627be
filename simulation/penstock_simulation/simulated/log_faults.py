"""`WrongLogs`: an operator's mistake. For a while, tier 1 of a host holds files that the host did not write there.

The mistake is corrected: the right files are restored unchanged, and the host starts again. Everything acknowledged
before must then be there, so nothing may have been deleted from long-term storage meanwhile; and nothing may be
acknowledged meanwhile, since it would be lost.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.segmentstore.container.log.image import ImageName
from penstock.segmentstore.tier1.log_records import EPOCH_FILE, EpochRecord, read_epoch, write_epoch
from penstock.segmentstore.tier2.chunk_name import chunk_origin
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import NO_FAULTS
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.later_version import written_by_later_version
from penstock_simulation.simulated.simulation import Simulation

_DATA = "/data"
_TIER1 = f"{_DATA}/tier1"
_TIER2 = f"{_DATA}/tier2"
_MADE_LOGS = f"{_DATA}/logs"

#: Mistakes: nothing is mounted; a container's log is missing; the logs belong to another cluster; the logs of two
#: containers are exchanged; the logs are an old copy; the records of the epochs are old copies; a later version has
#: claimed the logs, or written frames to them, and the host goes back to this version.
WRONG_LOG_KINDS = ("missing", "partly-missing", "foreign", "exchanged", "rolled-back", "old-records", "later-version")
_OLD_KINDS = ("rolled-back", "old-records")


@dataclass(frozen=True, slots=True)
class WrongLogs:
    """See the module. Old copies are taken when the fault strikes; `age_s` later the host loses power.

    For old copies the host is also killed when the fault strikes, so that another epoch follows. It starts with the
    wrong files after `down_s`, and with the right ones `held_s` after that. `kind`: one of `WRONG_LOG_KINDS`. An old
    copy that cannot be detected is not used, and the host only loses power.
    """

    host: str
    kind: str
    age_s: float
    down_s: float
    held_s: float

    def strike(self, simulation: Simulation) -> None:
        """Copy the logs, and schedule the rest."""
        host, loop = simulation.hosts[self.host], simulation.loop
        copied = _files(host, _TIER1)
        if self.kind in _OLD_KINDS:
            host.crash(Death.KILL)
            loop.at(loop.now_s + self.down_s, host.restart)
        loop.at(loop.now_s + self.age_s, partial(self._begin, simulation, host, copied))

    def _begin(self, simulation: Simulation, host: Host, copied: Mapping[str, bytes]) -> None:
        loop = simulation.loop
        host.crash(Death.POWER)
        # One at a time: the ends of two overlapping faults would not restore the original files.
        is_wrong = any(path.startswith(_TIER1) for path in host.disk.unmounted)
        wrong = {} if is_wrong else _wrong_files(host, self.kind, copied)
        unmounted = [path for path, files in wrong.items() if host.disk.unmount(path, files)]
        loop.at(loop.now_s + self.down_s, host.restart)
        if unmounted:
            simulation.trace.add(loop.now_s, f"{host.name}: {', '.join(unmounted)}: {self.kind}")
            after = wrong if self.kind == "later-version" else {}
            loop.at(loop.now_s + self.down_s + self.held_s, partial(self._end, simulation, host, unmounted, after))

    def _end(
        self, simulation: Simulation, host: Host, unmounted: Sequence[str], after: Mapping[str, Mapping[str, bytes]]
    ) -> None:
        """Put the right files back. `after`: files that must be as they were, for the later version that has them."""
        host.crash(Death.KILL)
        for path, content in after.items():
            if path in unmounted and (changed := _changed_names(content, _files(host, path))):
                simulation.problem(f"{host.name} has changed {changed} of {path}, which a later version has written")
        for path in unmounted:
            host.disk.mount(path)
        simulation.trace.add(simulation.loop.now_s, f"{host.name}: {', '.join(unmounted)}: the right files again")
        host.restart()

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.age_s + self.down_s + self.held_s


def epochs_of(host: Host) -> dict[int, int]:
    """Return the epoch of the log of each container on a host's disk."""
    return _epochs(_files(host, _TIER1))


def _changed_names(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def _files(host: Host, directory: str) -> dict[str, bytes]:
    """Return the files under a directory of the host's disk, by relative path."""
    prefix = f"{directory}/"
    return {
        path.removeprefix(prefix): content for path, content in host.disk.files().items() if path.startswith(prefix)
    }


def _of_container(files: Mapping[str, bytes], container_id: int) -> dict[str, bytes]:
    prefix = f"{container_id}/"
    return {path.removeprefix(prefix): content for path, content in files.items() if path.startswith(prefix)}


def _wrong_files(host: Host, kind: str, copied: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """Return the directories to replace, with their new contents. Empty where the host could not detect the mistake.

    Correct logs are left alone, so that acknowledged operations in them are not undone later.
    """
    files = _files(host, _TIER1)
    epochs = _epochs(files)
    # A log that is not recorded as made is created again, which is correct.
    made = {int(name) for name in _files(host, _MADE_LOGS) if name.isdecimal()}
    if not epochs or made < epochs.keys():
        return {}
    match kind:
        case "missing":
            return {_TIER1: {}}
        case "partly-missing":
            wrong: dict[int, dict[str, bytes]] = {max(epochs): {}}
        case "foreign":
            scratch = _scratch_disk({})
            for number in epochs:
                scratch.make_directory(str(number))
                write_epoch(scratch, str(number), EpochRecord(number, 1, True, cluster_id="another")).close()
            foreign = {path.removeprefix("/"): content for path, content in scratch.files().items()}
            wrong = {number: _of_container(foreign, number) for number in epochs}
        case "exchanged":
            if len(epochs) < 2:
                return {}
            one, other = sorted(epochs)[:2]
            wrong = {one: _of_container(files, other), other: _of_container(files, one)}
        case "later-version":
            wrong = {number: written_by_later_version(_of_container(files, number), number) for number in epochs}
        case "rolled-back":
            wrong = _old_copies(host, epochs, files, copied)
        case _:
            wrong = _old_records(epochs, files, copied)
    return {f"{_TIER1}/{number}": content for number, content in wrong.items()}


def _old_records(
    epochs: Mapping[int, int], files: Mapping[str, bytes], copied: Mapping[str, bytes]
) -> dict[int, dict[str, bytes]]:
    """Return the logs with a file of a later epoch than the copied record, with that record."""
    old = _epochs(copied)
    found = {}
    for number in epochs:
        own = _of_container(files, number)
        newest = max((int(name[4:20], 16) for name in own if name.startswith("log-")), default=0)
        if newest > old.get(number, newest):
            found[number] = {**own, EPOCH_FILE: copied[f"{number}/{EPOCH_FILE}"]}
    return found


def _old_copies(
    host: Host, epochs: Mapping[int, int], files: Mapping[str, bytes], copied: Mapping[str, bytes]
) -> dict[int, dict[str, bytes]]:
    """Return the copies of logs that have changed since, where long-term storage shows a later epoch."""
    old = _epochs(copied)
    stored: dict[int, int] = {}
    for name in _files(host, _TIER2):
        image, origin = ImageName.parse(name), chunk_origin(name)
        if image is not None:
            stored[image.container_id] = max(image.epoch, stored.get(image.container_id, 0))
        elif origin is not None and (number := _table_of(origin.segment)) is not None:
            stored[number] = max(origin.epoch, stored.get(number, 0))
    return {
        number: _of_container(copied, number)
        for number in epochs
        if number in old
        and stored.get(number, 0) > old[number]
        and _of_container(copied, number) != _of_container(files, number)
    }


def _epochs(files: Mapping[str, bytes]) -> dict[int, int]:
    """Return the epoch of each container's log."""
    scratch = _scratch_disk(files)
    epochs = {}
    for path in files:
        directory, _, name = path.rpartition("/")
        if name == EPOCH_FILE and (record := read_epoch(scratch, directory)) is not None:
            epochs[int(directory)] = record.epoch
    return epochs


def _scratch_disk(files: Mapping[str, bytes]) -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(0), NO_FAULTS)
    disk.become(files)
    return disk


def _table_of(segment: str) -> int | None:
    """Return the container whose table of storage records a segment is."""
    number = segment.rpartition("storage_metadata_")[2]
    return int(number) if segment.startswith("_system/") and number.isdecimal() else None
