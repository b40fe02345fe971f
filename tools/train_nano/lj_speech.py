"""Makes the two files of sentences from LJ Speech: python -m tools.train_nano.lj_speech metadata.csv --out DIR

LJ Speech (Ito and Johnson, 2017) is public domain; its metadata.csv has a line `id|text|text with numbers in words`
for each recording. Chapter 49 is held out and chapter 50, which continues it, is left out.
"""

import argparse
from pathlib import Path

HELD_OUT = "LJ049"
LEFT_OUT = "LJ050"


def split(metadata: str) -> tuple[list[str], list[str]]:
    """The sentences to train on and those held out. Raises ValueError where a line has not three columns."""
    train: list[str] = []
    held_out: list[str] = []
    for number, line in enumerate(metadata.splitlines(), 1):
        columns = line.split("|")
        if len(columns) != 3:
            raise ValueError(f"line {number} has {len(columns)} columns; each must have an id, a text and its words")
        if columns[0].startswith(HELD_OUT):
            held_out.append(columns[2].strip())
        elif not columns[0].startswith(LEFT_OUT):
            train.append(columns[2].strip())
    return train, held_out


def main() -> None:
    parser = argparse.ArgumentParser(description="Make train.txt and heldout.txt from LJ Speech's metadata.csv.")
    parser.add_argument("metadata", type=Path, help="metadata.csv")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write them to")
    options = parser.parse_args()
    try:
        train, held_out = split(options.metadata.read_text(encoding="utf-8"))
    except OSError as error:
        raise SystemExit(f"{options.metadata} cannot be read ({error.strerror}); it comes with LJ Speech") from None
    except ValueError as error:
        raise SystemExit(f"{options.metadata}: {error}") from None
    options.out.mkdir(parents=True, exist_ok=True)
    for name, sentences in (("train.txt", train), ("heldout.txt", held_out)):
        (options.out / name).write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
    print(f"{len(train)} sentences to train on, {len(held_out)} held out")


if __name__ == "__main__":
    main()
