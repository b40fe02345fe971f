"""The table of commands: each entry fits the function that carries it out."""

import inspect
import shlex

import pytest

from streamer.cli import make_parser
from streamer.commands.table import COMMANDS, Subcommand

OURS = {"config", "debug", "run_command", "parser", *("url", "token_file", "fingerprint")}


@pytest.mark.parametrize(("folder", "output"), [("texts", "texts/"), ("texts/", "texts//"), ("", "./")])
def test_the_folder_of_texts_is_a_folder_and_never_the_root(folder: str, output: str) -> None:
    assert make_parser().parse_args(["transcribe", "a.wav", "--output-dir", folder]).output == output


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_function_has_a_parameter_for_each_argument_and_an_argument_for_each_parameter(command: Subcommand) -> None:
    parameters = set(inspect.signature(command.load()).parameters)
    parsed = make_parser().parse_args(shlex.split(f"{command.name} {command.example}"))
    arguments = {name for name in vars(parsed) if "." not in name} - OURS
    offered = {"daemon", "invocation", "console", *(["settings"] if command.reads_settings else [])}
    assert arguments <= parameters <= arguments | offered
