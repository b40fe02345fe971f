"""What tests of devices share: nano.en's graphs, planned for devices that need not be here."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from streamer.whisper.device.compile import Compiled, Recipe, compile_stages, compiled_of
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.places import choose, places_of
from streamer.whisper.device.sizes import WHOLE_WINDOW
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.weights import huggingface
from tests.unit.whisper.support import NANO

HEADS = [(1, 0)]

Planned = Callable[..., Recipe]


@pytest.fixture(scope="session")
def planned() -> Planned:
    """Return what plans graphs, by default nano.en's, for devices of which these are there."""
    nano = ModelGraphs.of(huggingface.load(NANO), HEADS)

    def plan(
        device: str = "CPU",
        available: Sequence[str] = ("CPU",),
        graphs: ModelGraphs = nano,
        properties: Sequence[str] = (),
        **options: Any,  # noqa: ANN401 - those of Recipe
    ) -> Recipe:
        plans = plan_stages(DeviceSettings(device, properties=properties), available)
        return Recipe(graphs, plans, **{"windows_s": WHOLE_WINDOW, **options})

    return plan


def compile_all(recipe: Recipe) -> Compiled:
    """Compile all stages for their first devices."""
    places = places_of(recipe.plans)
    stages, errors = compile_stages(recipe, choose(recipe.plans, places), {})
    assert errors == {}
    return compiled_of(recipe, places, stages)
