"""What holds of all tests."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("unwanted", "instead"),
    [
        # It may come when the command under test has ended already, and then ends the run.
        (r"(raise_signal|interrupt_main|pthread_kill|getppid)\b|\bkill\(os\.getpid", "`started` of tests/daemon.py"),
        # On a busy machine everything takes longer at once.
        (r"(\btimeout(=|\()|(?<!machine)\.(wait|join|result)\()[1-9][0-9.]*[,)]", "WAIT_S of tests/waiting.py"),
        # A better sentence would break them: `make documents` writes those of golden rows.
        (r"pytest\.raises\([^()]*\bmatch=", "the error's class and code, or a row of tests/golden/refusals"),
        # Each had its own.
        (r"^def (final|partial|words|ready)\(", "the builder of tests/builders.py, or a name that says what differs"),
    ],
    ids=["signal the tests' own process", "have a bound of their own", "hold a sentence", "build events of their own"],
)
def test_no_tests(unwanted: str, instead: str) -> None:
    found = [
        f"{path.relative_to(TESTS)}: {match[0]}"
        for path in TESTS.rglob("*.py")
        for match in re.finditer(unwanted, path.read_text(encoding="utf-8"), re.MULTILINE)
        if path not in (Path(__file__), TESTS / "builders.py")
    ]
    assert found == [], f"expected {instead}"
