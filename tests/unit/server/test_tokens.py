import contextlib
import json
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
from tests.wire.support import added

NOW = 1_800_000_000.0
SECRET = "chosen by somebody"


def test_a_token_is_random_and_kept_as_a_hash_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tokens.json"
    one, two = added(path, "one"), added(path, "two", scopes=("read",))
    assert one != two
    assert len(one) >= 43  # 256 bits
    text = path.read_text(encoding="utf-8")
    assert one not in text
    assert two not in text
    tokens = Tokens("", path)
    found = tokens.find(two, NOW)
    assert found is not None
    assert (found.name, found.scopes) == ("two", ("read",))
    assert tokens.find(one, NOW) == TokenFile(path).read()[0]
    assert tokens.find("wrong", NOW) is None
    assert found.sha256 not in repr(found)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_only_its_user_reads_the_file_and_others_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens.json"
    added(path, "one")
    assert path.stat().st_mode & 0o777 == 0o600
    Tokens("", path)
    assert caplog.text == ""
    path.chmod(0o640)
    tokens = Tokens("", path)
    added(path, "two")
    path.chmod(0o644)
    assert tokens.refresh()
    assert caplog.text.count("chmod 600") == 1


def test_the_chosen_token_has_all_scopes_and_the_name_default() -> None:
    found = Tokens(SECRET, None).find(SECRET, NOW)
    assert found is not None
    assert (found.name, found.scopes) == ("default", SCOPES)


@pytest.mark.parametrize(
    "text", ["t", "x" * 15, "ö" * 20, " " + "x" * 20, "x" * 20 + "\n", "x" * 600, "x" * 20 + "\x7f"]
)
def test_a_chosen_token_that_is_short_or_unprintable_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^server\.token has .*16 to 512") as caught:
        Tokens(text, None)
    assert text == "t" or text not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_token_expires(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    secret = added(path, "guest", expires=datetime.fromtimestamp(NOW, UTC))
    tokens = Tokens("", path)
    caller = tokens.find(secret, NOW - 1)
    assert caller is not None
    assert tokens.holds(caller, NOW - 1)
    assert tokens.find(secret, NOW) is None
    assert not tokens.holds(caller, NOW)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens = Tokens("", path)
    assert not tokens.required
    assert tokens.holds(ANYBODY, NOW)
    one = added(path, "one")
    two = added(path, "two")
    caller = tokens.find(one, NOW)  # made after the daemon began
    assert caller is not None
    assert tokens.required
    assert not tokens.holds(ANYBODY, NOW)
    assert not tokens.refresh()
    TokenFile(path).change(lambda tokens: tokens[1:])
    assert tokens.find(one, NOW) is None
    assert not tokens.holds(caller, NOW)
    assert tokens.find(two, NOW) is not None


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    assert not Tokens("", tmp_path / "missing").required
    with pytest.raises(ConfigError, match="missing cannot be read"):
        Tokens(SECRET, tmp_path / "missing", must_exist=True)


def test_a_token_that_gets_other_rights_is_another(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    secret, token = new_token("one")
    TokenFile(path).change(lambda _: (token,))
    tokens = Tokens("", path)
    caller = tokens.find(secret, NOW)
    assert caller is not None
    TokenFile(path).change(lambda _: (AccessToken(name="one", sha256=token.sha256, scopes=("read",)),))
    assert tokens.refresh()
    assert not tokens.holds(caller, NOW)


def test_revoking_the_last_token_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    added(path, "one")
    tokens = Tokens("", path)
    TokenFile(path).change(lambda _: ())
    assert tokens.refresh()
    assert tokens.required
    assert Tokens("", path).required
    assert not Tokens("", path)  # nobody could get in: the address must not be one of a network


@pytest.mark.parametrize("broken", [b"", b"{", b'{"tokens":[{}]}', b"short", None])
def test_a_file_that_breaks_leaves_the_tokens_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: bytes | None
) -> None:
    path = tmp_path / "tokens.json"
    secret = added(path, "one")
    tokens = Tokens("", path)
    if broken is None:
        path.unlink()
    else:
        path.write_bytes(broken)
    for _ in range(3):
        assert not tokens.refresh()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(path) in caplog.text
    assert tokens.find(secret, NOW) is not None
    other = secret
    if broken is not None:
        path.unlink()
        other = added(path, "other")
        assert tokens.refresh()
        assert tokens.find(secret, NOW) is None
    assert tokens.find(other, NOW) is not None


ONE = {"name": "one", "sha256": 64 * "0"}
BROKEN = [
    {},
    {"tokens": 1},
    {"tokens": [], "version": 2},
    *(
        {"tokens": [{**ONE, **wrong}]}
        for wrong in (
            {"sha256": "0"},
            {"sha256": 64 * "x"},
            {"name": "\x1b[2J"},
            {"name": ""},
            {"name": "default"},
            {"scope": ["read"]},  # a slip that would give more than was meant
            {"scopes": ["all"]},
            {"expires": "2026-01-01T00:00:00"},
            {"expires": 5},
        )
    ),
    {"tokens": [ONE, ONE]},
]
RUBBISH = [b"{" + 2_000_000 * b" ", b"\xff\xfe", b"{\xff", b"{" + 100_000 * b'"a":{', b"x" * 2_000_000]


@pytest.mark.parametrize("data", [*(json.dumps(each).encode() for each in BROKEN), *RUBBISH])
def test_a_broken_file_is_one_line_that_names_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"tokens\.json") as caught:
        Tokens("", path)
    assert str(caught.value).isprintable()


def test_a_file_may_hold_one_token_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n", encoding="utf-8")
    found = Tokens("", path).find(SECRET, NOW)
    assert found == chosen_token(SECRET)
    with pytest.raises(ConfigError, match="alone"):
        added(path, "one")
    assert path.read_text(encoding="utf-8") == f"{SECRET}\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "data", [b"{" + 2_000_000 * b" ", b"\xff\xfe", b"{\xff", b"{" + 100_000 * b'"a":{', b"x" * 2_000_000]
)
def test_a_file_that_is_too_long_or_deep_or_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"tokens\.json"):
        Tokens("", path)


def test_two_commands_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    added(path, "first")

    def add(name: str) -> None:
        while True:
            with contextlib.suppress(ConfigError):  # the other is at work
                added(path, name)
                return

    threads = [threading.Thread(target=add, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.name for token in TokenFile(path).read()} == {"first", *(f"t{n}" for n in range(8))}
    assert list(tmp_path.iterdir()) == [path]


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    added(path, "one")
    before = path.read_bytes()

    def fail(_: tuple[AccessToken, ...]) -> tuple[AccessToken, ...]:
        raise ConfigError("no such token")

    with pytest.raises(ConfigError, match="no such token"):
        TokenFile(path).change(fail)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="cannot be written"):
        added(path / "below", "one")


@pytest.mark.parametrize("name", ["", "default", "a b", "-x", "x" * 65, "\x1b", "ä", "a/b"])
def test_a_name_is_safe_wherever_it_is_printed(name: str) -> None:
    with pytest.raises(ConfigError, match="token name") as caught:
        new_token(name)
    assert str(caught.value).isprintable()


def test_scopes() -> None:
    assert parse_scopes("stream, read,") == ("read", "stream")
    for text in ("", ",", "read,write"):
        with pytest.raises(ConfigError, match="expected some of read, stream, control"):
            parse_scopes(text)
