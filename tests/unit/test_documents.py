"""README, CONTRIBUTING and docs/: what they name exists, and generated parts are up to date."""

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamer
from streamer.commands.parser import make_parser
from streamer.commands.table import summaries
from streamer.settings.registry import SETTINGS
from tests.daemon import REPOSITORY
from tests.fences import FENCES, all_fences
from tools.documents import documents

DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NAMES = [page.relative_to(REPOSITORY).as_posix() for page in PAGES]

MAX_WORDS = {"docs": 20_000, "README.md": 980}
MAX_COLUMNS, MAX_CELL = 130, 115

# Flags of other programs that the documents show.
OTHERS_FLAGS = {
    *("--no-deps", "--extra", "--data-binary", "--signal", "--version", "--help", "--tmpfs", "--dist", "--check"),
    *("--udp-prefix", "--from", "--backend", "--add-host"),
}
# Environment variables that are no settings.
OTHERS_VARIABLES = {"STREAMER_TOKEN", "STREAMER_CONFIG", "STREAMER_SECTION_KEY"}
# What looks like a setting and is none.
OTHERS_NAMES = {"chat.completions", "model.safetensors", "model.bin", "output.srt", "speech.wav", "speech.raw"}
# Folders whose files the documents name by their paths; `models/mine` and the like are examples.
FOLDERS = (
    *("streamer/", "tools/", "tests/", "docs/", "contrib/", "clients/", "requirements/", "models/nano.en/"),
    "examples/",
)


def code(text: str) -> Iterator[str]:
    """Yield the code spans of a document, and the lines of its fenced blocks."""
    fences = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    for fence in fences:
        yield from fence.splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE))


def slug(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """Return the flags of a command and of all below it."""
    found: set[str] = set()
    for action in parser._actions:
        found |= {name for name in action.option_strings if name.startswith("--")}
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*(flags(below) for below in action.choices.values()))
    return found


@pytest.fixture(params=PAGES, ids=NAMES)
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_all_are_short() -> None:
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert sum(n for page, n in words.items() if DOCS in page.parents) <= MAX_WORDS["docs"]
    assert words[REPOSITORY / "README.md"] <= MAX_WORDS["README.md"]


def test_lines_and_cells_are_short(text: str) -> None:
    for line in text.splitlines():
        assert len(line) <= MAX_COLUMNS, line
        if line.startswith("|"):
            assert all(len(cell) <= MAX_CELL for cell in re.split(r"(?<!\\)\|", line)), line


def test_links_lead_somewhere(page: Path, text: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), f"{target}#{anchor}"


def test_named_files_and_modules_exist(text: str) -> None:
    for span in code(text):
        for path in re.findall(r"(?<![\w/.])(?:\.\./)?((?:[\w.-]+/)+[\w.-]*)", span):
            if path.startswith(FOLDERS):
                assert (REPOSITORY / path).exists(), span
        for module in re.findall(r"python -m (tools[\w.]*)", span):
            assert list(REPOSITORY.glob(module.replace(".", "/") + "*")), span


def test_named_settings_exist(text: str) -> None:
    sections = {name.partition(".")[0] for name in SETTINGS}
    for span in code(text):
        for section, key in re.findall(r"(?<![\w/.])(\w+)\.(\w+)(?=$|[\s:;,=.)])", span):
            if section in sections and key not in ("py", "md", "yaml") and f"{section}.{key}" not in OTHERS_NAMES:
                # `server.max_...` is the beginning of several.
                beginning = f"{section}.{key}" + ("" if f"{key}..." not in span else "*")
                assert any(Path(name).match(beginning) for name in SETTINGS), span
        for variable in re.findall(r"STREAMER_[A-Z_]+[A-Z]", span):
            assert variable in OTHERS_VARIABLES | {setting.variable for setting in SETTINGS.values()}, span


def test_named_commands_and_flags_exist(text: str) -> None:
    tools = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tools").rglob("*.py"))
    known = flags(make_parser()) | OTHERS_FLAGS
    groups = {name.partition(" ")[0] for name in summaries()}
    for span in code(text):
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span):
            assert flag in known or f'"{flag}"' in tools, span
        for command in re.findall(r"(?:^|[|;] |bin/)streamer ([a-z]+)", span):
            assert command in groups, span


def test_shown_command_lines_are_accepted(text: str) -> None:
    parser = make_parser()
    for fence in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in fence.splitlines():
            for arguments in re.findall(r"(?:^|\| )(?:STREAMER_\w+=\S+ )*(?:\S*bin/)?streamer (.*?)(?= \| |$)", line):
                parser.parse_args(shlex.split(arguments, comments=True))  # SystemExit if one is refused


def test_shown_python_compiles_and_imports_what_exists(text: str) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "streamer":
                assert all(hasattr(streamer, name.name) for name in node.names), block


def test_each_block_is_run_by_a_test_or_has_its_reason() -> None:
    used = set()
    for fence in all_fences():
        assert fence.entries, f"tests/fences.py does not know {fence}"
        used.add((fence.page, fence.entries[0]))
        if fence.run_by:
            test = (REPOSITORY / fence.run_by).read_text(encoding="utf-8")
            assert "fences_of(" in test or Path(fence.page).name in test, f"{fence.run_by} does not run {fence}"
    assert used == {(page, key) for page, entries in FENCES.items() for key in entries}
    for said in {said for entries in FENCES.values() for said in entries.values()}:
        assert all((REPOSITORY / path).exists() for path in re.findall(r"tests/[\w./]*\w", said)), said


def test_generated_parts_are_up_to_date() -> None:
    outdated = [path.name for path, text in documents().items() if path.read_text(encoding="utf-8") != text]
    assert not outdated, "run `make documents`"
