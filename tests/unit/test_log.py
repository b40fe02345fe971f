"""Log lines: who writes one never waits, none is lost in a short command, and none steers a terminal."""

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from streamer import log
from streamer.log import MAX_CHARS, MAX_LINES, JsonFormatter, QueuedHandler, TextFormatter
from streamer.settings.table import LogSettings
from tests.waiting import WAIT_S


class Reader:
    """Takes lines once it is let."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.has_a_line = threading.Event()
        self.may_read = threading.Event()

    def __call__(self, line: str) -> None:
        self.has_a_line.set()
        assert self.may_read.wait(WAIT_S)
        self.lines.append(line)


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def handler(reader: Reader, request: pytest.FixtureRequest) -> Iterator[QueuedHandler]:
    """A handler of which the reader takes the lines; without a reader they go to standard error."""
    handler = QueuedHandler(None if "monkeypatch" in request.fixturenames else reader)
    yield handler
    reader.may_read.set()
    handler.close()


def emit(handler: logging.Handler, message: str, *arguments: object) -> None:
    handler.handle(logging.LogRecord("tests.log", logging.INFO, "", 7, message, arguments, None))


def test_who_logs_does_not_wait_for_a_reader_and_what_was_dropped_is_logged(
    handler: QueuedHandler, reader: Reader
) -> None:
    emit(handler, "0")
    assert reader.has_a_line.wait(WAIT_S)
    for n in range(1, 3 * MAX_LINES):
        emit(handler, "%d", n)
    assert reader.lines == []
    reader.may_read.set()
    handler.flush()
    handler.flush()  # what was dropped is logged when the queue is empty
    emit(handler, "later")
    handler.flush()
    *kept, dropped, later = reader.lines
    assert [int(line) for line in kept] == [*range(len(kept))]
    assert len(kept) == MAX_LINES + 1  # the first was in the writer's hands
    assert (f" {3 * MAX_LINES - len(kept)} lines " in dropped, later) == (True, "later\n")


def test_a_line_that_cannot_be_formatted_or_is_too_long_harms_nobody(handler: QueuedHandler, reader: Reader) -> None:
    reader.may_read.set()
    emit(handler, "%d", "no number")
    emit(handler, "x" * (MAX_CHARS + 1))
    emit(handler, "x" * MAX_CHARS)
    handler.flush()
    wrong, *cut = reader.lines
    assert wrong.endswith(": tests.log, line 7\n")
    assert cut == ["x" * MAX_CHARS + "...\n", "x" * MAX_CHARS + "\n"]


def test_an_end_waits_for_a_reader_but_not_for_ever(reader: Reader) -> None:
    handler = QueuedHandler(reader)
    emit(handler, "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "FLUSH_S", 0.05)
        handler.flush()
        handler.close()
    assert reader.lines == []
    reader.may_read.set()


def test_lines_go_to_what_standard_error_is_then(handler: QueuedHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    # While captions are drawn, what draws them is there.
    monkeypatch.setattr("sys.stderr", before := io.StringIO())
    with log.standard_error(meanwhile := io.StringIO()):
        emit(handler, "first")
        handler.flush()
    emit(handler, "second")
    handler.flush()
    assert (meanwhile.getvalue(), before.getvalue()) == ("first\n", "second\n")


def record(message: str, *, error: Exception | None = None, **extra: object) -> logging.LogRecord:
    exc_info = (type(error), error, None) if error is not None else None
    made = logging.LogRecord("streamer.x", logging.WARNING, "", 0, "%s", (message,), exc_info)
    made.__dict__.update(extra)
    return made


EVIL = "a\x1b[2J\x9b1m\nstreamer: error: forged\u202e"
SESSION = {"session": "0123456789abcdef"}  # of which the beginning is logged, as the whole is a secret


def test_text_neither_steers_a_terminal_nor_forges_a_line() -> None:
    first, *others = TextFormatter().format(record(EVIL, error=ValueError(EVIL), **SESSION)).split("\n")
    written_out = r"a\x1b[2J\x9b1m"
    assert first[8:] == " WARNING [01234567] " + written_out + r"\nstreamer: error: forged\u202e"
    assert others == [f"  ValueError: {written_out}", r"  streamer: error: forged\u202e"]
    assert TextFormatter().format(record("x"))[8:] == " WARNING x"


def test_json_is_an_object_a_line() -> None:
    fields = {"client": "127.0.0.1", "bytes_in": 3}
    text = JsonFormatter().format(record(EVIL, error=ValueError(EVIL), fields=fields, **SESSION))
    line = json.loads(text)
    assert (text.isascii(), text.isprintable(), line.pop("time")[-1]) == (True, True, "Z")
    expected = {"level": "warning", "logger": "streamer.x", "message": EVIL, "session": "01234567"}
    assert line == {**expected, "exception": f"ValueError: {EVIL}", **fields}
    assert set(json.loads(JsonFormatter().format(record("x")))) == {"time", "level", "logger", "message"}


def run(code: str, **streams: int) -> "subprocess.Popen[bytes]":
    """Run code that may use `log`, `logging` and `LogSettings`."""
    head = "import logging\nfrom streamer import log\nfrom streamer.settings.table import LogSettings\n"
    return subprocess.Popen([sys.executable, "-c", head + code], **streams)  # type: ignore[call-overload,no-any-return]


def test_standard_error_that_nobody_reads_stops_nothing() -> None:
    code = (
        "log.configure(LogSettings())\n"
        "log.FLUSH_S = 0.1\n"
        "for n in range(20_000): logging.getLogger('streamer').info('%d %s', n, 100 * 'x')\n"
        "log.say('streamer: error: at the end')\n"
        "log.close()\n"
        "print('done')\n"
    )
    with run(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == [b"done"]
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_short_command_loses_no_line_and_keeps_their_order(format: str) -> None:
    code = (
        f"log.configure(LogSettings(format={format!r}))\n"
        "for n in range(300): logging.getLogger('streamer').info('%d', n)\n"
        "log.say('streamer: error: x')\n"
        "logging.getLogger('streamer').info('last')\n"
    )
    with run(code, stderr=subprocess.PIPE) as process:
        lines = process.communicate()[1].decode("utf-8").splitlines()
    if format == "json":
        lines = [json.loads(line)["message"] for line in lines]
    assert (process.returncode, lines[300]) == (0, "streamer: error: x")
    assert [line.split()[-1] for line in lines] == [*map(str, range(300)), "x", "last"]


def test_levels_are_those_of_the_settings_and_the_access_log_has_its_own() -> None:
    ours, access = logging.getLogger("streamer.app"), logging.getLogger(log.ACCESS_LOGGER)
    for level, has_access in (("warning", True), ("debug", False)):
        log.set_levels(LogSettings(level=level, access=has_access))  # type: ignore[arg-type]
        assert (ours.isEnabledFor(logging.DEBUG), access.isEnabledFor(logging.INFO)) == (level == "debug", has_access)
        assert ours.isEnabledFor(logging.WARNING)
