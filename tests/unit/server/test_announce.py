"""mDNS: the service of Wyoming is found where it listens."""

import asyncio
import sys

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from streamer.server.wyoming import announce
from tests.waiting import WAIT_S

KIND = "_streamer-test._tcp.local."


async def test_a_service_is_found_while_it_is_announced() -> None:
    try:
        listener = AsyncZeroconf(interfaces=["127.0.0.1"])
    except OSError as error:
        pytest.skip(f"needs multicast on loopback: {error}")
    announcing = asyncio.create_task(announce(KIND, "127.0.0.1", 10_300))
    found: AsyncServiceInfo | None = None
    async with asyncio.timeout(WAIT_S):
        while found is None:
            await asyncio.sleep(0.1)
            names = [name for name in listener.zeroconf.cache.names() if name.endswith(f".{KIND}")]
            found = await listener.async_get_service_info(KIND, names[0]) if names else None
    assert (found.parsed_addresses(), found.port) == (["127.0.0.1"], 10_300)
    assert found.name.startswith("streamer-")
    announcing.cancel()
    await asyncio.gather(announcing, return_exceptions=True)
    await listener.async_close()


async def test_without_the_package_one_line_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    await announce(KIND, "127.0.0.1", 10_300)
    (record,) = caplog.records
    assert "[discovery]" in record.message
