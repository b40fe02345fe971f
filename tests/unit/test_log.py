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
        self.may_read = threading.Event()

    def __call__(self, line: str) -> None:
        assert self.may_read.wait(WAIT_S)
        self.lines.append(line)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger that nobody else listens to."""
    logger = logging.getLogger("tests.log")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    yield logger
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()


def handler_of(logger: logging.Logger, reader: Reader, formatter: logging.Formatter | None = None) -> QueuedHandler:
    handler = QueuedHandler(reader)
    handler.setFormatter(formatter or logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    return handler


def test_who_logs_does_not_wait_for_a_reader_and_what_was_dropped_is_told(logger: logging.Logger) -> None:
    reader = Reader()
    handler = handler_of(logger, reader)
    for n in range(3 * MAX_LINES):
        logger.info("%d", n)
    assert reader.lines == []
    reader.may_read.set()
    handler.flush()
    handler.flush()  # what was dropped is told when the queue is empty
    logger.info("later")
    handler.flush()
    kept = [int(line) for line in reader.lines if line[0].isdigit()]
    n_dropped = 3 * MAX_LINES - len(kept)
    assert kept == [*range(len(kept))]
    assert MAX_LINES <= len(kept) <= MAX_LINES + 1  # one may be in the writer's hands
    dropped, later = reader.lines[len(kept) :]
    assert (f" {n_dropped} lines " in dropped, later) == (True, "later\n")


def test_a_line_that_cannot_be_formatted_harms_nobody(logger: logging.Logger) -> None:
    reader = Reader()
    reader.may_read.set()
    handler = handler_of(logger, reader)
    handler.handle(logging.LogRecord("tests.log", logging.INFO, "", 7, "%d", ("no number",), None))
    handler.flush()
    assert reader.lines[0].endswith(": tests.log, line 7\n")


def test_an_end_waits_for_a_reader_but_not_for_ever(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FLUSH_S", 0.05)
    reader = Reader()
    handler = handler_of(logger, reader)
    logger.info("x")
    handler.flush()
    handler.close()
    assert reader.lines == []
    reader.may_read.set()


def test_a_line_is_cut_where_it_is_too_long(logger: logging.Logger) -> None:
    reader = Reader()
    reader.may_read.set()
    handler = handler_of(logger, reader)
    logger.info("%s", "x" * 2 * MAX_CHARS)
    handler.flush()
    assert reader.lines == ["x" * MAX_CHARS + "...\n"]


def record(message: str, *, error: Exception | None = None, **extra: object) -> logging.LogRecord:
    exc_info = (type(error), error, None) if error is not None else None
    made = logging.LogRecord("streamer.x", logging.WARNING, "", 0, "%s", (message,), exc_info)
    made.__dict__.update(extra)
    return made


EVIL = "a\x1b[2J\x9b1m\nstreamer: error: forged\u202e"
WRITTEN_OUT = r"a\x1b[2J\x9b1m"


def test_text_neither_steers_a_terminal_nor_forges_a_line() -> None:
    lines = TextFormatter().format(record(EVIL, error=ValueError(EVIL), session="k3v9")).split("\n")
    assert lines[0][8:] == " WARNING [k3v9] " + WRITTEN_OUT + r"\nstreamer: error: forged\u202e"
    assert lines[1:] == [f"  ValueError: {WRITTEN_OUT}", r"  streamer: error: forged\u202e"]


def test_json_is_an_object_a_line() -> None:
    text = JsonFormatter().format(
        record(EVIL, error=ValueError(EVIL), session="k3v9", fields={"client": "127.0.0.1", "bytes_in": 3})
    )
    assert text.isascii()
    assert text.isprintable()
    line = json.loads(text)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "streamer.x",
        "message": EVIL,
        "session": "k3v9",
        "exception": f"ValueError: {EVIL}",
        "client": "127.0.0.1",
        "bytes_in": 3,
    }
    assert "session" not in json.loads(JsonFormatter().format(record("x")))


def test_of_a_sessions_name_only_the_beginning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    name = "0123456789abcdef"
    logging.LoggerAdapter(logging.getLogger("tests.session"), {"session": name}).error("x")
    (line,) = [TextFormatter().format(record) for record in caplog.records]
    assert line.endswith("[01234567] x")
    assert json.loads(JsonFormatter().format(caplog.records[0]))["session"] == "01234567"


def test_lines_go_to_what_standard_error_is_then(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    # While captions are drawn, what draws them is there.
    handler = QueuedHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    monkeypatch.setattr("sys.stderr", before := io.StringIO())
    with log.standard_error(meanwhile := io.StringIO()):
        logger.info("first")
        handler.flush()
    logger.info("second")
    handler.flush()
    assert (meanwhile.getvalue(), before.getvalue()) == ("first\n", "second\n")


def run(code: str, **streams: int) -> "subprocess.Popen[bytes]":
    """Run code that may use `log`, `logging` and `LogSettings`."""
    head = "import logging\nfrom streamer import log\nfrom streamer.settings.table import LogSettings\n"
    return subprocess.Popen([sys.executable, "-c", head + code], **streams)  # type: ignore[call-overload,no-any-return]


def test_standard_error_that_nobody_reads_stops_nothing() -> None:
    code = (
        "log.configure(LogSettings())\n"
        "logger = logging.getLogger('streamer')\n"
        "log.FLUSH_S = 0.1\n"
        "for n in range(20_000): logger.info('%d %s', n, 100 * 'x')\n"
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
        assert process.stderr is not None
        lines = process.stderr.read().decode("utf-8").splitlines()
        assert process.wait(WAIT_S) == 0
    if format == "json":
        lines = [json.loads(line)["message"] for line in lines]
        assert lines[300] == "streamer: error: x"
    assert [line.split()[-1] for line in lines] == [*map(str, range(300)), "x", "last"]


def test_levels() -> None:
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in ("streamer", log.ACCESS_LOGGER)]
    try:
        log.set_levels(LogSettings(level="warning", access=True))
        assert not logging.getLogger("streamer.app").isEnabledFor(logging.INFO)
        assert logging.getLogger(log.ACCESS_LOGGER).isEnabledFor(logging.INFO)
        log.set_levels(LogSettings(level="debug", access=False))
        assert logging.getLogger("streamer.app").isEnabledFor(logging.DEBUG)
        assert not logging.getLogger(log.ACCESS_LOGGER).isEnabledFor(logging.INFO)
    finally:
        for logger, level in before:
            logger.setLevel(level)
