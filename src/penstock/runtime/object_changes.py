"""`change_object`: creates a small object, or replaces it on condition, and resolves unknown outcomes by reading.

A request whose reply is lost may have been executed, may be executed later, or never. The library may have sent it
twice, so that its second copy was refused because of its first: a refusal does not say whose content is stored.

1. The change is sent. Its content has a part that no other caller uses (a nonce).
2. It is answered with a version: done.
3. Otherwise the object is read. It has this content: done; its version is the one just read.
4. It still has the version to replace, or is still missing: the request may arrive later. It is sent again
   with the same condition and content, so it does not matter which copy is applied: the second one is refused.
5. It has another content: `ObjectChangedError`. This content may have been stored in between, before the other caller
   replaced it. So the error does not mean that the change was never visible.
6. It cannot be read, or 4 has been repeated until the limits of `ObjectChangeSettings`: the outcome is unknown, and the
   error of the request is raised. A caller that must know repeats the call, with the same content.

A late copy does no harm after 2 or 3: its condition is false from then on, because no content occurs twice. This does
not hold for the creation of an object that is deleted later: a late copy creates it again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchObjectError,
    ObjectChangedError,
    ObjectExistsError,
    StorageError,
    StorageRefusedError,
    StorageThrottledError,
)
from penstock.runtime.objects import ObjectStore, ObjectVersion, VersionedObject
from penstock.runtime.pacing import GrowingDelay

_log = logging.getLogger(__name__)

#: Errors that say that the request had no effect, unless an earlier copy of it had.
_WITHOUT_EFFECT = (StorageRefusedError, StorageThrottledError, ObjectExistsError, ObjectChangedError)


@dataclass(frozen=True, slots=True)
class ObjectChangeSettings:
    """Limits of `change_object`.

    Attributes:
        attempts_max: how often a change whose outcome is unknown is sent.
        deadline_s: no further attempt is started this long after the first one.
        retry_delay_s: pause before the second attempt; it doubles ...
        retry_delay_s_max: ... up to this.
    """

    attempts_max: int = 10
    deadline_s: float = 90.0
    retry_delay_s: float = 0.1
    retry_delay_s_max: float = 5.0

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if self.attempts_max < 1:
            raise InvalidArgumentError("attempts_max of changes of objects is at least 1")


async def change_object(
    objects: ObjectStore,
    key: str,
    content: bytes,
    version: ObjectVersion | None,
    settings: ObjectChangeSettings | None = None,
    *,
    tag: str = "record",
) -> ObjectVersion:
    """Replace an object that is in `version`, or create it if that is None; return its new version.

    `content`: with a nonce, so that no other content is equal, of this caller or another. `tag`: of a new object.

    Raises:
        ObjectChangedError: it is in another version, exists, or was deleted. See the module.
        StorageRefusedError: the first attempt was refused: nothing was changed.
        StorageError: the outcome is unknown.
    """
    settings = settings or ObjectChangeSettings()
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + settings.deadline_s
    delay = GrowingDelay(settings.retry_delay_s, settings.retry_delay_s_max)
    unknown: StorageError | None = None
    for attempt in range(1, settings.attempts_max + 1):
        try:
            if version is not None:
                return await objects.put_if(key, content, version)
            await objects.put_new(key, content, tag)
            problem: StorageError | None = None
        except StorageRefusedError as error:
            if unknown is None:
                raise
            problem = error
        except StorageError as error:
            problem = error
        if problem is not None and not isinstance(problem, _WITHOUT_EFFECT):
            unknown = problem
        try:
            found = await _found(objects, key)
        except StorageError as error:
            # Even an attempt without effect may be a copy of one that had it: the library sends requests twice.
            unknown = unknown or problem or error
            unknown.add_note(f"the object cannot be read either: {error}")
        else:
            if found is not None and found.content == content:
                if problem is not None:
                    _log.info("%s was changed by a request whose answer failed: %s", key, problem)
                return found.version
            if found is None and version is not None:
                raise ObjectChangedError(key, "it was deleted")
            if found is not None and (version is None or not found.version.is_same(version)):
                raise ObjectChangedError(key, "it has another caller's content")
        if attempt == settings.attempts_max or loop.time() + delay.next_s >= deadline_s:
            break
        _log.info("%s is changed again: %s", key, problem)
        await delay.sleep()
    if unknown is None and problem is not None and not isinstance(problem, ObjectExistsError | ObjectChangedError):
        unknown = problem
    raise unknown or StorageError(
        f"{objects.place}: {key} was not changed: {attempt} attempts were refused because of concurrent changes, but "
        "none occurred"
    )


async def _found(objects: ObjectStore, key: str) -> VersionedObject | None:
    try:
        return await objects.get_versioned(key)
    except NoSuchObjectError:
        return None
