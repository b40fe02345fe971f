"""Where stages compute, and where next when they cannot there."""

import pytest

from streamer.errors import InferenceError
from streamer.whisper.device.devices import DeviceSettings, StagePlan, plan_stages, until_npu, with_last_resorts
from streamer.whisper.device.places import Place, Places, choose, give_up, places_of, with_spares

ALL = ["CPU", "GPU", "NPU"]
WRONG = InferenceError("it fails the checks", "decoder")


def planned(device: str = "AUTO", available: list[str] = ALL, **settings: object) -> dict[str, StagePlan]:
    return plan_stages(DeviceSettings(device, **settings), available)  # type: ignore[arg-type]


def devices_of(plans: dict[str, StagePlan], places: Places) -> tuple[str, str, str]:
    chosen = choose(plans, places)
    return (chosen["encoder"].device, chosen["cross_kv"].device, chosen["decoder"].device)


@pytest.mark.parametrize(
    ("hopeless", "properties", "expected"),
    [
        (False, (), [Place("GPU"), Place("GPU", precise=True), Place("CPU")]),
        (True, (), [Place("GPU"), Place("CPU")]),
        (False, ("INFERENCE_PRECISION_HINT=f16",), [Place("GPU"), Place("CPU")]),
    ],
)
def test_a_gpu_gives_up_half_precision_before_it_is_given_up_unless_that_is_hopeless(
    hopeless: bool, properties: tuple[str, ...], expected: list[Place]
) -> None:
    plans = planned(available=["CPU", "GPU"], properties=properties)
    error = InferenceError("it fails the checks", "decoder", hopeless=hopeless)
    places, found = places_of(plans), [choose(plans, places_of(plans))["decoder"]]
    while found[-1].device != "CPU":
        places = give_up(plans, places, {"decoder": error})
        found.append(choose(plans, places)["decoder"])
    assert found == expected
    assert devices_of(plans, places) == ("GPU", "GPU", "CPU")
    with pytest.raises(InferenceError):
        give_up(plans, places, {"decoder": error})


def test_a_decoder_that_the_npu_refuses_is_on_the_cpu_while_the_npu_encodes() -> None:
    plans = planned()
    places = give_up(plans, places_of(plans), {"decoder": WRONG})
    assert devices_of(plans, places) == ("NPU", "NPU", "CPU")
    # It does not stay there when the NPU does not encode either.
    without = give_up(plans, places, dict.fromkeys(("encoder", "cross_kv"), WRONG))
    assert devices_of(plans, without) == ("GPU", "GPU", "GPU")
    # A GPU is what is left when the CPU fails, too.
    assert devices_of(plans, give_up(plans, places, {"decoder": WRONG})) == ("NPU", "NPU", "GPU")


def test_a_gpu_that_was_asked_for_decodes_beside_an_npu() -> None:
    plans = planned(encoder_device="NPU", decoder_device="GPU")
    places = with_spares(plans, places_of(plans), ALL)
    assert devices_of(plans, places) == ("NPU", "NPU", "GPU")


def test_all_that_the_npu_refuses_at_once_goes_to_the_gpu(caplog: pytest.LogCaptureFixture) -> None:
    plans = planned()
    places = give_up(plans, places_of(plans), dict.fromkeys(plans, WRONG))
    assert devices_of(plans, places) == ("GPU", "GPU", "GPU")
    assert len(caplog.records) == 1, "a line for all"


def test_until_an_npu_is_compiled_the_best_of_the_others_computes() -> None:
    plans = until_npu(with_last_resorts(planned("NPU"), ALL))
    assert devices_of(plans, places_of(plans)) == ("GPU", "GPU", "GPU")


def test_devices_that_were_not_planned_for_are_the_last_resort() -> None:
    plans = planned("GPU", encoder_device="AUTO")
    places = with_spares(plans, places_of(plans), ALL)
    assert [place.device for place in places["decoder"]] == ["GPU", "GPU", "NPU", "CPU"]
    assert with_spares(plans, places, ALL) == places
    through = planned(npu_through_cpu=True)
    assert with_spares(through, places_of(through), ALL) == places_of(through)
