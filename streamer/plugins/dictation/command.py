"""Types what is said to a daemon into the focused window, until it ends."""

import asyncio
import contextlib
import hmac
import secrets
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import platformdirs

from streamer.client.captions import listen as listen_to
from streamer.client.connection import DaemonAddress
from streamer.client.control import command
from streamer.commands.listen import log_trouble
from streamer.commands.terminal import notice, run_until_interrupted
from streamer.errors import PeerError, UsageError
from streamer.lock import LockedError, locked
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

RETRY_S = 0.1  # between attempts to reach a process that is to begin or end typing
TOGGLE_S = 5.0  # in which a process answers that is to begin or end typing


def dictate(daemon: DaemonAddress, *, finals: bool, key: str, toggle: bool) -> None:
    """Type what is said to a daemon until it ends.

    finals : whether whole sentences are typed, not words as soon as they are stable
    key : types only while this key is held; empty: from the start
    toggle : if another process of this user types, let it begin or end, and return

    Raises UsageError if another process types already, StreamerError without a desktop, PeerError without a daemon.
    """
    folder = platformdirs.user_cache_path("streamer", appauthor=False) / "type"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with locked(folder / "lock"):
            name = desktop()
            typist = Typist(find_keyboards(name), find_clipboard(name), sys.stdout, notice)
            try:
                run_until_interrupted(_dictate(daemon, typist, folder / "port", finals=finals, key=key))
            finally:
                typist.end_line()
    except LockedError:
        if not toggle:
            raise UsageError(
                "`streamer type` is already running: end it, or begin and end its typing with `streamer type --toggle`"
            ) from None
        notice(f"typing {_toggled(folder / 'port')}")


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

    async def follow(self, is_down: Callable[[], bool]) -> None:
        """Begin when a key is pressed, end when it is released."""
        was_down = False
        while True:
            if is_down() != was_down:
                was_down = not was_down
                await self.set(was_down)
            await asyncio.sleep(POLL_S)


async def _dictate(address: DaemonAddress, typist: Typist, port_file: Path, *, finals: bool, key: str) -> None:
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
        await stack.enter_async_context(_toggles(port_file, switch))
        events = aiter(listen_to(address, on_notice=notice))
        await stack.enter_async_context(contextlib.aclosing(events))
        async for event in events:
            log_trouble(event)
            await write(dictation.handle(event))
            if not begun:
                begun = True
                await switch.set(True)


@contextlib.asynccontextmanager
async def _toggles(port_file: Path, switch: _Switch) -> AsyncGenerator[None]:
    """Let other processes of this user toggle typing: a file has a port of this machine and a secret."""
    secret = secrets.token_hex(16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, ValueError):
            async with asyncio.timeout(TOGGLE_S):
                known = hmac.compare_digest((await reader.readline()).strip(), secret.encode())
            if known:
                # Answered first: the daemon may take its time.
                writer.write(b"ends\n" if switch.on else b"begins\n")
                await switch.set(not switch.on)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        port_file.touch(mode=0o600)
        port_file.write_text(f"{port} {secret}", encoding="ascii")
        try:
            yield
        finally:
            port_file.unlink(missing_ok=True)


def _toggled(port_file: Path) -> str:
    """Toggle the typing of another process; return what it does then. Raises PeerError if it does not answer."""
    deadline_s = time.monotonic() + TOGGLE_S
    while time.monotonic() < deadline_s:
        # It may have just been started.
        with contextlib.suppress(OSError, ValueError):
            port, secret = port_file.read_text(encoding="ascii").split()
            with socket.create_connection(("127.0.0.1", int(port)), TOGGLE_S) as connection:
                connection.sendall(secret.encode() + b"\n")
                answer = connection.recv(16).decode("ascii").strip()
                if answer in ("begins", "ends"):
                    return answer
        time.sleep(RETRY_S)
    raise PeerError("`streamer type` does not answer: end it, and start it again")
