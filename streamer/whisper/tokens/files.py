"""Reading a tokenizer's files, as much as a tokenizer can have and no more."""

import json
from pathlib import Path
from typing import Any

from streamer.errors import ModelError

# Largest file that is read: those of Whisper have up to 4 MB, and as values in memory take up to thirty times as much.
MAX_BYTES = 8 << 20


def read_text(path: Path) -> str:
    """Read a file of text.

    Raises ModelError where it is missing, too large, or not UTF-8.
    """
    try:
        if not path.is_file():  # reading a pipe would wait
            raise FileNotFoundError
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, ValueError):  # a name with a zero byte is a ValueError
        raise ModelError(
            f"{path!s:.500} is missing: expected a file of the tokenizer; fetch it again, or name another tokenizer"
            " with --tokenizer FILE"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) > MAX_BYTES:
        raise ModelError(f"{path} has more than {MAX_BYTES >> 20} MiB: expected a few of a tokenizer; fetch it again")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise no_tokenizer(str(path), str(error)) from None


def parse_object(text: str, path: Path) -> dict[str, Any]:
    """Parse a JSON object; raise ModelError where the text is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise no_tokenizer(str(path), str(error)) from None
    if not isinstance(data, dict):
        raise no_tokenizer(str(path), f"it holds a JSON {type(data).__name__}")
    return data


def unreadable(path: Path, error: OSError) -> ModelError:
    """Return the error of a file or directory that the system does not let us read."""
    return ModelError(f"{path!s:.500} cannot be read ({error.strerror}): expected a tokenizer that you may read")


def no_tokenizer(where: str, reason: str) -> ModelError:
    """Return the error of a file that holds something else; the reason may quote it."""
    reason = " ".join(reason.split())
    return ModelError(f"{where} is no tokenizer ({reason:.160}): expected Whisper's; fetch it again")
