"""`penstock write`, `read` and `tail` against a server, in this process. Signals and pipes are in the e2e tests."""

from __future__ import annotations

import json

import pytest

from penstock.client.sync import Client
from support.command_line import Ran

from .conftest import Run

#: Brackets within each other that no version of Python decodes: 3.14 is limited by the stack in bytes only.
TOO_DEEP = 1_000_000


def created(penstock: Run, stream: str, *options: str) -> str:
    """Create a stream and return its name."""
    penstock("stream", "create", stream, *options).ok  # noqa: B018
    return stream


def test_lines_written_are_read(penstock: Run) -> None:
    """Byte by byte, empty lines and a last line without its line feed included."""
    stream = created(penstock, "events/lines")
    text = b"one\n\n  two \xff\nlast"
    assert penstock("write", stream, stdin=text).ok.stdout == f"4 lines are stored in {stream}\n"
    in_hex = penstock("read", stream, "--format", "hex").ok.lines
    assert [bytes.fromhex(line) for line in in_hex] == text.split(b"\n")
    assert penstock("write", stream, "--json", stdin=b"more\n").ok.json == {
        "type": "written", "stream": stream, "lines": 1, "bytes": 4,
    }  # fmt: skip


def test_no_input_is_no_event(penstock: Run) -> None:
    """And no error."""
    stream = created(penstock, "events/nothing")
    assert penstock("write", stream).ok.stdout == f"0 lines are stored in {stream}\n"
    assert penstock("read", stream).ok.stdout == ""


def test_one_key_goes_to_one_segment_in_order(penstock: Run) -> None:
    """And `--key` reads no other segment."""
    stream = created(penstock, "events/key", "--segments", "8")
    numbers = "".join(f"{number}\n" for number in range(500))
    penstock("write", stream, "--key", "customer-42", stdin=numbers.encode()).ok  # noqa: B018
    for other in range(20):
        penstock("write", stream, "--key", f"other-{other}", stdin=b"x\n").ok  # noqa: B018
    read = penstock("read", stream, "--key", "customer-42").ok.lines
    assert [line for line in read if line != "x"] == numbers.split()
    assert len(read) < 520


def test_the_key_is_taken_from_a_field(penstock: Run) -> None:
    """Lines with the same key are in one segment, in order; numbers are keys as their text is."""
    stream = created(penstock, "events/field", "--segments", "4")
    lines = [json.dumps({"n": number, "customer": number % 7}) for number in range(300)]
    penstock("write", stream, "--key-field", "customer", stdin="\n".join(lines).encode()).ok  # noqa: B018
    read = [json.loads(line) for line in penstock("read", stream, "--json").ok.lines]
    assert len({line["segment"] for line in read}) > 1
    for customer in range(7):
        own = [json.loads(line["event"]) for line in read if json.loads(line["event"])["customer"] == customer]
        assert [event["n"] for event in own] == list(range(customer, 300, 7))
        assert len({line["segment"] for line in read if json.loads(line["event"])["customer"] == customer}) == 1
    more = penstock("write", stream, "--key", "3", stdin=b'{"n": 0, "customer": 3}\n').ok
    assert more.code == 0
    with_key = [json.loads(line)["customer"] for line in penstock("read", stream, "--key", "3").ok.lines]
    assert with_key.count(3) == len(range(3, 300, 7)) + 1


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (b"not json", "line 3 of the input has no routing key in the field 'customer'"),
        (b"", "line 3 of the input has no routing key in the field 'customer': it is blank"),
        (b'\xef\xbb\xbf{"customer": "a"}', "it starts with a byte order mark (the bytes EF BB BF)"),
        (b'{"customer": "a", "x": ' + b"[" * TOO_DEEP + b"]" * TOO_DEEP + b"}", "its JSON is nested too deeply"),
        (b'{"other": 1}', "missing required field `customer`"),
        (b'{"customer": null}', "line 3"),
        (b'{"customer":"a"},{"customer":"b"}', "line 3"),
        (b"\xff", "line 3"),
    ],
)
def test_a_line_without_its_key_ends_it_and_those_before_are_stored(penstock: Run, bad: bytes, told: str) -> None:
    """It says which line, and how many are stored; it does not continue."""
    stream = created(penstock, f"events/bad-{bad.hex()[:100]}")
    text = b'{"customer": "a", "n": 1}\n{"customer": "b", "n": 2}\n' + bad + b'\n{"customer": "c"}\n'
    refused = penstock("write", stream, "--key-field", "customer", stdin=text)
    assert refused.code == 1
    assert told in refused.stderr
    assert f"2 lines are stored in {stream}" in refused.stderr
    assert penstock("read", stream).ok.lines == text.decode("utf-8", "replace").splitlines()[:2]
    as_json = penstock("write", stream, "--key-field", "customer", "--json", stdin=text)
    assert as_json.json["kind"] == "InvalidLineError"
    assert (as_json.json["lines_stored"], as_json.json["lines_unsure"]) == (2, 0)


def test_a_transaction_is_read_whole(penstock: Run, penstock_client: Client) -> None:
    """It ends committed; the command prints its id."""
    stream = created(penstock, "events/transaction", "--segments", "3")
    written = penstock("write", stream, "--transaction", "--json", stdin=b"a\nb\nc\n").ok.json
    assert (written["lines"], written["bytes"]) == (3, 3)
    transaction = written["transaction"]
    assert isinstance(transaction, str)
    state = penstock("transaction", "describe", stream, transaction, "--json").ok.json["state"]
    assert state in ("COMMITTING", "COMMITTED")
    assert sorted(penstock("tail", stream, "--from", "earliest", "--count", "3").ok.lines) == ["a", "b", "c"]


def test_a_transaction_with_invalid_input_is_aborted(penstock: Run) -> None:
    """None of its lines is ever read."""
    stream = created(penstock, "events/aborted")
    refused = penstock("write", stream, "--transaction", "--key-field", "k", "--json", stdin=b'{"k": 1}\nno\n')
    assert refused.code == 1
    assert "is aborted; none of its lines will be readable" in str(refused.json["message"])
    transaction = refused.json["transaction"]
    assert isinstance(transaction, str)
    state = penstock("transaction", "describe", stream, transaction, "--json").ok.json["state"]
    assert state in ("ABORTING", "ABORTED")
    assert penstock("read", stream).ok.stdout == ""


def test_a_rate_bounds_how_fast_lines_are_written(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the pauses asked for: 50 lines at 100 a second are half a second, the first step at once."""
    pauses: list[float] = []
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        pauses.append(seconds)
        now_s += seconds

    monkeypatch.setattr("penstock.cli.write.time.sleep", sleep)
    monkeypatch.setattr("penstock.cli.write.time.monotonic", lambda: now_s)
    stream = created(penstock, "events/rate")
    penstock("write", stream, "--rate", "100", stdin=b"line\n" * 50).ok  # noqa: B018
    assert sum(pauses) == pytest.approx(0.45)
    assert max(pauses) == pytest.approx(0.05)
    assert len(penstock("read", stream).ok.lines) == 50


def test_formats(penstock: Run) -> None:
    """JSON marks events that are not text; offsets are those of the events' headers."""
    stream = created(penstock, "events/formats")
    penstock("write", stream, stdin="é\n".encode() + b"\xff\x00\n").ok  # noqa: B018
    assert [json.loads(line) for line in penstock("read", stream, "--format", "json").ok.lines] == [
        {"type": "event", "segment": 0, "offset": 0, "event": "é"},
        {"type": "event", "segment": 0, "offset": 10, "event_base64": "/wA="},
    ]
    assert penstock("read", stream, "--format", "hex", "--offsets").ok.lines == ["0:0\tc3a9", "0:10\tff00"]
    assert penstock("read", stream, "--offsets", "--count", "1").ok.lines == ["0:0\té"]


def test_read_ends_at_its_set_end(penstock: Run, penstock_client: Client) -> None:
    """At cuts, given as text or in a file, and after a count."""
    stream = created(penstock, "events/range")
    penstock("write", stream, stdin=b"a\nb\n").ok  # noqa: B018
    cut = penstock_client.tail(stream).to_text()
    penstock("write", stream, stdin=b"c\nd\n").ok  # noqa: B018
    assert penstock("read", stream, "--until", cut).ok.lines == ["a", "b"]
    assert penstock("read", stream, "--from", cut).ok.lines == ["c", "d"]
    assert penstock("read", stream, "--from", cut, "--until", cut).ok.stdout == ""
    assert penstock("read", stream, "-n", "3").ok.lines == ["a", "b", "c"]
    assert penstock("read", stream, "--from", "latest").ok.stdout == ""
    backwards = penstock("read", stream, "--from", "latest", "--until", cut)
    assert backwards.code == 2
    assert "the end is before the start" in backwards.stderr


def test_read_begins_and_ends_at_a_time(penstock: Run) -> None:
    """Nothing of then or later is left out; a time to come is refused."""
    stream = created(penstock, "events/times")
    penstock("write", stream, stdin=b"a\n").ok  # noqa: B018
    assert penstock("read", stream, "--from", "2020-01-01T00:00Z").ok.lines == ["a"]
    assert penstock("read", stream, "--until", "2020-01-01T00:00Z").ok.lines in ([], ["a"])
    late = penstock("read", stream, "--from", "2200-01-01T00:00Z")
    assert late.code == 2
    assert "ahead of this machine's clock" in late.stderr


def test_tail_ends_with_a_sealed_stream(penstock: Run) -> None:
    """There is nothing more to come."""
    stream = created(penstock, "events/sealed", "--segments", "2")
    penstock("write", stream, stdin=b"a\n").ok  # noqa: B018
    penstock("stream", "seal", stream).ok  # noqa: B018
    assert penstock("tail", stream, "--from", "earliest").ok.lines == ["a"]
    refused = penstock("write", stream, stdin=b"b\n")
    assert refused.code == 1
    assert "sealed" in refused.stderr


def test_truncated_events_are_not_read(penstock: Run) -> None:
    """From the head on, and from a cut before it, where it is said that something is gone."""
    stream = created(penstock, "events/truncated")
    head = str(penstock("stream", "describe", stream, "--json").ok.json["head"])
    penstock("write", stream, stdin=b"a\nb\n").ok  # noqa: B018
    asked = penstock("stream", "truncate", stream, "--at", "latest", is_terminal=True, stdin=b"n\n")
    assert (asked.code, penstock("read", stream).ok.lines) == (1, ["a", "b"])
    penstock("stream", "truncate", stream, "--at", "latest", "--yes").ok  # noqa: B018
    penstock("write", stream, stdin=b"c\n").ok  # noqa: B018
    assert penstock("read", stream).ok.lines == ["c"]
    late: Ran = penstock("read", stream, "--from", head)
    assert (late.code, late.lines) == (0, ["c"])
    assert "18 bytes of events/truncated/0.#epoch.0 were truncated" in late.stderr


def test_control_characters_of_events_do_not_reach_a_terminal() -> None:
    """Neither the old ones nor those of Unicode; line ends and tabs do."""
    from penstock.cli.event_lines import lines_of
    from penstock.client.reading.event import EventBatch

    batch = EventBatch("s/t", 0, [b"\x1b[2Jred\x07", "\x9b31m\tx".encode(), b"\xff"], [0, 10, 20, 30])
    shown = lines_of("text", with_offsets=False, is_terminal=True)(batch).decode()
    assert shown == "\\x1b[2Jred\\x07\n\\x9b31m\tx\n\\xff\n"
    assert lines_of("text", with_offsets=False, is_terminal=False)(batch) == b"\n".join([*batch.events, b""])
    as_json = lines_of("json", with_offsets=False, is_terminal=True)(batch).decode()
    assert not {character for character in as_json if not character.isprintable()} - {"\n"}
    assert json.loads(as_json.splitlines()[1])["event"] == "\x9b31m\tx"


def test_progress_is_shown_on_a_terminal(penstock: Run) -> None:
    """Long work draws on standard error, where it is a terminal; what is printed stays the same."""
    stream = created(penstock, "events/progress")
    written = penstock("write", stream, stdin=b"a\x1b[2J\n", is_screen=True)
    assert (written.code, written.stdout) == (0, f"1 line is stored in {stream}\n")
    assert "events/progress" in written.stderr
    assert "\x1b[" in written.stderr
    shown = penstock("read", stream, is_screen=True)
    assert (shown.stdout, shown.stderr) == ("a\\x1b[2J\n", "")
    typed = penstock("write", stream, stdin=b"b\n", is_terminal=True)
    assert typed.stderr == "Each line that you type becomes an event. Ctrl-D ends.\n"
