"""Descriptors: the limit is raised, and to have none left is one line."""

import asyncio
import logging
import socket
import subprocess
import sys

import pytest

from streamer.descriptors import LoopErrors
from tests.waiting import WAIT_S

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")

# A server that never lets go of a connection, with 40 descriptors. It prints its port, then its limit at the end.
SERVER = """
import asyncio, resource, sys
from streamer import descriptors, log
from streamer.settings.table import LogSettings

async def main():
    asyncio.get_running_loop().set_exception_handler(descriptors.LoopErrors())
    kept = []
    server = await asyncio.start_server(lambda reader, writer: kept.append(writer), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)

log.configure(LogSettings())
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 40))
descriptors.raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
asyncio.run(main())
log.close()
"""


@posix_only
def test_the_limit_is_raised_and_reaching_it_is_one_line() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert int(process.stdout.readline()) == 40
        port = int(process.stdout.readline())
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        line = process.stderr.readline().decode()
        process.stdin.close()
        rest = process.stderr.read().decode()
        for client in clients:
            client.close()
        assert process.wait(WAIT_S) == 0
    assert "new connections wait" in line
    assert "ulimit -n" in line
    assert rest == ""


async def test_other_errors_are_told_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    errors = LoopErrors()
    with caplog.at_level(logging.ERROR):
        errors(loop, {"message": "a task failed", "exception": OSError(24, "Too many open files")})
        errors(loop, {"message": "a callback failed", "exception": ValueError("x")})
    assert [record.name for record in caplog.records] == ["asyncio", "asyncio"]
