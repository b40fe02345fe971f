"""`streamer token`, and how commands read one."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.commands.invocation import read_token
from streamer.errors import UsageError
from streamer.server.tokens import AccessToken, Tokens
from tests.daemon import Outcome

Run = Callable[..., Outcome]


@pytest.fixture
def path(run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of tokens that the settings name."""
    monkeypatch.setenv("STREAMER_SERVER_TOKEN_FILE", str(tmp_path / "tokens.json"))
    return tmp_path / "tokens.json"


def found(path: Path, secret: str) -> AccessToken:
    token = Tokens("", path).find(secret.strip(), 0.0)
    assert token is not None
    assert token.created is not None
    return token


def test_a_new_token_is_printed_alone_and_the_first_one_is_warned_of(path: Path, run_here: Run) -> None:
    first = run_here("token", "new", "display", "--scopes", "read", "--expires", "0.5")
    token = found(path, first.stdout)
    assert (token.name, token.scopes) == ("display", ("read",))
    assert token.created is not None
    assert token.expires is not None
    assert (token.expires - token.created).total_seconds() == 43_200
    second = run_here("token", "new", "phone")
    assert first.stdout.strip() not in first.stderr
    assert (first.stderr.count("\n"), second.stderr.count("\n")) == (3, 2)
    assert (found(path, second.stdout).scopes, found(path, second.stdout).expires) == (("read", "stream"), None)


def test_the_list_shows_all_but_the_tokens(path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMER_SERVER_TOKEN", "chosen by somebody")
    secret = run_here("token", "new", "display", "--expires", "1").stdout.strip()
    digest = json.loads(path.read_text(encoding="utf-8"))["tokens"][0]["sha256"]
    shown = run_here("token", "list").stdout
    assert [line.split("│")[1].strip() for line in shown.splitlines() if "│" in line] == ["default", "display"]
    assert ("UTC" in shown, "never" in shown, "expired" in shown) == (True, True, False)
    assert not any(hidden in shown for hidden in (secret, "chosen by", digest[:12]))


def test_a_revoked_token_is_gone_and_the_last_one_is_warned_of(path: Path, run_here: Run) -> None:
    assert run_here("token", "revoke", "display").exit_code == 2
    assert not path.exists()  # a file without tokens would keep everybody out
    for name in ("display", "phone"):
        run_here("token", "new", name)
    assert [run_here("token", "revoke", name).stderr.count("\n") for name in ("display", "phone")] == [1, 2]
    assert (len(Tokens("", path)), Tokens("", path).required) == (0, True)


def test_a_token_is_read_from_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"a token of somebody\r\n")
    assert read_token(str(file)) == "a token of somebody"
    monkeypatch.setattr("sys.stdin", io.StringIO("a token of somebody\n"))
    assert read_token("-") == "a token of somebody"


@pytest.mark.parametrize(
    "text", [b"", b" \n", b'{"tokens": []}', b"\xff", "tök".encode(), b"a\nb", "-", ".", "missing", "a\0b"]
)
def test_what_does_not_hold_a_token_alone_is_refused(
    text: bytes | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    (tmp_path / "token").write_bytes(text if isinstance(text, bytes) else b"")
    with pytest.raises(UsageError):
        read_token(text if isinstance(text, str) else str(tmp_path / "token"))
