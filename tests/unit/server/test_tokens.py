"""Tokens: made, kept as hashes, read again when their file changes, and revoked."""

import contextlib
import logging
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from streamer.errors import ConfigError
from streamer.server.tokens import (
    ANYBODY,
    SCOPES,
    AccessToken,
    TokenFile,
    Tokens,
    chosen_token,
    new_token,
    parse_scopes,
)
from tests.wire.harness import added

NOW = 1_800_000_000.0
SECRET = "open sesame, 16 or more"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "tokens.json"


def test_a_token_is_random_and_kept_as_a_hash_only(path: Path) -> None:
    one, two = added(path, "one"), added(path, "two", scopes=("read",))
    assert one[:9] == two[:9] == "streamer_"
    assert len(one) >= 9 + 43  # 256 bits
    assert {one[9:], two[9:]}.isdisjoint(path.read_text(encoding="utf-8").split('"'))
    tokens = Tokens("", path)
    assert len(tokens) == 2
    assert [tokens.find(secret, NOW) for secret in (one, two, "wrong")] == [*TokenFile(path).read(), None]
    found = tokens.find(two, NOW)
    assert found is not None
    assert (found.name, found.scopes) == ("two", ("read",))
    assert found.sha256 not in repr(found)
    assert [tokens.names(scope, NOW) for scope in SCOPES] == [{"one", "two"}, {"one"}, {"one"}]


def test_the_chosen_token_opens_everything_and_nothing_else_opens_anything() -> None:
    tokens = Tokens(SECRET, None)
    assert tokens.find(SECRET, NOW) == chosen_token(SECRET)
    assert (chosen_token(SECRET).name, chosen_token(SECRET).scopes) == ("default", SCOPES)
    assert len(chosen_token(16 * "x").sha256) == len(chosen_token(512 * "x").sha256) == 64
    for shown in ("", "x", SECRET[:-1], SECRET + "x", SECRET.upper(), "x" * 100_000, "\udcff", "ö" * 20):
        assert tokens.find(shown, NOW) is None


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_only_its_user_reads_the_file_and_others_are_reported_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    added(path, "one")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    Tokens("", path)
    assert caplog.records == []
    path.chmod(0o640)
    tokens = Tokens("", path)
    added(path, "two")
    path.chmod(0o644)
    assert tokens.refresh()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_token_expires(path: Path) -> None:
    secret = added(path, "guest", expires=datetime.fromtimestamp(NOW, UTC))
    tokens = Tokens("", path)
    caller = tokens.find(secret, NOW - 1)
    assert caller is not None
    assert (tokens.holds(caller, NOW - 1), tokens.holds(caller, NOW)) == (True, False)
    assert tokens.find(secret, NOW) is None
    assert [tokens.names("read", now) for now in (NOW - 1, NOW)] == [{"guest"}, set()]


def test_a_file_that_changes_is_read_again(path: Path) -> None:
    tokens = Tokens("", path)
    assert (tokens.required, tokens.holds(ANYBODY, NOW), *tokens.names("read", NOW)) == (False, True, "")
    one, two = added(path, "one"), added(path, "two")
    caller, other = tokens.find(one, NOW), tokens.find(two, NOW)  # made after the daemon began
    assert caller is not None
    assert other is not None
    assert (tokens.required, tokens.holds(ANYBODY, NOW), tokens.refresh()) == (True, False, False)
    fewer = AccessToken(name="two", sha256=other.sha256, scopes=("read",))
    TokenFile(path).change(lambda _: (fewer,))
    assert tokens.find(one, NOW) is None
    assert not tokens.holds(caller, NOW)
    assert not tokens.holds(other, NOW)  # with other rights it is another
    assert tokens.find(two, NOW) == fewer
    TokenFile(path).change(lambda _: ())
    assert tokens.refresh()
    assert tokens.required  # to revoke the last token opens nothing
    assert Tokens("", path).required
    assert not Tokens("", path)  # no client could get in: the address must not be one of a network


@pytest.mark.parametrize("broken", [b"", b"{", b"short", None])
def test_a_file_that_breaks_leaves_the_tokens_and_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture, broken: bytes | None
) -> None:
    secret = added(path, "one")
    tokens = Tokens("", path)
    path.unlink() if broken is None else path.write_bytes(broken)
    assert [tokens.refresh() for _ in range(3)] == [False] * 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert tokens.find(secret, NOW) is not None
    path.unlink(missing_ok=True)
    other = added(path, "other")
    assert tokens.refresh()
    assert (tokens.find(secret, NOW), tokens.find(other, NOW)) == (None, TokenFile(path).read()[0])


@pytest.mark.parametrize(
    "data", [b"{" + 2_000_000 * b" ", b"\xff\xfe", b"{\xff", b"{" + 100_000 * b'"a":{', b"x" * 2_000_000]
)
def test_a_file_that_is_too_long_or_deep_or_no_text_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokens.json").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        Tokens("", tmp_path / "tokens.json")
    assert str(caught.value).isprintable()


def test_a_file_may_hold_one_token_alone_which_no_command_replaces(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n", encoding="utf-8")
    assert Tokens("", path, must_exist=True).find(SECRET, NOW) == chosen_token(SECRET)
    with pytest.raises(ConfigError):
        added(path, "one")
    assert path.read_text(encoding="utf-8") == f"{SECRET}\n"
    assert list(tmp_path.iterdir()) == [path]


def test_commands_at_once_lose_nothing_and_one_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"

    def add(name: str) -> None:
        while True:
            with contextlib.suppress(ConfigError):  # another is at work
                added(path, name)
                return

    threads = [threading.Thread(target=add, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        TokenFile(path).change(lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError):
        added(path / "below", "one")
    assert {token.name for token in TokenFile(path).read()} == {f"t{n}" for n in range(8)}
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_names_and_scopes_of_tokens() -> None:
    assert new_token("a" + 63 * "9")[1].name == "a" + 63 * "9"
    assert parse_scopes("stream, read,") == ("read", "stream")
