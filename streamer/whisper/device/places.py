"""Where each stage of a model computes, and where next if it cannot there.

A stage tries its devices one after another, the best first. A GPU computes in half precision, and in full precision if
that fails the checks.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamer.errors import InferenceError
from streamer.whisper.device.devices import DEVICE_ORDER, StagePlan, has_choice, kind_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A device, and whether it is to compute in full precision although it would choose half."""

    device: str
    precise: bool = False

    def __str__(self) -> str:
        return f"{self.device} in full precision" if self.precise else self.device


# By stage, where it may still be tried, the best first.
Places = Mapping[str, tuple[Place, ...]]


def places_of(plans: Mapping[str, StagePlan]) -> Places:
    """Return where stages are tried that have not failed anywhere yet."""
    return {
        stage: tuple(
            Place(device, precise)
            for device in plan.candidates
            for precise in ((False, True) if has_choice(device, plan) else (False,))
        )
        for stage, plan in plans.items()
    }


def choose(plans: Mapping[str, StagePlan], places: Places) -> dict[str, Place]:
    """Return where each stage computes: at the best place that is left to it.

    What is best for a decoder while an NPU encodes (see `plan_stages`) is not when the NPU does not.
    """
    chosen = {stage: left[0] for stage, left in places.items()}
    if plans["decoder"].is_for_npu and kind_of(chosen["encoder"].device) != "NPU":
        chosen["decoder"] = min(places["decoder"], key=lambda place: DEVICE_ORDER.index(kind_of(place.device)))
    return chosen


def give_up(plans: Mapping[str, StagePlan], places: Places, errors: Mapping[str, InferenceError]) -> Places:
    """Return what is left when stages have failed where they were.

    errors : by stage; a hopeless one says that the device is not to be tried in full precision either

    Raises the error of a stage to which nothing is left.
    """
    before = choose(plans, places)
    left = dict(places)
    for stage, error in errors.items():
        failed = before[stage]
        left[stage] = tuple(
            place
            for place in places[stage]
            if place != failed and not (error.hopeless and place.device == failed.device)
        )
        if not left[stage]:
            raise error
    after = choose(plans, left)
    moved: dict[tuple[str, Place], list[str]] = {}
    for stage in errors:
        moved.setdefault((before[stage].device, after[stage]), []).append(stage)
    for (_, place), stages in moved.items():
        # What is wrong with a device is the same for all of its stages: one line for all.
        logger.warning("%s; trying %s for %s", errors[stages[0]], place, ", ".join(stages))
    return left


def with_spares(plans: Mapping[str, StagePlan], places: Places, available: Sequence[str]) -> Places:
    """Return places with all other devices there are as the last resort, after a device was lost."""
    spares = sorted(available, key=lambda device: DEVICE_ORDER.index(kind_of(device)))
    more = dict(places)
    for stage, left in places.items():
        known = {*plans[stage].candidates, *(place.device for place in left)}
        if not plans[stage].npu_through_cpu:
            more[stage] = (*left, *(Place(device) for device in spares if device not in known))
    return more
