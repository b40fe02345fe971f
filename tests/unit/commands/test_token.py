"""`streamer token`, and how commands read one."""

import io
import json
from pathlib import Path

import pytest

from streamer.cli import main
from streamer.commands.token import read_token
from streamer.errors import UsageError
from streamer.server.tokens import Tokens

NOW = 1_800_000_000.0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of tokens that the settings name."""
    path = tmp_path / "tokens.json"
    monkeypatch.setenv("STREAMER_SERVER_TOKEN_FILE", str(path))
    monkeypatch.setenv("STREAMER_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("STREAMER_SERVER_TOKEN", raising=False)
    return path


def test_a_new_token_is_printed_alone_and_works(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "display", "--scopes", "read", "--expires", "0.5"]) == 0
    said = capsys.readouterr()
    (secret,) = said.out.splitlines()
    assert secret not in said.err
    assert "every client needs a token" in said.err
    found = Tokens("", path).find(secret, 0.0)
    assert found is not None
    assert (found.name, found.scopes) == ("display", ("read",))
    assert found.created is not None
    assert found.expires is not None
    assert (found.expires - found.created).total_seconds() == 43_200
    assert main(["token", "new", "phone"]) == 0
    said = capsys.readouterr()
    assert "every client needs a token" not in said.err
    found = Tokens("", path).find(said.out.strip(), NOW)
    assert found is not None
    assert (found.scopes, found.expires) == (("read", "stream"), None)


def test_the_list_shows_all_but_the_tokens(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAMER_SERVER_TOKEN", "chosen by somebody")
    assert main(["token", "new", "display", "--expires", "1"]) == 0
    secret = capsys.readouterr().out.strip()
    assert main(["token", "list"]) == 0
    shown = capsys.readouterr().out
    assert "default" in shown
    assert "display" in shown
    assert "UTC" in shown
    for hidden in (secret, "chosen by", json.loads(path.read_text(encoding="utf-8"))["tokens"][0]["sha256"][:12]):
        assert hidden not in shown


def test_a_revoked_token_is_gone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "revoke", "display"]) == 2
    assert not path.exists()  # a file without tokens would keep everybody out
    assert main(["token", "new", "display"]) == 0
    assert main(["token", "new", "display"]) == 2
    assert "there already" in capsys.readouterr().err
    assert main(["token", "revoke", "displai"]) == 2
    assert "display" in capsys.readouterr().err
    assert main(["token", "revoke", "display"]) == 0
    assert "no client may connect" in capsys.readouterr().err
    tokens = Tokens("", path)
    assert len(tokens) == 0
    assert tokens.required


@pytest.mark.parametrize("days", ["0", "nan", "inf"])
def test_an_end_that_is_none_is_refused(path: Path, days: str) -> None:
    with pytest.raises(SystemExit):
        main(["token", "new", "display", "--expires", days])
    assert not path.exists()


def test_a_token_is_read_from_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"a token of somebody\r\n")
    assert read_token(str(file)) == "a token of somebody"
    monkeypatch.setattr("sys.stdin", io.StringIO("a token of somebody\n"))
    assert read_token("-") == "a token of somebody"
    monkeypatch.setattr("sys.stdin", None)
    for text in ("-", str(tmp_path), str(tmp_path / "missing"), "a\0b"):
        with pytest.raises(UsageError, match="token file"):
            read_token(text)
    for data in (b"", b" \n", b'{"tokens": []}', b"\xff", "tök".encode(), b"a\nb"):
        file.write_bytes(data)
        with pytest.raises(UsageError, match="alone"):
            read_token(str(file))
