"""NATS servers and a stage for the cluster's tests."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.plugins.cluster.stage import SPEECH, SimulatedSession, Stage
from tests.plugins.cluster.support import NatsCluster, NatsServer, running


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server's URL; the tests of a module share it: sessions of theirs have names of their own."""
    with running(NatsServer(tmp_path_factory.mktemp("nats"))) as server:
        yield server.url


@pytest.fixture
def nats_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three servers, of which a test may kill some."""
    with running(NatsCluster(tmp_path_factory.mktemp("nats"))) as cluster:
        yield cluster


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """A cluster in this process, on which SPEECH or the test's parameter is said."""
    monkeypatch.setattr("streamer.daemon.sessions.LiveSession", SimulatedSession)
    monkeypatch.setattr("streamer.session.session.STALL_S", 600.0)  # a test that waits is not a client that is silent
    async with contextlib.AsyncExitStack() as stack:
        stage = Stage(stack, getattr(request, "param", SPEECH))
        yield stage
        assert stage.wire.troubles == []  # no handler has raised
