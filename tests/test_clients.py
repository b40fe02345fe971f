"""Who is let in to send audio, and who is told to come back."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamer.clients import ClientStreams
from streamer.config import ServerSettings, Settings
from streamer.errors import BusyError
from streamer.server.interfaces import StreamStart
from streamer.stream.engine import Engine
from streamer.whisper.model import WhisperModel
from tests.stream.machine import Machine

# What a session asks of its model.
MODEL = cast(
    "WhisperModel",
    SimpleNamespace(
        name="model",
        dims=SimpleNamespace(n_mels=80),
        runtime=SimpleNamespace(devices={}),
        generation=SimpleNamespace(prompted=False),
        tokenizer=SimpleNamespace(choose_language=lambda language, task: language),
    ),
)


@pytest.fixture
def machine() -> Machine:
    """A machine that keeps four sessions in real time."""
    return Machine(encode_s=0.1, decode_s=0.4)


def streams_of(machine: Machine, max_streams: int = 64) -> ClientStreams:
    streams = ClientStreams(Settings(server=ServerSettings(max_streams=max_streams)))
    streams.serve_with(cast("Engine[Any]", machine.engine), MODEL)
    return streams


def test_nobody_is_let_in_before_the_model_is_there() -> None:
    with pytest.raises(BusyError, match="still being loaded"):
        ClientStreams(Settings()).open(StreamStart())


def test_a_client_that_could_not_be_kept_in_real_time_is_refused_until_another_leaves(machine: Machine) -> None:
    machine.talker(60.0, pause=0.0)
    machine.run_until(5.0)
    streams = streams_of(machine)
    clients = [streams.open(StreamStart()) for _ in range(3)]
    with pytest.raises(BusyError) as refusal:
        streams.open(StreamStart())
    assert str(refusal.value) == (
        "this machine keeps 4 sessions in real time, and they are taken: try again later, or raise stream.max_pace_s"
    )
    clients[0].abandon()
    streams.open(StreamStart())


def test_the_number_of_clients_has_a_limit_also_where_there_is_time(machine: Machine) -> None:
    streams = streams_of(machine, max_streams=2)
    for _ in range(2):
        streams.open(StreamStart())
    with pytest.raises(BusyError, match=r"all 2 places .* server\.max_streams"):
        streams.open(StreamStart())


def test_clients_may_be_as_many_as_like_where_nothing_is_known_yet(machine: Machine) -> None:
    streams = streams_of(machine)
    for _ in range(20):
        streams.open(StreamStart())
    assert machine.engine.n_sessions == 20
