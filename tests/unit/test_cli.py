"""The command line: help, pages, and how a command ends; commands/test_refusals.py has what is refused."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

import streamer
from streamer.cli import main
from streamer.commands.files import Format
from streamer.commands.parser import make_parser
from streamer.errors import InferenceError, ModelError, UsageError
from streamer.outputs.subtitles import FORMATS
from tests.daemon import REPOSITORY, Outcome, environment
from tests.waiting import WAIT_S

Run = Callable[..., Outcome]


def test_version(run_here: Run) -> None:
    assert run_here("--version").stdout == f"streamer {streamer.__version__}\n"


def test_help_needs_nothing_heavy() -> None:
    code = """import sys; from streamer.cli import main
for line in ('run', 'transcribe', 'listen', 'chat', 'devices'):
    try: main([line, '--help'])
    except SystemExit: pass
heavy = {'openvino', 'numpy', 'sounddevice', 'rich', 'httpx', 'websockets', 'asyncio', 'sqlite3', 'hashlib', 'psutil'}
print(heavy & set(sys.modules))"""
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
        assert "--token " not in command.format_help()  # every user of a machine sees arguments
        assert make_parser().parse_args(shlex.split(example)[2:]).command


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
    monkeypatch.setattr("streamer.commands.devices.make_console", show)
    done = run_here("devices")
    assert (done.exit_code, done.error().startswith(f"streamer: error: {says}")) == (1, True)
    assert "Traceback" in run_here("devices", "--debug").stderr


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError()])
def test_what_runs_until_it_is_stopped_has_done_its_work(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.commands.listen.daemon_address", failing(error))
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


LEFT_BEHIND = """
import threading, time
from streamer import __main__, cli

def main():
    print("done")
    threading.Thread(target=time.sleep, args=(600.0,), daemon=DAEMON).start()
    return 3

cli.main = main
raise SystemExit(__main__.main())
"""


@pytest.mark.parametrize("daemon", [False, True])
def test_the_program_ends_though_a_thread_is_left_in_a_compiler(daemon: bool) -> None:
    """As after Ctrl-C: graphs are compiled by the threads of a pool, which are no daemons."""
    program = [sys.executable, "-c", LEFT_BEHIND.replace("DAEMON", str(daemon))]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=False, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (3, b"done\n")


INTERRUPTED = """
import sys
from streamer import __main__

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "streamer.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder)
raise SystemExit(__main__.main())
"""


def test_an_interrupt_while_the_program_is_imported_is_one_line() -> None:
    line = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(line, capture_output=True, encoding="utf-8", timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "streamer: error: interrupted\n")


def test_pages_are_listed_and_printed(run_here: Run) -> None:
    pages, folder = run_here("docs").stdout.split(), REPOSITORY / "docs"
    assert "clients/openai" in pages
    assert {folder / f"{page}.md" for page in pages} == set(folder.rglob("*.md"))
    for page in pages:
        assert run_here("docs", page).stdout == (folder / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_shell_is_told_how_to_complete(run_here: Run, shell: str) -> None:
    assert "_ARGCOMPLETE" in run_here("completion", shell).stdout


def test_what_could_come_next_is_answered(tmp_path: Path) -> None:
    answer, line = tmp_path / "answer", "streamer transcribe --vad-f"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    subprocess.run([sys.executable, "-m", "streamer"], env={**os.environ, **asked}, check=False, timeout=WAIT_S)
    assert "--vad-filter" in answer.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("--output-dir=texts", "output", "texts/"),
        ("--output-dir=", "output", "./"),
        ("--output=-", "output", None),
        ("--track 2", "output", None),
        ("-o a.srt", "output", "a.srt"),
        ("--output_format=srt", "format", "srt"),
    ],
)
def test_what_is_given_to_transcribe(
    flags: str, name: str, value: object, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}

    def plan_texts(paths: list[Path], format: str | None, output: str | None, *, task: str) -> None:
        given.update(paths=paths, format=format, output=output)
        raise UsageError("no more is needed")

    monkeypatch.setattr("streamer.commands.transcribe.plan_texts", plan_texts)
    assert run_here("transcribe", "a.wav", *flags.split(" ")).exit_code == 2
    assert (given["paths"], given[name]) == ([Path("a.wav")], value)


def test_the_formats_are_the_writers() -> None:
    assert get_args(Format) == FORMATS
