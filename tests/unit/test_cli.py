"""The command line: help, and how a command ends. What it refuses is in tests/unit/commands/test_refusals.py."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import streamer
from streamer.cli import main, make_parser
from streamer.errors import InferenceError, ModelError
from tests.daemon import Outcome, environment
from tests.waiting import WAIT_S

Run = Callable[..., Outcome]


def test_version(run_here: Run) -> None:
    assert run_here("--version").stdout == f"streamer {streamer.__version__}\n"


def test_help_needs_nothing_heavy() -> None:
    code = """import sys; from streamer.cli import main
for name in ('run', 'transcribe', 'listen', 'chat', 'devices'):
    try: main([name, '--help'])
    except SystemExit: pass
print({'openvino', 'numpy', 'sounddevice', 'rich', 'httpx', 'websockets'} & set(sys.modules))"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=WAIT_S, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"
    assert (done.stdout.count("--config FILE"), done.stdout.count("--debug ")) == (10, 5)


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands(command)


def test_each_help_ends_with_an_example_that_can_be_parsed() -> None:
    for command in commands(make_parser()):
        *_, before, example = command.format_help().splitlines()
        assert (before, example[:9]) == ("", "example: ")
        assert f"{example[9:]} ".startswith(f"{command.prog} ")
        assert len(example) < 80
        assert make_parser().parse_args(shlex.split(example)[2:]).run_command


@pytest.mark.parametrize("line", [["--debug", "chat"], ["chat", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(run_here: Run, line: list[str]) -> None:
    done = run_here(*line)
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("streamer: error: ")


def failing(error: BaseException, *, cause: BaseException | None = None) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise error from cause

    return fail


def failing_at_the_end(*_: object) -> int:
    try:
        raise KeyboardInterrupt
    finally:
        raise InferenceError("the device is gone")


@pytest.mark.parametrize(
    ("show", "says"),
    [
        (failing(LookupError("a\nbug")), "unexpected LookupError: a bug; "),
        (failing(InferenceError("the device is gone")), "the device is gone"),
        (failing(KeyboardInterrupt()), "interrupted"),
        # A library makes another error of Ctrl-C.
        (failing(SystemError("an exception set"), cause=KeyboardInterrupt()), "interrupted"),
        (failing(ModelError("broken"), cause=KeyboardInterrupt()), "interrupted"),
        # What fails after Ctrl-C is what counts.
        (failing_at_the_end, "the device is gone"),
    ],
)
def test_a_command_that_fails_is_one_line(
    show: Callable[..., int], says: str, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.commands.devices._show_microphones", show)
    done = run_here("devices")
    assert (done.exit_code, done.error().startswith(f"streamer: error: {says}")) == (1, True)
    assert "Traceback" in run_here("devices", "--debug").stderr


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError()])
def test_what_runs_until_it_is_stopped_has_done_its_work(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.commands.listen.listen", failing(error))
    with pytest.MonkeyPatch.context() as patch:  # pytest itself needs it afterwards
        patch.setattr("os.dup2", lambda *_: None)
        assert main(["listen", "127.0.0.1:1"]) == 0


def in_shell(line: str) -> Outcome:
    """Run a line of a POSIX shell, with Python as `$0`."""
    done = subprocess.run(
        ["sh", "-c", line, sys.executable],
        capture_output=True,
        encoding="utf-8",
        timeout=WAIT_S,
        env=environment(),
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(os.name == "nt", reason="the shell is POSIX's")
def test_closed_standard_streams_are_one_line_or_no_error() -> None:
    for command in ("run --port 0 --input -", "transcribe -"):
        done = in_shell(f'"$0" -m streamer {command} <&-')
        assert (done.exit_code, done.stdout, done.error()) == (2, "", done.stderr.strip())
    assert in_shell('"$0" -m streamer config show >&-') == Outcome(0, "", "")
