"""Types what is said to a daemon into the focused window, until it ends."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from streamer.client.captions import listen as listen_to
from streamer.client.connection import DaemonAddress
from streamer.client.control import command
from streamer.commands.listen import log_trouble
from streamer.commands.terminal import notice, run_until_interrupted
from streamer.errors import PeerError, UsageError
from streamer.lock import LockedError
from streamer.plugins.dictation.dictation import Dictation
from streamer.plugins.dictation.keyboards import (
    MAX_PIECE_CHARS,
    POLL_S,
    Typist,
    desktop,
    find_clipboard,
    find_keyboards,
    grabbed,
)
from streamer.plugins.instance import ask, only_one, port_file, reachable


def dictate(daemon: DaemonAddress, *, finals: bool, key: str, toggle: bool) -> None:
    """Type what is said to a daemon until it ends.

    finals : whether whole sentences are typed, not words as soon as they are stable
    key : types only while this key is held; empty: from the start
    toggle : if another process of this user types, let it begin or end, and return

    Raises UsageError if another process types already, StreamerError without a desktop, PeerError without a daemon.
    """
    try:
        with only_one("type") as file:
            name = desktop()
            typist = Typist(find_keyboards(name), find_clipboard(name), sys.stdout, notice)
            try:
                run_until_interrupted(_dictate(daemon, typist, file, finals=finals, key=key))
            finally:
                typist.end_line()
    except LockedError:
        if not toggle:
            raise UsageError(
                "`streamer type` is already running: end it, or begin and end its typing with `streamer type --toggle`"
            ) from None
        notice(f"typing {ask(port_file('type'), 'toggle', 'streamer type')}")


class _Switch:
    """Begins and ends typing, with a flush of the daemon's input: words count by when they were said."""

    def __init__(self, address: DaemonAddress, dictation: Dictation, write: Callable[[str], Awaitable[None]]) -> None:
        # What was asked for last; it may wait for the lock.
        self.on = False
        self._address = address
        self._dictation = dictation
        self._write = write
        self._lock = asyncio.Lock()

    async def set(self, on: bool) -> None:
        """Begin or end."""
        if on == self.on:
            return
        self.on = on
        notice("typing" if on else "typing has ended")
        async with self._lock:
            self._dictation.expect(on=on)
            try:
                await command(self._address, "flush")
            except PeerError as error:
                notice(f"typing may begin and end some words too early: {error}")
                await self._write(self._dictation.settle())

    def toggle(self, _word: str) -> tuple[str, Awaitable[None]]:
        """Begin or end, as another process asks. Returns what it does now."""
        return "ends" if self.on else "begins", self.set(not self.on)

    async def follow(self, is_down: Callable[[], bool]) -> None:
        """Begin when a key is pressed, end when it is released."""
        was_down = False
        while True:
            if is_down() != was_down:
                was_down = not was_down
                await self.set(was_down)
            await asyncio.sleep(POLL_S)


async def _dictate(address: DaemonAddress, typist: Typist, file: Path, *, finals: bool, key: str) -> None:
    dictation, typing = Dictation(finals=finals), asyncio.Lock()

    async def write(text: str) -> None:
        async with typing:
            for first in range(0, len(text), MAX_PIECE_CHARS):
                await asyncio.to_thread(typist.type, text[first : first + MAX_PIECE_CHARS])

    switch = _Switch(address, dictation, write)
    begun = bool(key)
    async with contextlib.AsyncExitStack() as stack:
        if key:
            following = asyncio.create_task(switch.follow(stack.enter_context(grabbed(desktop(), key))))
            stack.callback(following.cancel)
            notice(f"hold {key} to type what is said")
        await stack.enter_async_context(reachable(file, switch.toggle))
        events = aiter(listen_to(address, on_notice=notice))
        await stack.enter_async_context(contextlib.aclosing(events))
        async for event in events:
            log_trouble(event)
            await write(dictation.handle(event))
            if not begun:
                begun = True
                await switch.set(True)
