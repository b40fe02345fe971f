"""What the server refuses: settings to start with, tokens to make, and requests."""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from streamer.history import writer
from streamer.history.writer import History
from streamer.server.self_signed import renew_self_signed
from streamer.server.sockets import UnixSocket
from streamer.server.tokens import new_token, parse_scopes
from tests.refusals import Refusal, refusals
from tests.waiting import WAIT_S
from tests.wire.conftest import keep
from tests.wire.harness import NotedRecordings, serving

PEM = serialization.Encoding.PEM
# Of what the daemon is made where a request finds it so.
DAEMONS: dict[str, dict[str, Any]] = {"without input": {"input": None}, "without history": {"history_file": None}}


def spelled(given: Any, folder: Path) -> Any:  # noqa: ANN401 - any TOML
    """Return what a row gives, with the test's folder for DIR, and `<x*9>` written out."""
    text = json.dumps(given).replace("DIR", str(folder))
    return json.loads(re.sub(r"<((?:[^<>])+?)\*(\d+)>", lambda found: found[1] * int(found[2]), text))


def certificates(folder: Path) -> None:
    """Write a certificate and keys into a folder: its own, with a password, and of another one."""
    renew_self_signed(folder / "both.pem")
    data = (folder / "both.pem").read_bytes()
    at = data.index(b"-----BEGIN PRIVATE")
    (folder / "cert.pem").write_bytes(data[:at])
    (folder / "key.pem").write_bytes(data[at:])
    (folder / "empty.pem").write_bytes(b"")
    (folder / "damaged.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n")
    for name, password in (
        ("other", serialization.NoEncryption()),
        ("encrypted", serialization.BestAvailableEncryption(b"s")),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, password)
        (folder / f"{name}.pem").write_bytes(secret)


@refusals("server")
async def test_the_server_does_not_start_and_says_why(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_data_path", lambda *_, **__: tmp_path)
    given = spelled(refusal.given, tmp_path)
    if "pem" in str(given):
        certificates(tmp_path)
    if "tokens" in given:
        (tmp_path / "tokens.json").write_text(given["tokens"], encoding="utf-8")
    make: dict[str, Callable[[str], object]] = {"name": new_token, "scopes": parse_scopes}
    with closing(UnixSocket(tmp_path / "taken")), refusal.expected(tmp_path):
        for name in make.keys() & given.keys():
            make[name](given[name])
        async with serving(**given.get("settings", {})):
            pass


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "PUBLISH_TIMEOUT_S", WAIT_S)
        with closing(History(tmp_path_factory.mktemp("history") / "history.db", audio=True)) as opened:
            keep(opened, "s0", "one", "two", "three", "four")
            keep(opened, "s1", "goes on", end=False)
            keep(opened, "secret", "goes on", own=False, end=False)
            yield opened


async def pieces(n: int) -> AsyncIterator[bytes]:
    """Yield a body that is sent in chunks."""
    for _ in range(n):
        yield bytes(100_000)


@refusals("http")
async def test_a_request_is_refused_in_one_line(refusal: Refusal, history: History, tmp_path: Path) -> None:
    given = spelled(refusal.given, tmp_path)
    daemon = given.get("daemon", "")
    settings = {"history_file": history, **given.get("settings", {}), **DAEMONS.get(daemon, {})}
    body = pieces(given["n_pieces"]) if "n_pieces" in given else given.get("body", bytes(given.get("n_bytes", 0)))
    async with serving(recordings=NotedRecordings(), **settings) as running:
        if daemon == "starting":
            running.server._context.services.input.session = None  # type: ignore[union-attr]
        if daemon == "stopping":
            running.server.drain()
        answer = await running.ask(given["request"], body or None, **given.get("headers", {}))
        found = answer.json()
        error = found.get("error", found.get("err_msg"))
        said = error if isinstance(error, dict) else {"message": error}
        assert (answer.text.count("\n"), answer.headers["x-content-type-options"]) == (1, "nosniff")
        refusal.check(str(answer.status_code), said.get("code") or "", said["message"])
        assert (await running.ask("GET /livez")).status_code == 200
