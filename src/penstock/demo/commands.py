"""`parse`: the commands of the demonstration's prompt and of its scripts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from penstock.demo.errors import DemoCommandError


class Verb(StrEnum):
    """What a command does."""

    KILL = "kill"
    CRASH = "crash"
    STOP = "stop"
    CONT = "cont"
    TERM = "term"
    START = "start"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    WAIT = "wait"
    SERVED = "served"
    STATUS = "status"
    HELP = "help"
    QUIT = "quit"


#: Characters of a line with a command.
LINE_CHARACTERS_MAX = 256

#: What each does, for people.
HELP = {
    Verb.KILL: "kill 2: end machine 2 at once, as a power failure; kill c1: a controller; kill zk: ZooKeeper",
    Verb.CRASH: "crash 2: end the process of store 2 at once; its parent starts it again",
    Verb.STOP: "stop 2: suspend machine 2 (SIGSTOP)",
    Verb.CONT: "cont 2: let it run again",
    Verb.TERM: "term 2: stop it in order (SIGTERM): it hands its containers over",
    Verb.START: "start 2: start it again after kill or term",
    Verb.DRAIN: "drain 1: have store 1 emptied",
    Verb.UNDRAIN: "undrain 1: end that",
    Verb.WAIT: "wait 10: do nothing for 10 seconds",
    Verb.SERVED: "served: wait until all containers are served",
    Verb.STATUS: "status: print the state",
    Verb.HELP: "help",
    Verb.QUIT: "quit: check all events, and end everything",
}
_WITH_TARGET = frozenset((Verb.KILL, Verb.CRASH, Verb.STOP, Verb.CONT, Verb.TERM, Verb.START, Verb.DRAIN, Verb.UNDRAIN))
#: Of stores alone.
_OF_STORES = frozenset((Verb.CRASH, Verb.DRAIN, Verb.UNDRAIN))


@dataclass(frozen=True, slots=True)
class DemoCommand:
    """A command. `target`: name of a process, for those that have one. `wait_s`: of `Verb.WAIT`."""

    verb: Verb
    target: str = ""
    wait_s: float = 0.0

    def __str__(self) -> str:
        rest = f" {self.wait_s:g}" if self.verb is Verb.WAIT else f" {self.target}" if self.target else ""
        return f"{self.verb}{rest}"


def parse(line: str) -> DemoCommand:
    """Return the command of a line, such as ``kill 2``. Raises `DemoCommandError`."""
    if len(line) > LINE_CHARACTERS_MAX:
        raise DemoCommandError(f"a command has at most {LINE_CHARACTERS_MAX} characters")
    word, *rest = line.split()
    try:
        verb = Verb(word)
    except ValueError:
        raise DemoCommandError(f"{word!r} is no command: use {', '.join(Verb)}") from None
    if verb is Verb.WAIT:
        if len(rest) != 1 or not re.fullmatch(r"\d{1,4}(\.\d+)?", rest[0]):
            raise DemoCommandError("wait has a number of seconds: wait 10")
        return DemoCommand(verb, wait_s=float(rest[0]))
    if (len(rest) == 1) != (verb in _WITH_TARGET) or len(rest) > 1:
        raise DemoCommandError(f"write {HELP[verb].partition(':')[0]}")
    if not rest:
        return DemoCommand(verb)
    target = _target(rest[0])
    if verb in _OF_STORES and not target.startswith("store-"):
        raise DemoCommandError(f"{verb} has a store: {verb} 2")
    return DemoCommand(verb, target)


def parse_script(text: str) -> list[DemoCommand]:
    """Return the commands of a script: lines, or parts between semicolons. Raises `DemoCommandError`."""
    parts = [part.strip() for part in re.split(r"[;\n]", text)]
    return [parse(part) for part in parts if part and not part.startswith("#")]


def _target(word: str) -> str:
    if word in ("zk", "zookeeper"):
        return "zookeeper"
    found = re.fullmatch(r"(?:(store-|s)|(controller-|c))?(\d{1,3})", word)
    if found is None:
        raise DemoCommandError(f"{word!r} names nothing: write 2 or store-2, c1 or controller-1, zk or zookeeper")
    return f"controller-{found[3]}" if found[2] else f"store-{found[3]}"
