"""A nats-server beside this process, for a first try on one machine."""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from streamer.errors import ClusterError, MissingExtraError
from streamer.outside import one_line

USUAL_PORT = 4222
START_S = 20.0
STOP_S = 5.0


def find_nats_server() -> Path:
    """Return the server's program: beside Python's, where pip puts it, or on PATH. Raises MissingExtraError."""
    beside = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("nats-server")
    if found is None:
        raise MissingExtraError("nats-server", "cluster", "a gateway without --nats URL")
    return Path(found)


def usual_port() -> int:
    """Return NATS' usual port if it is free on loopback, else 0, which picks one."""
    try:
        # As servers bind it: connections of an earlier server may linger for a minute, and block no new one.
        socket.create_server(("127.0.0.1", USUAL_PORT)).close()
    except OSError:
        return 0
    return USUAL_PORT


@contextlib.asynccontextmanager
async def local_nats(port: int = 0) -> AsyncIterator[str]:
    """Run a server on loopback while in the context, which gets its URL; port 0 picks a free one.

    Raises ClusterError if it does not start.
    """
    program = find_nats_server()
    with tempfile.TemporaryDirectory(prefix="streamer-nats-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        log = folder / "nats-server.log"
        # Only this machine reaches it, so that no login is needed; -1 picks a free port.
        flags = f"--name streamer --addr 127.0.0.1 --port {port or -1} --jetstream".split()
        flags += ["--store_dir", str(folder / "store"), "--ports_file_dir", name]
        # A process group of its own: Ctrl-C in a terminal stops this process, which stops the server last.
        with log.open("wb") as written:
            process = subprocess.Popen(  # noqa: S603
                [program, *flags],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        try:
            yield await _address(process, folder / f"{program.name}_{process.pid}.ports", log)
        finally:
            await asyncio.shield(asyncio.to_thread(_stop, process))


async def _address(process: "subprocess.Popen[bytes]", ports: Path, log: Path) -> str:
    """Wait until the server listens, and return its URL, which it writes into a file."""
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # not there, or half written
            return str(json.loads(ports.read_text(encoding="utf-8"))["nats"][0])
        await asyncio.sleep(0.01)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or ["it wrote nothing into its log"]
    raise ClusterError(
        f"nats-server did not start: {one_line(lines[-1]):.300}; or use a running server with --nats URL"
    )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
