"""NATS servers for the cluster's tests."""

from collections.abc import Iterator

import pytest

from tests.plugins.cluster.support import NatsCluster, NatsServer


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that the tests of a module share: sessions of theirs have names of their own."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def nats(nats_server: NatsServer) -> str:
    """The URL of the module's server."""
    return nats_server.url


@pytest.fixture
def nats_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three servers, of which a test may kill some."""
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"))
    cluster.start()
    yield cluster
    cluster.kill()
