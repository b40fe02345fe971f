"""What tests of devices share: nano.en's graphs, planned for devices that need not be here."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.weights import huggingface
from tests.unit.whisper.support import NANO

HEADS = [(1, 0)]

Planned = Callable[..., Compilation]


@pytest.fixture(scope="session")
def planned() -> Planned:
    """Return what plans a compilation: its graphs, by default nano.en's, for devices of which these are there."""
    nano = ModelGraphs.of(huggingface.load(NANO), HEADS)

    def plan(
        device: str = "CPU",
        available: Sequence[str] = ("CPU",),
        graphs: ModelGraphs = nano,
        properties: Sequence[str] = (),
        **options: Any,  # noqa: ANN401 - those of Compilation
    ) -> Compilation:
        return Compilation(graphs, plan_stages(DeviceSettings(device, properties=properties), available), **options)

    return plan
