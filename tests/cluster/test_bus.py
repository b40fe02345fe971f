"""A machine's connection to NATS."""

import pytest

from streamer.cluster.bus import Reply
from streamer.cluster.messages import Leave, Opened, Refused, decoded
from streamer.errors import ClusterError, ClusterMessageError
from tests.cluster.support import bus_on, until


async def test_messages_arrive_in_order_and_a_handler_that_fails_ends_nothing(
    nats: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    async def handle(data: bytes, reply: Reply) -> None:
        heard.append(decoded(data, Leave).epoch)
        if heard[-1] == 2:
            raise RuntimeError("a fault of the handler")

    async with bus_on(nats) as bus:
        await bus.subscribe("streamer.worker.a", handle)
        for epoch in range(100):
            await bus.publish("streamer.worker.a", Leave(session="s", epoch=epoch))
        await until(lambda: len(heard) == 100)
    assert heard == list(range(100))
    assert "a fault of the handler" in caplog.text


async def test_requests_are_answered_or_fail_in_one_line(nats: str) -> None:
    async def handle(data: bytes, reply: Reply) -> None:
        if decoded(data, Leave).epoch:
            await reply(Refused(code="busy", message="full"))

    async with bus_on(nats, name="a") as asks, bus_on(nats, name="b") as answers:
        await answers.subscribe("streamer.worker.b", handle)
        leave = Leave(session="s", epoch=1)
        refused = await asks.request("streamer.worker.b", leave, Opened | Refused, timeout_s=5)
        assert refused == Refused(code="busy", message="full")
        with pytest.raises(ClusterMessageError):
            await asks.request("streamer.worker.b", leave, Opened, timeout_s=5)
        with pytest.raises(ClusterError, match=r"streamer\.worker\.c cannot be asked: nobody is there"):
            await asks.request("streamer.worker.c", leave, Opened, timeout_s=5)
        with pytest.raises(ClusterError, match=r"did not answer within 0\.1 s"):
            await asks.request("streamer.worker.b", Leave(session="s", epoch=0), Opened, timeout_s=0.1)
