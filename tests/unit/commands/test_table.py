"""The table of commands: each entry fits the function that carries it out."""

import inspect
import shlex
from collections.abc import Callable

import pytest

from streamer.cli import make_parser
from streamer.commands.table import COMMANDS, LISTEN_FORMATS, TRANSCRIPT_FORMATS, Subcommand
from streamer.outputs.subtitles import FORMATS
from tests.daemon import Outcome

OURS = {"config", "debug", "run_command", "parser", *("url", "token_file", "fingerprint")}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_function_has_a_parameter_for_each_argument_and_an_argument_for_each_parameter(command: Subcommand) -> None:
    parameters = set(inspect.signature(command.load()).parameters)
    parsed = make_parser().parse_args(shlex.split(f"{command.name} {command.example}"))
    arguments = {name for name in vars(parsed) if "." not in name} - OURS
    offered = {"daemon", "invocation", "console", *(["settings"] if command.reads_settings else [])}
    assert arguments <= parameters <= arguments | offered
    assert "server.token" not in vars(parsed)  # every user of a machine sees arguments


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [
        ("--output-dir=texts", "output", "texts/"),
        ("--output-dir=", "output", "./"),
        ("--output=-", "output", None),
        ("--output=a.srt", "output", "a.srt"),
        ("--output_format=srt", "format", "srt"),
        ("--track=2", "track", 2),
    ],
)
def test_what_is_given_to_transcribe(
    flag: str, name: str, value: object, run_here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}

    def transcribe_files(files: list[str], *, format: str | None, output: str | None, track: int) -> int:
        given.update(files=files, format=format, output=output, track=track)
        return 0

    monkeypatch.setattr("streamer.commands.transcribe.transcribe_files", transcribe_files)
    assert run_here("transcribe", "a.wav", flag) == Outcome(0, "", "")
    assert (given["files"], given[name]) == (["a.wav"], value)


def test_the_formats_are_the_writers() -> None:
    assert TRANSCRIPT_FORMATS == FORMATS
    assert set(LISTEN_FORMATS) - set(FORMATS) == {"captions"}
