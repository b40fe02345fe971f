"""Writes what is made of the table of settings: config.yaml, its JSON Schema, and the options of docs/decoding.md.

`make documents` runs it after a change in streamer/settings/table.py.
"""

from pathlib import Path

from streamer.settings.documents import SCHEMA_PATH, config_yaml, json_schema, with_options

REPOSITORY = Path(__file__).parent.parent


def documents() -> dict[Path, str]:
    """Return each file that is made of the table, as it should be."""
    decoding = REPOSITORY / "docs" / "decoding.md"
    return {
        REPOSITORY / "config.yaml": config_yaml(SCHEMA_PATH.relative_to(REPOSITORY).as_posix()),
        SCHEMA_PATH: json_schema(),
        decoding: with_options(decoding.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8", newline="\n")
