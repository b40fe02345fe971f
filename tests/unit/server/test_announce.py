import asyncio
import sys

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from streamer.server.sockets import reachable
from streamer.server.wyoming import announce
from tests.wire.support import WAIT_S

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


def test_a_wildcard_stands_for_the_addresses_that_others_reach() -> None:
    assert reachable("192.0.2.1") == ["192.0.2.1"]
    for host, mark in (("0.0.0.0", "."), ("::", ":")):
        assert all(
            mark in address and not address.startswith("127.") and address != "::1" for address in reachable(host)
        )


async def test_without_the_package_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    await announce(KIND, "127.0.0.1", 10_300)
    (record,) = caplog.records
    assert record.message == (
        "port 10300 is not announced: zeroconf is not installed: expected for mDNS; pip install"
        ' "streamer-captions[discovery]"'
    )
