"""What the streaming peers share: a server in an environment of its own, and a conversation for each client."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.constants import SAMPLE_RATE
from tools.benchmarks.peers.environment import PeerUnavailable, variables_of_peer
from tools.benchmarks.playing import Conversation, Screen, play
from tools.benchmarks.processes import Meter, Server, ServerFailure, free_port
from tools.benchmarks.published import PublishedModel
from tools.benchmarks.systems import warm_up
from tools.benchmarks.timeline import Timeline

START_TIMEOUT_S = 180.0


class Peer(ABC):
    """A peer's server; it reports neither what it drops nor how often its networks run."""

    def __init__(self, name: str, model: PublishedModel, variables: Mapping[str, str]) -> None:
        """`variables` are further ones of the server's environment."""
        self.name = name
        self._model = model
        self._variables = variables
        self._server: Server | None = None
        self._port = 0

    @abstractmethod
    def command(self, port: int) -> list[str]:
        """Install it, and return what starts its server. Raises PeerUnavailable where that fails."""

    @abstractmethod
    def conversation(self, port: int) -> "PeerConversation":
        """Return a new client's side of its protocol."""

    def start(self) -> None:
        """Install it, start its server and play it some speech. Raises PeerUnavailable where that fails."""
        self._port = free_port()
        command = self.command(self._port)
        try:
            self._server = Server(self.name, command, variables_of_peer(self._variables))
            self._server.wait_listening(self._port, START_TIMEOUT_S)
            self.stream("warm-up", warm_up())
        except ServerFailure as failure:
            self.stop()
            raise PeerUnavailable(str(failure)) from None

    def stream(self, recording: str, samples: NDArray[np.float32]) -> Timeline:
        """Play a recording. Raises ServerFailure where the server refuses it or goes away."""
        assert self._server is not None, "not started"
        conversation = self.conversation(self._port)
        with Meter(self._server) as meter:
            cost = asyncio.run(play(conversation, samples, meter))
        return Timeline(
            system=self.name,
            recording=recording,
            audio_s=len(samples) / SAMPLE_RATE,
            revisions=conversation.screen.revisions,
            cpu_s=cost.cpu_s,
            peak_rss_mb=cost.peak_rss_mb,
            energy_j=cost.energy_j,
        )

    def stop(self) -> None:
        """End the server; nothing happens where it does not run."""
        if self._server is not None:
            self._server.stop()
            self._server = None


class PeerConversation(Conversation, Protocol):
    """A client's side of a peer's protocol."""

    screen: Screen


def parse_answer(message: str | bytes, address: str) -> dict[str, Any]:
    """Return an answer's JSON object. Raises ServerFailure where it is none."""
    try:
        answer = json.loads(message)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ServerFailure(f"{address} sent {message!r:.80}: expected a JSON object")
    return answer
