"""A daemon's captions for as long as the overlay runs, whether the daemon is there or not."""

import asyncio
import contextlib
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamer.client.connection import DaemonAddress
from streamer.client.machine import Client, Input, State
from streamer.commands.terminal import notice
from streamer.events import End, Event
from streamer.plugins.instance import reachable

WORDS = ("toggle", "move", "quit")
ENDED_RETRY_S = 15.0  # a daemon whose input has ended may be started again


@dataclass(frozen=True, slots=True)
class Connected:
    """The daemon is there, or it is not; or all is said."""

    state: State


@dataclass(frozen=True, slots=True)
class Failed:
    """It will not be there: an error of the address, the token or the certificate."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Asked:
    """Another process asks for something: `toggle`, `move` or `quit`."""

    word: str


# What is passed to the overlay.
News = Event | Connected | Failed | Asked


class _Client(Client):
    """A client that reports its states, and waits for a daemon at the start, too."""

    def __init__(self, address: DaemonAddress, post: Callable[[News], None]) -> None:
        self._post = post
        # Whether the newest event is `end`. The daemon closes a connection that asks for what comes behind it.
        self._all_said = False
        super().__init__(address, self._say, wait_s=math.inf)

    def take(self, event: Event) -> Event | None:
        self._all_said = isinstance(event, End)
        return super().take(event)

    def lose(self, error: Exception, input: Literal["gone", "stopped"] = "gone") -> None:
        if self._all_said and self.state == "open":
            self.move("end")
        else:
            super().lose(error, input)

    def move(self, input: Input) -> None:
        before = self.state
        super().move(input)
        if self.state != before and self.state in ("open", "waiting", "ended"):
            self._post(Connected(self.state))

    def _say(self, line: str) -> None:
        if self._known:
            notice(line)
        elif self.state == "open":
            notice(f"{self.address} is there")
        else:
            notice(f"{line}; `streamer run` starts one")


class Following:
    """A thread that follows a daemon, and takes what other processes ask for."""

    def __init__(self, address: DaemonAddress, port_file: Path, post: Callable[[News], None]) -> None:
        """Begin. `post` is called by the thread; `port_file` lets other processes reach it."""
        self._address = address
        self._port_file = port_file
        self._post = post
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="overlay", daemon=True)
        # None before it runs; whether it is to end.
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._stopped = True
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
        self._thread.join()

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        if self._stopped:
            return
        try:
            async with reachable(self._port_file, self._act):
                await self._follow()
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - the command reports it
            self._post(Failed(error))

    async def _follow(self) -> None:
        client = _Client(self._address, self._post)
        while True:
            async with contextlib.aclosing(client.events()) as events:
                async for event in events:
                    self._post(event)
            await asyncio.sleep(ENDED_RETRY_S)
            client.move("retry")

    def _act(self, word: str) -> tuple[str, Awaitable[None]]:
        if word not in WORDS:
            return "", asyncio.sleep(0)
        self._post(Asked(word))
        return "done", asyncio.sleep(0)
