"""Check that conditional table updates are linearisable, key by key, by their versions.

Versions of a key grow with every put, so they name the order of its writes, and no search is needed. The states of a
key are, in order: absent, put with the lowest version, removed, put with the next version... A state's *place* is
(version, 0) while that put is there and (version, 1) after its removal; before everything it is (-1, 1). A put, a
conditional removal or a get of a value has its place by its version. The history is linearisable if

- every version was made by one put, and is consumed by at most one conditional update;
- no call that began after another had ended has an earlier place, and a write's place is later than all of those;
- a state was seen only after the call that made it began;
- refusals and absences are possible: the state they rest on could have been there at some moment of the call.

A put or removal without an answer has a place if its value was seen, or else may have happened or not.
Cost: the calls, and sorting the versions of each key. Source of the problem: Herlihy and Wing, 1990; that unique
versions make it easy: Gibbons and Korach, 1997.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.model.segments import VERSION_ABSENT, VERSION_ANY
from penstock_simulation.checks.history_events import Ended, GetKey, History, KeyValue, Outcome, PutKey, RemoveKey

Place = tuple[int, int]
_NEVER_PUT: Place = (-1, 1)


@dataclass(slots=True)
class _Key:
    """The calls on one key, sorted out.

    Attributes:
        makers: the put that made each version.
        removers: the earliest removal, by invocation, that may have consumed each version.
        loose_removals: invocations of removals without condition: they may have removed any version.
        unseen: versions without a known put, but on which a later condition held: a put without an answer made them.
        doubtful: invocations of writes that may have happened without leaving a trace.
    """

    name: str
    calls: list[Ended] = field(default_factory=list)
    makers: dict[int, Ended] = field(default_factory=dict)
    removers: dict[int, Ended] = field(default_factory=dict)
    loose_removals: list[int] = field(default_factory=list)
    unseen: set[int] = field(default_factory=set)
    doubtful: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


def check_table(history: History) -> list[str]:
    """Return what cannot be explained by doing the calls on each key one after another. All tables, all keys."""
    keys: dict[tuple[str, bytes], _Key] = {}
    for ended in history.calls():
        call = ended.invocation.call
        if isinstance(call, (PutKey, RemoveKey, GetKey)):
            slot = (call.table, call.key)
            if slot not in keys:
                keys[slot] = _Key(f"{call.table} key {call.key!r}")
            keys[slot].calls.append(ended)
    return [violation for key in keys.values() for violation in _check_key(key)]


def _check_key(key: _Key) -> Iterator[str]:
    yield from _place_puts(key)
    yield from _check_consumers(key)
    yield from _check_places(key)


def _place_puts(key: _Key) -> Iterator[str]:
    """Find the put of every version that was returned or seen."""
    unanswered: dict[bytes, Ended] = {}
    for ended in key.calls:
        call = ended.invocation.call
        if isinstance(call, PutKey):
            if ended.outcome is Outcome.OK:
                if not isinstance(ended.result, int) or ended.result < 0:
                    yield f"{key.name}: a put must return its version, not {ended.result!r}: {ended}"
                elif ended.result in key.makers:
                    yield f"{key.name}: version {ended.result} was made twice: {key.makers[ended.result]} and {ended}"
                else:
                    key.makers[ended.result] = ended
            elif ended.outcome is Outcome.UNKNOWN:
                unanswered[call.value] = ended
    for ended in key.calls:
        seen = ended.result
        if not isinstance(ended.invocation.call, GetKey) or not isinstance(seen, KeyValue):
            continue
        if seen.version not in key.makers:
            maker = unanswered.pop(seen.value, None)
            if maker is None:
                yield f"{key.name}: no client put {seen.value!r} as version {seen.version}: {ended}"
                continue
            key.makers[seen.version] = maker
        call = key.makers[seen.version].invocation.call
        if isinstance(call, PutKey) and call.value != seen.value:
            yield (
                f"{key.name}: version {seen.version} was read as {seen.value!r} but put as {call.value!r}: {ended}, "
                f"{key.makers[seen.version]}"
            )
    happened = [ended for ended in key.calls if ended.outcome is Outcome.OK]
    happened += [maker for maker in key.makers.values() if maker.outcome is Outcome.UNKNOWN]
    for ended in happened:
        call = ended.invocation.call
        if isinstance(call, (PutKey, RemoveKey)) and call.expected >= 0:
            suspects = [put for put in unanswered.values() if put.invocation.index < ended.end_index]
            if call.expected not in key.makers and suspects:
                # Which of them cannot be known: the first is the one that rules out least.
                key.makers[call.expected] = suspects[0]
                key.unseen.add(call.expected)
    key.versions = sorted(key.makers)
    key.doubtful = [ended.invocation.index for ended in unanswered.values()]


def _check_consumers(key: _Key) -> Iterator[str]:
    """Check conditions of the writes that happened, and find what removed each version."""
    consumers: dict[int, Ended] = {}
    possible: list[tuple[int, Ended]] = []
    for ended in key.calls:
        call = ended.invocation.call
        if not isinstance(call, RemoveKey) or ended.outcome in (Outcome.FAIL, Outcome.REFUSED):
            continue
        if call.expected == VERSION_ANY or (
            ended.outcome is Outcome.UNKNOWN and call.expected not in key.makers and key.doubtful
        ):
            key.loose_removals.append(ended.invocation.index)
        elif ended.outcome is Outcome.UNKNOWN:
            possible.append((call.expected, ended))
            key.doubtful.append(ended.invocation.index)
        elif call.expected not in key.makers:
            yield f"{key.name}: version {call.expected} was removed, no client made it: {ended}"
        elif call.expected in consumers:
            yield f"{key.name}: version {call.expected} was removed twice: {consumers[call.expected]} and {ended}"
        else:
            consumers[call.expected] = key.removers[call.expected] = ended
    before = VERSION_ABSENT
    for version in key.versions:
        maker = key.makers[version]
        call = maker.invocation.call
        assert isinstance(call, PutKey)
        if call.expected >= 0 and version not in key.unseen:
            if call.expected in consumers:
                yield (
                    f"{key.name}: version {call.expected} was consumed twice, an update is lost: "
                    f"{consumers[call.expected]} and {maker}"
                )
            elif call.expected != before:
                yield (
                    f"{key.name}: version {version} was put on condition of {call.expected}, "
                    f"but {before} came right before: {maker}"
                )
            consumers.setdefault(call.expected, maker)
        before = version
    for expected, ended in possible:
        # One without an answer may have done it, unless something else certainly did.
        if expected not in consumers and expected in key.makers:
            known = key.removers.get(expected)
            if known is None or ended.invocation.index < known.invocation.index:
                key.removers[expected] = ended
    before = VERSION_ABSENT
    for version in key.versions:
        maker = key.makers[version]
        call = maker.invocation.call
        assert isinstance(call, PutKey)
        is_creation = call.expected == VERSION_ABSENT and version not in key.unseen
        if is_creation and before >= 0 and not _may_be_removed(key, before, _last_index(maker)):
            yield f"{key.name}: version {version} was put on condition of absence, but {before} was there: {maker}"
        before = version


def _last_index(ended: Ended) -> int:
    """Return before which record a call has had its effect; one that was given up may have it at any later time."""
    return sys.maxsize if ended.outcome is Outcome.UNKNOWN else ended.end_index


def _may_be_removed(key: _Key, version: int, before_index: int) -> bool:
    remover = key.removers.get(version)
    if remover is not None and remover.invocation.index < before_index:
        return True
    return any(index < before_index for index in key.loose_removals)


def _check_places(key: _Key) -> Iterator[str]:
    """Go through the calls as they end; keep the latest place that any ended call had, as of each invocation."""
    begun = _made_by(key)
    # Moments, in order: a call begins (its floor is what had ended by then) or ends (its place counts from then on).
    moments: list[tuple[int, bool, Ended]] = []
    for ended in key.calls:
        moments.append((ended.invocation.index, False, ended))
        if ended.outcome is not Outcome.UNKNOWN:
            moments.append((ended.end_index, True, ended))
    moments.sort(key=lambda moment: moment[0])
    latest, latest_of = _NEVER_PUT, None
    floors: dict[int, tuple[Place, Ended | None]] = {}
    for _, is_end, ended in moments:
        if not is_end:
            floors[ended.invocation.index] = (latest, latest_of)
            continue
        floor, floor_of = floors[ended.invocation.index]
        place, problem = _place_of(key, ended, floor, begun)
        if problem:
            yield f"{key.name}: {problem}: {ended}" + (f"; before it had ended: {floor_of}" if floor_of else "")
        elif place is not None and place > latest:
            latest, latest_of = place, ended
    for version in key.versions:
        # Puts without an answer whose value was seen: they have a place, but no end.
        maker = key.makers[version]
        floor, floor_of = floors[maker.invocation.index]
        if maker.outcome is Outcome.UNKNOWN and version not in key.unseen and (version, 0) <= floor:
            yield f"{key.name}: {maker} made version {version}, but {floor_of} had ended before and is later"


def _made_by(key: _Key) -> list[tuple[Place, int]]:
    """Return every place, ascending, with the earliest invocation of a call that made it or a later one."""
    made = [((version, 0), ended.invocation.index) for version, ended in key.makers.items()]
    made += [((version, 1), ended.invocation.index) for version, ended in key.removers.items()]
    made.sort()
    earliest = 1 << 62
    for at in range(len(made) - 1, -1, -1):
        earliest = min(earliest, made[at][1])
        made[at] = (made[at][0], earliest)
    return made


def _place_of(key: _Key, ended: Ended, floor: Place, begun: list[tuple[Place, int]]) -> tuple[Place | None, str]:
    """Return the place of a call that ended, or what is wrong with it."""
    call = ended.invocation.call
    if ended.outcome is Outcome.OK:
        match call:
            case PutKey():
                place = (ended.result if isinstance(ended.result, int) else -1, 0)
                if place <= floor:
                    return None, f"version {place[0]} is not above what had been reached, {floor[0]}"
                return place, ""
            case RemoveKey(expected=expected):
                if expected == VERSION_ANY:
                    return None, ""
                if (expected, 1) <= floor:
                    return None, f"version {expected} was removed although a later state had been reached, {floor[0]}"
                return (expected, 1), ""
            case GetKey():
                return _place_of_get(key, ended, floor)
    if ended.outcome is Outcome.REFUSED and isinstance(call, (PutKey, RemoveKey)):
        return None, _check_refusal(key, ended, call.expected, floor, begun)
    return None, ""


def _place_of_get(key: _Key, ended: Ended, floor: Place) -> tuple[Place | None, str]:
    if isinstance(ended.result, KeyValue):
        place = (ended.result.version, 0)
        if place < floor:
            return None, f"version {place[0]} was read although a later state had been reached, {floor[0]}"
        maker = key.makers.get(ended.result.version)
        if maker is not None and maker.invocation.index > ended.end_index:
            return None, f"it was read before its put was called ({maker})"
        return place, ""
    if floor[1] == 1:
        return floor, ""
    # Present when the call began: some removal must have come since, of that version or a later one.
    for version in key.versions[bisect_right(key.versions, floor[0]) - 1 :]:
        remover = key.removers.get(version)
        if remover is not None and remover.invocation.index < ended.end_index:
            return (version, 1), ""
    if any(index < ended.end_index for index in key.loose_removals):
        return None, ""
    return None, f"it was not there, but version {floor[0]} had been reached and no client removed it"


def _check_refusal(key: _Key, ended: Ended, expected: int, floor: Place, begun: list[tuple[Place, int]]) -> str:
    """Say what is wrong with a refused condition: wrong if the expected state certainly held all the while."""
    held = floor[1] == 1 if expected == VERSION_ABSENT else floor == (expected, 0)
    if not held:
        return ""
    if any(index < ended.end_index for index in (*key.doubtful, *key.loose_removals)):
        return ""
    at = bisect_right(begun, (floor, 1 << 62))
    if at < len(begun) and begun[at][1] < ended.end_index:
        return ""
    state = "the key was absent" if expected == VERSION_ABSENT else f"version {expected} was there"
    return f"it was refused although {state} all the while"
