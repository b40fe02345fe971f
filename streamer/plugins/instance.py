"""The one process of a command that runs for a user, and what a second one asks it to do.

A file that only this user can read has a port of this machine and a secret.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path

import platformdirs

from streamer.errors import PeerError
from streamer.lock import locked

RETRY_S = 0.1  # between attempts to reach a process that has perhaps just been started
ANSWER_S = 5.0  # in which it answers

# What a process answers to a word, and what it does then.
Act = Callable[[str], tuple[str, Awaitable[None]]]


@contextlib.contextmanager
def only_one(name: str) -> Iterator[Path]:
    """Be the one process of a command in a block, which gets the file for `reachable`. Raises LockedError."""
    folder = port_file(name).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder / "lock"):
        yield port_file(name)


def port_file(name: str) -> Path:
    """Return the file with the port of a command's process."""
    return platformdirs.user_cache_path("streamer", appauthor=False) / name / "port"


@contextlib.asynccontextmanager
async def reachable(file: Path, act: Act) -> AsyncGenerator[None]:
    """Let other processes of this user say words to this one."""
    secret = secrets.token_hex(16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, ValueError):
            async with asyncio.timeout(ANSWER_S):
                given, _, word = (await reader.readline()).strip().partition(b" ")
            if hmac.compare_digest(given, secret.encode()):
                answer, work = act(word.decode("ascii"))
                # Answered first: the work may take its time.
                writer.write(answer.encode("ascii") + b"\n")
                await work

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        file.touch(mode=0o600)
        file.write_text(f"{port} {secret}", encoding="ascii")
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def ask(file: Path, word: str, command: str) -> str:
    """Say a word to the process of a command; return its answer. Raises PeerError if it does not answer."""
    deadline_s = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline_s:
        # It may have just been started.
        with contextlib.suppress(OSError, ValueError):
            port, secret = file.read_text(encoding="ascii").split()
            with socket.create_connection(("127.0.0.1", int(port)), ANSWER_S) as connection:
                connection.sendall(f"{secret} {word}\n".encode("ascii"))
                if answer := connection.recv(16).decode("ascii").strip():
                    return answer
        time.sleep(RETRY_S)
    raise PeerError(f"`{command}` does not answer: end it, and start it again")
