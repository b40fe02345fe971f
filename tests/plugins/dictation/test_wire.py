"""`streamer type` beside a server: what is typed from when to when, and a second process that begins and ends it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from streamer.client.connection import DaemonAddress, parse_address
from streamer.client.control import command
from streamer.errors import PeerError
from streamer.events import Flushed
from streamer.plugins.dictation import command as module
from streamer.plugins.dictation.dictation import Dictation
from streamer.plugins.instance import ask, reachable
from streamer.server.certificates import fingerprint_of
from streamer.server.tls import certificate_path
from streamer.settings.table import ServerSettings
from tests.daemon import Outcome, environment
from tests.stand_ins import StandIns
from tests.waiting import until
from tests.wire.harness import Running, added, numbered_final, numbered_partial, opened_log, serving, within

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tools are Linux's")

FLUSHED = Flushed(time=0.0)

Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
def tools(tmp_path: Path) -> StandIns:
    found = StandIns(tmp_path / "bin")
    found.add("wtype")
    return found


@pytest.fixture
async def start(tmp_path: Path, tools: StandIns) -> AsyncIterator[Start]:
    """Start `streamer type` on a Wayland desktop; what is left is ended."""
    started = []
    hidden = ("DISPLAY", "XDG_SESSION_ID")
    environ = {name: value for name, value in environment().items() if name not in hidden}
    environ |= {"PATH": str(tools.folder), "WAYLAND_DISPLAY": "wayland-9", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    async def run(*arguments: str, **more: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "streamer", "type", *arguments)
        process = await asyncio.create_subprocess_exec(*command, env={**environ, **more}, stdout=pipe, stderr=pipe)
        started.append(process)
        return process

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(process: asyncio.subprocess.Process) -> Outcome:
    stdout, stderr = await within(process.communicate())
    assert process.returncode is not None
    return Outcome(process.returncode, stdout.decode(), stderr.decode())


async def flushed(server: Running, n_times: int) -> None:
    """Answer a flush as the daemon does, once there were so many."""
    await until(lambda: server.own.commands == ["flush"] * n_times)
    server.log.append(FLUSHED)


@pytest.mark.slow
async def test_typing_begins_and_ends_where_it_is_asked_to(tools: StandIns, start: Start) -> None:
    async with serving() as server:
        server.log.append(numbered_final(1, "Before."))
        typing = await start("--daemon", server.url)
        await flushed(server, 1)
        server.log.append(numbered_final(2, "One."))
        server.log.append(numbered_partial(3, "Two is not", 3))
        await until(lambda: tools.input("wtype") == "One. Two")

        toggled = await ended(await start("--toggle"))
        assert toggled == Outcome(0, "", "streamer: typing ends\n")
        await until(lambda: server.own.commands == ["flush"] * 2)
        server.log.append(numbered_final(3, "Two is decoded late."))
        server.log.append(FLUSHED)
        server.log.append(numbered_final(4, "Not typed."))

        assert (await ended(await start("--toggle"))).stderr == "streamer: typing begins\n"
        await flushed(server, 3)
        server.log.append(numbered_final(5, "Again\nand\x03 again."))
        server.log.close()
        assert (await ended(typing)).exit_code == 0
        assert tools.input("wtype") == "One. Two is decoded late. Again and  again."


@pytest.mark.slow
async def test_the_first_toggle_begins_and_another_process_beside_it_is_refused(tmp_path: Path, start: Start) -> None:
    async with serving() as server:
        first = await start("--daemon", server.url, "--toggle")
        await flushed(server, 1)
        refused = await ended(await start("--daemon", server.url))
        assert refused.exit_code == 2
        # Nor does a web page, which knows no secret, begin or end anything.
        port, _ = (tmp_path / "cache" / "streamer" / "type" / "port").read_text(encoding="ascii").split()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"POST / HTTP/1.1\r\n\r\n")
        assert await within(reader.read()) == b""
        writer.close()
        assert server.own.commands == ["flush"]
        first.terminate()
        assert (await ended(first)).exit_code == 0
        # Nothing of it is left that would be in the way.
        await start("--daemon", server.url)
        await flushed(server, 2)


@pytest.mark.slow
async def test_finals_are_typed_whole(tools: StandIns, start: Start) -> None:
    async with serving() as server:
        typing = await start("--daemon", server.url, "--finals")
        await flushed(server, 1)
        server.log.append(numbered_partial(1, "One two", 7))
        server.log.append(numbered_final(1, "One two three."))
        await until(lambda: tools.input("wtype") == "One two three.")
        assert tools.arguments("wtype") == ["-"]
        server.log.append(numbered_final(2, "ab " * 300))  # in pieces, for each of which a tool has the time
        server.log.close()
        await ended(typing)
    assert tools.input("wtype") == "One two three. " + "ab " * 300
    assert len(tools.arguments("wtype")) == 6


@pytest.mark.slow
async def test_text_that_cannot_be_typed_is_printed_and_a_lost_daemon_is_waited_for(
    tools: StandIns, start: Start
) -> None:
    async with serving() as server:
        typing = await start("--daemon", server.url)
        await flushed(server, 1)
        tools.fail("wtype", "no focus")
        server.log.append(numbered_final(1, "One."))
        server.log.append(numbered_final(2, "Two."))
        port = server.port
        assert typing.stdout is not None
        assert await within(typing.stdout.readexactly(9)) == b"One. Two."
    async with serving(opened_log("s2"), port=port) as server:
        await until(lambda: len(server.server._context.sockets) > 0)
        server.log.append(numbered_final(1, "Three."))
        server.log.close()
        done = await ended(typing)
    assert (done.exit_code, done.stdout) == (0, " Three.\n")
    assert len(done.stderr.splitlines()) == 4  # typing; it cannot; the daemon went away, and is back


@pytest.mark.slow
async def test_a_token_that_may_only_read_types_and_says_what_is_missing(
    tmp_path: Path, tools: StandIns, start: Start
) -> None:
    secret = added(tmp_path / "tokens", "reader", scopes={"read"})
    async with serving(token_file=str(tmp_path / "tokens")) as server:
        typing = await start("--daemon", server.url, STREAMER_TOKEN=secret)
        assert typing.stderr is not None
        for _ in range(2):
            await within(typing.stderr.readline())
        server.log.append(numbered_final(1, "One."))
        server.log.close()
        await ended(typing)
    assert tools.input("wtype") == "One."


async def test_a_command_goes_over_tls_and_unix_sockets_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    async with serving(unix_socket=str(tmp_path / "s")) as server:
        await command(parse_address(f"unix://{tmp_path / 's'}"), "flush")
        assert server.own.commands == ["flush"]
    async with serving(tls="self-signed") as server:
        known = fingerprint_of(certificate_path(ServerSettings(tls="self-signed")))
        place = f"127.0.0.1:{server.port}"
        await command(parse_address(place, fingerprint=known), "flush")
        refused = [parse_address(place, fingerprint="0" * 64), parse_address(f"wss://{place}")]
        for address in (*refused, parse_address(f"unix://{tmp_path / 'nothing'}")):
            with pytest.raises(PeerError):
                await command(address, "flush")
        assert server.own.commands == ["flush"]


async def test_two_toggles_count_while_a_daemon_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on, sent = asyncio.Event(), list[bool]()

    async def slow(address: DaemonAddress, name: str) -> None:
        sent.append(switch.on)
        await going_on.wait()

    async def write(text: str) -> None:
        raise AssertionError(text)

    monkeypatch.setattr(module, "command", slow)
    dictation = Dictation(finals=True)
    switch = module._Switch(parse_address("localhost"), dictation, write)
    async with reachable(tmp_path / "port", switch.toggle):
        answers = [await asyncio.to_thread(ask, tmp_path / "port", "toggle", "streamer type") for _ in range(3)]
        going_on.set()
        await until(lambda: len(sent) == 3)
    assert answers == ["begins", "ends", "begins"]
    one, no = numbered_final(1, "One."), numbered_final(2, "No.")
    text = [dictation.handle(event) for event in (FLUSHED, one, FLUSHED, no, FLUSHED)]
    assert [*text, dictation.handle(numbered_final(3, "Two."))] == ["", "One.", " ", "", "", "Two."]


async def test_a_held_key_types_from_its_press_to_its_release() -> None:
    held, done = iter([False, True, True, False, True]), asyncio.Event()

    def is_down() -> bool:
        state = next(held, None)
        if state is None:
            done.set()
        return state is not False

    async with serving() as server:
        dictation = Dictation(finals=True)
        switch = module._Switch(parse_address(server.url), dictation, lambda text: asyncio.sleep(0))
        following = asyncio.create_task(switch.follow(is_down))
        await within(done.wait())
        following.cancel()
        assert server.own.commands == ["flush"] * 3
        assert switch.on
    said = [event for n in range(3) for event in (FLUSHED, numbered_final(n, f"{n}."))]
    assert "".join(dictation.handle(event) for event in said) == "0. 2."
