"""What is refused, and with which sentence: the rows of `tests/golden/refusals/*.toml`.

A row has a name, what is `given` (text, argv, a table: the room's test knows what to do with it), the class of the
`error`, its `code` if it has one, and what it `says`. `make documents` writes `code` and `says` anew; the diff is the
review. Other tests assert classes and codes only.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Outcome

ROWS = Path(__file__).parent / "golden" / "refusals"

# The option of pytest with which sentences are written instead of compared.
REWRITE = "--rewrite-refusals"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row of a room."""

    room: str
    name: str
    given: Any
    error: str
    code: str = ""
    says: str = ""
    rewrite: bool = False

    @contextmanager
    def expected(self, *folders: Path) -> Iterator[None]:
        """Expect the block to raise this error; in its sentence the test's `folders` read `DIR`, `DIR2`, ..."""
        with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is compared below
            yield
        says = _without(folders, str(caught.value))
        self.check(type(caught.value).__name__, getattr(caught.value, "code", ""), says)

    def check_command(self, outcome: Outcome, *folders: Path) -> None:
        """Expect a command to have ended with this exit code as its `error`, one sentence, and nothing written."""
        assert outcome.stdout == ""
        says = _without(folders, outcome.error().removeprefix("streamer: error: "))
        self.check(str(outcome.exit_code), "", re.sub(r"\((\[?)Errno .*?\)", "(...)", says))

    def check(self, error: str, code: str, says: str) -> None:
        """Compare an error's class, code and sentence; `error` may be an exit code or an HTTP status as text."""
        assert error == self.error, says
        assert "\n" not in says, "a sentence is one line"
        if self.rewrite:
            _write(self, code, says)
        else:
            assert (code, says) == (self.code, self.says)


def rows(room: str) -> list[Refusal]:
    """Return the rows of a room; their names are different."""
    found = tomllib.loads((ROWS / f"{room}.toml").read_text(encoding="utf-8"))["refusal"]
    assert len({row["name"] for row in found}) == len(found)
    return [Refusal(room=room, **row) for row in found]


def refusals(room: str) -> pytest.MarkDecorator:
    """Give each row of a room to a test as its argument `refusal`."""
    return pytest.mark.parametrize("refusal", rows(room), ids=lambda row: row.name, indirect=True)


def _without(folders: Sequence[Path], says: str) -> str:
    """Return a sentence in which folders of a test read `DIR`, `DIR2`, ..."""
    for i, folder in enumerate(folders, start=1):
        says = says.replace(str(folder), "DIR" if i == 1 else f"DIR{i}")
    return says


def _write(row: Refusal, code: str, says: str) -> None:
    path = ROWS / f"{row.room}.toml"
    head, name, rest = path.read_text(encoding="utf-8").partition(f"name = {_quoted(row.name)}\n")
    assert name, "a name stands in double quotes, on a line of its own"
    body, mark, after = rest.partition("\n[[refusal]]")
    kept = [line for line in body.rstrip("\n").split("\n") if not line.startswith(("code = ", "says = "))]
    code_line = [f"code = {_quoted(code)}"] if code else []
    lines = "\n".join([*kept, *code_line, f"says = {_quoted(says)}"])
    path.write_text(f"{head}{name}{lines}\n{mark}{after}", encoding="utf-8")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
