"""Which device each stage tries, with which properties, and what devices report."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import openvino as ov
import pytest

from streamer.errors import ConfigError, InferenceError
from streamer.whisper.device.devices import (
    DeviceSettings,
    StagePlan,
    available_devices,
    check_properties,
    choose_devices,
    describe_device,
    device_facts,
    list_devices,
    plan_stages,
    properties_for,
    why_it_cannot_compile,
    with_last_resorts,
)
from streamer.whisper.graphs.ports import STAGES

LATENCY = {"PERFORMANCE_HINT": "LATENCY"}
FULL = {"INFERENCE_PRECISION_HINT": "f32"}
HALF = {"INFERENCE_PRECISION_HINT": "f16"}
STACK = "Exception from src/a.cpp:1:\nException from src/b.cpp:2:\nCheck 'x' failed at src/c.cpp:3:\n{}\n\n\n"
ALL = ["CPU", "GPU", "NPU"]


class FakeCore:
    """OpenVINO with devices and properties of a test's own; what is not there raises, as plugins do."""

    def __init__(self, properties: Mapping[str, Mapping[str, Any]], *, compiles: bool = True) -> None:
        self._properties = properties
        self._compiles = compiles
        self.n_compiled = 0

    @property
    def available_devices(self) -> list[str]:
        if not self._properties:
            raise RuntimeError(STACK.format("plugins.xml is gone"))
        return list(self._properties)

    def get_property(self, device: str, name: str) -> Any:  # noqa: ANN401 - as OpenVINO
        try:
            return self._properties[device][name]
        except KeyError:
            raise RuntimeError(STACK.format(f"Unsupported property {name}")) from None

    def compile_model(self, model: object, device: str, properties: Mapping[str, object]) -> object:
        self.n_compiled += 1
        if not self._compiles:
            raise RuntimeError(STACK.format("Unsupported configuration key: NPU_MAX_TILES"))
        return model


def planned(*properties: str, stage: str = "decoder", **settings: Any) -> StagePlan:  # noqa: ANN401 - DeviceSettings
    return plan_stages(DeviceSettings(properties=properties, **{"device": "CPU", **settings}), ALL)[stage]


@pytest.mark.parametrize(
    ("wanted", "available", "expected"),
    [
        ("AUTO", ["CPU"], ["CPU"]),
        ("AUTO", ["CPU", "GPU.0", "GPU.1", "NPU"], ["NPU", "GPU.0", "GPU.1", "CPU"]),
        ("GPU", ["CPU", "GPU.0", "GPU.1"], ["GPU.0", "GPU.1"]),
        ("GPU.1", ["CPU", "GPU.0", "GPU.1"], ["GPU.1"]),
        ("GPU.0", ["CPU", "GPU"], ["GPU"]),
        ("CPU", ["CPU", "GPU"], ["CPU"]),
    ],
)
def test_the_devices_that_fit_the_best_first(wanted: str, available: list[str], expected: list[str]) -> None:
    assert choose_devices(wanted, available) == expected


def test_encoder_and_decoder_have_their_own_device_or_that_of_all() -> None:
    plans = plan_stages(DeviceSettings(device="NPU", encoder_device="AUTO", decoder_device="CPU"), ALL)
    auto = ("NPU", "GPU", "CPU")
    assert [plans[stage].candidates for stage in STAGES] == [auto, auto, ("CPU",)]
    assert [plans[stage].wanted for stage in STAGES] == ["AUTO", "AUTO", "CPU"]
    assert {plan.candidates for plan in plan_stages(DeviceSettings("NPU"), ALL).values()} == {("NPU",)}


def test_other_devices_follow_an_npu_alone() -> None:
    plans = with_last_resorts(plan_stages(DeviceSettings("NPU"), ALL), ALL)
    assert [plan.candidates for plan in plans.values()] == [*2 * [("NPU", "GPU", "CPU")], ("NPU", "CPU", "GPU")]
    plans = plan_stages(DeviceSettings("GPU"), ALL)
    assert with_last_resorts(plans, ALL) == plans


def test_while_an_npu_encodes_the_cpu_is_next_for_the_decoder() -> None:
    for settings, expected in (
        (DeviceSettings(), ("NPU", "CPU", "GPU")),
        (DeviceSettings(encoder_device="GPU"), ("NPU", "GPU", "CPU")),
        (DeviceSettings(decoder_device="GPU"), ("GPU",)),
    ):
        assert plan_stages(settings, ALL)["decoder"].candidates == expected
    plan = plan_stages(DeviceSettings(), ALL)["decoder"]
    assert [plan.why(device, ALL) for device in plan.candidates] == [
        "AUTO: the first choice",
        *2 * ["AUTO: NPU does not work"],
    ]


def test_a_stages_properties_win_over_those_of_all() -> None:
    settings: Any = {"encoder_properties": ("NPU_TURBO=YES", "A=b=c")}
    encoder, cross_kv, decoder = (
        planned("NUM_STREAMS=1", "NPU_TURBO=NO", stage=stage, **settings).properties for stage in STAGES
    )
    assert encoder == cross_kv == {"NUM_STREAMS": "1", "NPU_TURBO": "YES", "A": "b=c"}
    assert decoder == {"NUM_STREAMS": "1", "NPU_TURBO": "NO"}


GROUPS, NO_GROUPS = ({"DYNAMIC_QUANTIZATION_GROUP_SIZE": size} for size in (512, 0))


@pytest.mark.parametrize(
    ("device", "stage", "options", "expected"),
    [
        ("CPU", "decoder", {}, FULL),
        ("GPU.1", "decoder", {}, HALF),
        ("GPU.1", "decoder", {"precise": True}, FULL),
        ("NPU", "decoder", {}, {}),
        ("NPU.3720", "decoder", {}, {}),
        # With integer weights a processor chooses its own precision.
        ("CPU", "encoder", {"group_size": 512}, GROUPS),
        ("CPU", "decoder", {"group_size": 512}, NO_GROUPS | FULL),
        ("GPU", "decoder", {"group_size": 512}, HALF),
        ("NPU", "decoder", {"group_size": 512}, {}),
    ],
)
def test_each_device_gets_latency_and_a_precision_that_it_is_good_at(
    device: str, stage: str, options: dict[str, Any], expected: dict[str, object]
) -> None:
    assert properties_for(device, planned(stage=stage), **options) == LATENCY | expected


def test_the_users_properties_win_over_ours() -> None:
    assert properties_for("GPU", planned("INFERENCE_PRECISION_HINT=f32")) == LATENCY | FULL
    own = properties_for("CPU", planned("DYNAMIC_QUANTIZATION_GROUP_SIZE=64"), 512)
    assert own["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "64"


def test_a_property_goes_to_the_kind_of_device_that_it_names() -> None:
    names = {"NPU": "NPU_TURBO", "GPU.0": "GPU_QUEUE_PRIORITY", "CPU": "CPU_DENORMALS_OPTIMIZATION"}
    some = planned(*(f"{name}=1" for name in names.values()), "NUM_STREAMS=1")
    for device, name in names.items():
        assert set(properties_for(device, some)) - {*LATENCY, *FULL} == {name, "NUM_STREAMS"}


@pytest.mark.usefixtures("npu_plugin")
def test_the_npus_plugin_can_have_the_cpu_compute() -> None:
    through = planned(device="GPU", npu_through_cpu=True)
    assert through.candidates == ("NPU",)
    assert properties_for("NPU", through, 512) == properties_for("NPU", through)
    x = ov.opset13.parameter([1, 4])
    ov.Core().compile_model(ov.Model([ov.opset13.relu(x)], [x], "relu"), "NPU", properties_for("NPU", through))


@pytest.mark.parametrize(
    "item",
    [
        *("NUM_STREAMSS=1", "FULL_DEVICE_NAME=x", "NUM_STREAMS=many", "PERFORMANCE_HINT=FAST", "CACHE_DIR=/tmp/x"),
        *(f"ENABLE_CPU_PINNING={'x' * 5000}", f"{'X' * 5000}=1"),
    ],
)
def test_a_property_that_openvino_refuses_is_one_line(item: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_properties(ov.Core(), "CPU", planned("NUM_STREAMS=1", "PERF_COUNT=NO", item))
    assert "\n" not in str(caught.value)
    assert "Exception from" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_a_device_that_compiles_nothing_is_not_the_properties_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FakeCore({"NPU": {}}, compiles=False)
    check_properties(broken, "NPU", planned("NPU_TURBO=YES"))
    assert why_it_cannot_compile("CPU") == ""
    monkeypatch.setattr("streamer.whisper.device.devices.the_core", lambda: broken)
    assert "NPU_MAX_TILES" in why_it_cannot_compile("NPU")


def test_devices_report_what_they_can() -> None:
    core = FakeCore({"NPU": {"FULL_DEVICE_NAME": "Intel(R)  AI Boost\n", "NPU_DRIVER_VERSION": 1688}, "GPU.0": {}})
    npu = describe_device(core, "NPU")
    assert (npu.name, npu.full_name, npu.driver) == ("NPU", "Intel(R) AI Boost", "1688")
    for silent in ("GPU.0", "XPU"):
        assert (describe_device(core, silent).full_name, describe_device(core, silent).driver) == ("", "")


def test_an_openvino_that_lists_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.whisper.device.devices.the_core", lambda: FakeCore({}))
    for function in (available_devices, list_devices):
        with pytest.raises(InferenceError):
            function()


def test_each_device_and_driver_has_facts_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = {"NPU": {"FULL_DEVICE_NAME": "one", "NPU_DRIVER_VERSION": 1}, "GPU": {}, "CPU": {}}
    other_driver = {"NPU": {"FULL_DEVICE_NAME": "one", "NPU_DRIVER_VERSION": 2}}
    other_device = {"NPU": {"FULL_DEVICE_NAME": "two", "NPU_DRIVER_VERSION": 1}}
    found = [device_facts(FakeCore(devices), device) for device in devices]
    found += [device_facts(FakeCore(other), "NPU") for other in (other_driver, other_device)]
    monkeypatch.setattr(ov, "get_version", lambda: "2099.1")
    found.append(device_facts(FakeCore(devices), "NPU"))
    assert len({str(facts) for facts in found}) == len(found)
    assert device_facts(FakeCore(devices), "NPU") == found[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="no stacks for signals on Windows")
def test_a_signal_after_devices_were_renewed_in_another_thread_ends_nothing() -> None:
    # OpenVINO's CPU plugin gives its thread a stack for signals, and unmaps it wherever it is released.
    code = """if True:
        import gc, signal, threading
        from streamer.whisper.device.devices import available_devices, the_core
        available_devices()
        thread = threading.Thread(target=lambda: (the_core(renewed=True), gc.collect()))
        thread.start()
        thread.join()
        signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
        print("ready", flush=True)
        input()
        """
    program, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, encoding="utf-8") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.communicate("\n")[0] == "handled\n"
    assert process.returncode == 0
