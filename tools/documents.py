"""Writes what is made of the table of settings, and of the commands: config.yaml, its JSON Schema, the options of
docs/decoding.md, and the manual page.

`make documents` runs it after a change in streamer/settings/table.py, or of a command.
"""

from pathlib import Path

from streamer.cli import make_parser
from streamer.commands.table import summaries
from streamer.settings.documents import SCHEMA_PATH, config_yaml, json_schema
from streamer.settings.flags import option_groups

REPOSITORY = Path(__file__).parent.parent


def documents() -> dict[Path, str]:
    """Return each file that is made of the table, as it should be."""
    decoding = REPOSITORY / "docs" / "decoding.md"
    return {
        REPOSITORY / "config.yaml": config_yaml(SCHEMA_PATH.relative_to(REPOSITORY).as_posix()),
        SCHEMA_PATH: json_schema(),
        decoding: with_options(decoding.read_text(encoding="utf-8")),
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
