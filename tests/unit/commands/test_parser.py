"""Command lines of functions: what they parse, what the function gets, and what the help says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from streamer.commands.invocation import Invocation
from streamer.commands.parser import call, make_parser
from streamer.commands.signature import Arg, Flags, endless, is_endless, needs
from streamer.errors import MissingExtraError

GIVEN: dict[str, Any] = {}


@endless
def show(
    name: Annotated[str, Arg("whose", "NAME")],
    files: Annotated[Sequence[Path], Arg("where", "FILE")] = (),
    *,
    limit: Annotated[int, Arg("100 % of", "N", ("-n",), within=(1, 9))] = 5,
    days: Annotated[float | None, Arg("how long", within=(0.5, 2))] = None,
    kind: Annotated[Literal["a", "b"] | None, Arg("which", also=("--sort",))] = None,
    with_tag: Annotated[Sequence[str], Arg("what", "TAG")] = (),
    all: Annotated[bool, Arg("everything")] = False,
    colours: Annotated[bool, Arg("in black and white")] = True,
    settings: Annotated[Invocation, Flags(("server.port",))],
) -> int:
    """Show something.

    Or nothing,
    if there is none.

    Example: streamer show x
    """
    GIVEN.update(locals())
    return 3


@needs("no_such_module", extra="cluster")
def work() -> int:
    """Work."""
    return 0


@pytest.fixture(autouse=True)
def _commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.commands.parser.commands", lambda: {"show": show, "work": work})


def run(line: str) -> int:
    arguments = make_parser(line.split()).parse_args(line.split())
    return call(arguments.command, vars(arguments))


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("x", {"name": "x", "limit": 5, "days": None, "kind": None, "all": False, "colours": True}),
        ("x a b", {"files": [Path("a"), Path("b")]}),
        ("x -n 9 --days 0.5", {"limit": 9, "days": 0.5}),
        ("x --sort b --with-tag t --with-tag u", {"kind": "b", "with_tag": ["t", "u"]}),
        ("x --all --no-colours", {"all": True, "colours": False}),
    ],
)
def test_a_function_is_called_with_what_its_signature_parses(line: str, given: dict[str, object]) -> None:
    assert run(f"show {line}") == 3
    assert {name: GIVEN[name] for name in given} == given


@pytest.mark.parametrize("flag", ["-n 0", "-n 10", "-n 1.5", "-n x", "--days nan", "--days 3", "--kind c", "--colours"])
def test_what_its_types_do_not_allow_is_refused(flag: str) -> None:
    with pytest.raises(SystemExit):
        run(f"show x {flag}")


def test_flags_of_settings_go_to_the_settings() -> None:
    run("--debug --config f show x --port 1")
    assert GIVEN["settings"].config == Path("f")
    assert GIVEN["settings"].overrides == {"server.port": "1", "log.level": "debug"}


def help_of(line: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    with pytest.raises(SystemExit):
        run(line)
    return [shown.split() for shown in capsys.readouterr().out.splitlines()]


def test_the_help_is_made_of_docstring_and_signature(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = help_of("show --help", capsys)
    for shown in (
        "Show something. Or nothing, if there is none.",
        "FILE where",
        "-n N, --limit N 100 % of (default: 5)",
        "--no-colours in black and white",
        "--all everything",
        "example: streamer show x",
    ):
        assert shown.split() in lines
    assert ["show", "show", "something"] in help_of("--help", capsys)


def test_a_command_without_its_extra_is_refused_and_its_help_says_what_to_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (is_endless(show), is_endless(work)) == (True, False)
    assert ["work", "work", "(first:"] in [line[:3] for line in help_of("--help", capsys)]
    with pytest.raises(MissingExtraError):
        run("work")
