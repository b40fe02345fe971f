"""Writes what is made of the table of settings, and of the commands: config.yaml, its JSON Schema, the options of
docs/decoding.md, the types of a session's options in the clients, and the manual page.

`make documents` runs it after a change in streamer/settings/table.py, or of a command.
"""

import re
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from streamer.cli import make_parser
from streamer.commands.table import summaries
from streamer.protocols.native import OPTIONS
from streamer.settings.documents import SCHEMA_PATH, config_yaml, json_schema
from streamer.settings.flags import option_groups

REPOSITORY = Path(__file__).parent.parent


def documents() -> dict[Path, str]:
    """Return each file that is made of the table, as it should be."""
    decoding = REPOSITORY / "docs" / "decoding.md"
    client = REPOSITORY / "streamer" / "client" / "options.py"
    javascript = REPOSITORY / "clients" / "js" / "index.d.ts"
    return {
        REPOSITORY / "config.yaml": config_yaml(SCHEMA_PATH.relative_to(REPOSITORY).as_posix()),
        SCHEMA_PATH: json_schema(),
        decoding: with_options(decoding.read_text(encoding="utf-8")),
        client: PYTHON_OPTIONS + "".join(f"    {name}: {python_type(type)} | None\n" for name, type in OPTIONS.items()),
        javascript: with_typescript(javascript.read_text(encoding="utf-8")),
        REPOSITORY / "contrib" / "streamer.1": manual_page(),
    }


def manual_page() -> str:
    """Return streamer(1), in the macros of man(7)."""
    parser = make_parser()
    commands = "".join(
        f".TP\n.B streamer {name}\n{summary[:1].upper()}{summary[1:]}.\n" for name, summary in summaries().items()
    )
    return MANUAL_PAGE.format(description=parser.description, settings=parser.epilog, commands=commands).replace(
        "-", "\\-"
    )


MANUAL_PAGE = """.TH STREAMER 1
.SH NAME
streamer - live speech to text on this machine
.SH SYNOPSIS
.B streamer
.I COMMAND
[\\fIFLAG\\fR ...]
.SH DESCRIPTION
{description}
.PP
.B streamer
.I COMMAND
.B --help
lists the flags of a command, and
.B streamer docs
the pages of the documentation.
.SH COMMANDS
{commands}.SH SETTINGS
{settings}
.SH FILES
.TP
.I ~/.config/streamer/config.yaml
Settings, where no other file is named with
.BR --config .
.SH EXIT STATUS
0 done, 1 failed, 2 wrong usage.
"""


PYTHON_OPTIONS = '''"""What a session may choose, as `stream` takes it. Written by `make documents`."""

from collections.abc import Sequence
from typing import Literal, TypedDict


class Options(TypedDict, total=False):
    """Options of a session, described in docs/protocol.md. None: the daemon's setting."""

'''


def python_type(type: Any) -> str:  # noqa: ANN401 - a type
    """Return the type of an option in Python."""
    if typing.get_origin(type) is Annotated:
        return python_type(typing.get_args(type)[0])
    if typing.get_origin(type) is Literal:
        return "Literal[" + ", ".join(f'"{choice}"' for choice in typing.get_args(type)) + "]"
    return str(type.__name__) if type in (bool, int, float, str) else "Sequence[str]"


def with_typescript(document: str) -> str:
    """Return a TypeScript document with the types of its `Options` made anew."""
    of_python = {"bool": "boolean", "int": "number", "float": "number", "str": "string", "Sequence[str]": "string[]"}
    lines = []
    for name, type in OPTIONS.items():
        python = python_type(type)
        choices = python.removeprefix("Literal[").removesuffix("]").replace(", ", " | ")
        lines.append(f"  {name}?: {of_python.get(python, choices)} | null;\n")
    pattern = re.compile(r"(?<=export interface Options {\n).*?(?=}\n)", re.DOTALL)
    return pattern.sub("".join(lines), document)


def options_markdown() -> str:
    """Return the tables of the options of decoding and output."""
    parts = []
    for title, settings in option_groups().items():
        rows = [["Option", "Default", "Range", "From", "What it does", "What it is for", "Applies to"], ["---"] * 7]
        rows += [
            [
                f"`{setting.key}`",
                "empty" if setting.default_text == "empty" else f"`{setting.default_text}`",
                setting.limits,
                setting.source,
                f"{setting.help}. {setting.more}" if setting.more else setting.help,
                setting.use,
                "both" if setting.live else "files",
            ]
            for setting in settings
        ]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def with_options(document: str) -> str:
    """Return a Markdown document with its tables of options made anew, between the comments that mark them."""
    begin, end = "<!-- Options: written by `make documents` -->\n", "<!-- End of the options -->\n"
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{options_markdown()}\n{end}{after}"


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8", newline="\n")
