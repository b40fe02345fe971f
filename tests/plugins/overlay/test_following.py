"""A daemon that comes, goes, ends and comes again; and what other processes ask for."""

import asyncio
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from streamer.client.connection import parse_address
from streamer.errors import PeerError
from streamer.events import Final
from streamer.plugins.instance import ask
from streamer.plugins.overlay import following as module
from streamer.plugins.overlay.following import Asked, Connected, Failed, Following, News
from tests.daemon import free_port
from tests.waiting import WAIT_S
from tests.wire.harness import numbered_final, opened_log, serving

T = TypeVar("T")


class Follower:
    def __init__(self, address: str, file: Path, token: str = "") -> None:
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.following = Following(parse_address(address, token), file, self.news.put)

    async def next(self, kind: type[T]) -> T:
        """Return the next news of a kind."""
        while True:
            news = await asyncio.to_thread(self.news.get, timeout=WAIT_S)
            if isinstance(news, kind):
                return news

    async def states(self, *expected: str) -> None:
        """Wait for these states, behind any number of failed attempts."""
        for state in expected:
            while (found := (await self.next(Connected)).state) == "waiting" != state:
                pass
            assert found == state


@pytest.fixture
def started() -> Iterator[list[Follower]]:
    found: list[Follower] = []
    yield found
    for each in found:
        each.following.stop()


@pytest.mark.slow
async def test_a_daemon_is_waited_for_and_one_that_ended_is_asked_again(
    tmp_path: Path, started: list[Follower], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "ENDED_RETRY_S", 0.05)
    port = free_port()
    started.append(follower := Follower(f"127.0.0.1:{port}", tmp_path / "port"))
    await follower.states("waiting")
    async with serving(port=port) as server:
        await follower.states("open")
        server.log.append(numbered_final(1, "One."))
        assert (await follower.next(Final)).text == "One."
        server.log.close()
        # It is asked for more, has none, and is not gone for that.
        await follower.states("ended")
        assert [(await follower.next(Connected)).state for _ in range(4)] == ["open", "ended"] * 2
    await follower.states("waiting")
    async with serving(opened_log("s2"), port=port) as server:
        await follower.states("open")
        server.log.append(numbered_final(1, "Two."))
        assert (await follower.next(Final)).text == "Two."
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len([line for line in said if "127.0.0.1" in line]) >= 3
    assert "streamer run" in said[0]
    assert not any("streamer run" in line for line in said[1:])


async def test_a_token_that_is_refused_is_the_end(tmp_path: Path, started: list[Follower]) -> None:
    async with serving(token="a-secret-of-16-or-more") as server:
        started.append(follower := Follower(server.url, tmp_path / "port", token="another"))
        assert isinstance((await follower.next(Failed)).error, PeerError)


async def test_other_processes_ask_and_an_unknown_word_is_not_answered(
    tmp_path: Path, started: list[Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.instance.ANSWER_S", 0.5)
    file = tmp_path / "port"
    started.append(follower := Follower(f"127.0.0.1:{free_port()}", file))
    await follower.states("waiting")
    assert await asyncio.to_thread(ask, file, "toggle", "streamer overlay") == "done"
    assert await follower.next(Asked) == Asked("toggle")
    with pytest.raises(PeerError):
        await asyncio.to_thread(ask, file, "explode", "streamer overlay")
    follower.following.stop()
    assert not file.exists()
