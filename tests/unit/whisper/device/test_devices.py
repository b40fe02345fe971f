"""Which device each stage tries, with which properties, and what is reported if they are wrong."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import openvino as ov
import pytest

from streamer.errors import ConfigError, InferenceError, StreamerError
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
    remedy_for,
    why_it_cannot_compile,
)
from streamer.whisper.graphs.ports import STAGES

LATENCY = {"PERFORMANCE_HINT": "LATENCY"}
FULL_PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}
HALF_PRECISION = {"INFERENCE_PRECISION_HINT": "f16"}
STACK = "Exception from src/a.cpp:1:\nException from src/b.cpp:2:\nCheck 'x' failed at src/c.cpp:3:\n{}\n\n\n"


class FakeCore:
    """OpenVINO with devices and properties of a test's own; what is not there raises, as plugins do."""

    def __init__(self, properties: Mapping[str, Mapping[str, Any]]) -> None:
        self.available_devices = list(properties)
        self._properties = properties
        self.n_compiled = 0

    def get_property(self, device: str, name: str) -> Any:  # noqa: ANN401 - as OpenVINO
        try:
            return self._properties[device][name]
        except KeyError:
            raise RuntimeError(STACK.format(f"Unsupported property {name}")) from None

    def compile_model(self, model: object, device: str, properties: Mapping[str, object]) -> object:
        self.n_compiled += 1
        return model


def refusal(error: type[StreamerError], function: Any, *args: object) -> str:  # noqa: ANN401 - any function
    with pytest.raises(error) as caught:
        function(*args)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


def plan(*properties: str, device: str = "CPU", npu_through_cpu: bool = False) -> StagePlan:
    settings = DeviceSettings(device=device, properties=properties, npu_through_cpu=npu_through_cpu)
    return plan_stages(settings, ["CPU", "GPU", "NPU"])["decoder"]


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


def test_a_device_that_is_not_there_is_refused_with_what_is() -> None:
    message = refusal(ConfigError, choose_devices, "NPU", ["CPU", "GPU"])
    assert message.startswith("device NPU is not there, OpenVINO finds CPU, GPU: ")
    assert "--device" in message
    assert "streamer doctor" in message
    assert "OpenVINO finds none" in refusal(ConfigError, choose_devices, "AUTO", [])
    settings = DeviceSettings(decoder_device="GPU.7")
    message = refusal(ConfigError, plan_stages, settings, ["CPU", "GPU"])
    assert message.startswith("device GPU.7 for the decoder is not there")
    assert "model.decoder_device" in message


def test_encoder_and_decoder_have_their_own_device_or_that_of_all() -> None:
    settings = DeviceSettings(device="NPU", encoder_device="AUTO", decoder_device="CPU")
    plans = plan_stages(settings, ["CPU", "GPU", "NPU"])
    assert tuple(plans) == STAGES
    assert {stage: stage_plan.candidates for stage, stage_plan in plans.items()} == {
        "encoder": ("NPU", "GPU", "CPU"),
        "cross_kv": ("NPU", "GPU", "CPU"),
        "decoder": ("CPU",),
    }
    assert [plans[stage].wanted for stage in STAGES] == ["AUTO", "AUTO", "CPU"]
    plans = plan_stages(DeviceSettings(device="NPU"), ["CPU", "GPU", "NPU"])
    assert {stage_plan.candidates for stage_plan in plans.values()} == {("NPU",)}


def test_why_a_device_was_taken() -> None:
    auto = StagePlan("encoder", ("GPU.0", "CPU"), {})
    assert auto.why("GPU.0", ["CPU", "GPU.0"]) == "AUTO: no NPU here"
    assert auto.why("CPU", ["CPU", "GPU.0"]) == "AUTO: no NPU here, GPU does not work"
    assert auto.why("NPU", ["NPU"]) == "AUTO: the first choice"
    assert StagePlan("encoder", ("CPU",), {}, "CPU").why("CPU", ["CPU", "NPU"]) == "as asked for"
    assert "plugin" in plan(npu_through_cpu=True).why("NPU", ["CPU"])


def test_a_stages_properties_win_over_those_of_all() -> None:
    settings = DeviceSettings(
        properties=("NUM_STREAMS=1", "NPU_TURBO=NO"), encoder_properties=("NPU_TURBO=YES", "A=b=c")
    )
    plans = plan_stages(settings, ["NPU"])
    for stage in ("encoder", "cross_kv"):
        assert plans[stage].properties == {"NUM_STREAMS": "1", "NPU_TURBO": "YES", "A": "b=c"}
    assert plans["decoder"].properties == {"NUM_STREAMS": "1", "NPU_TURBO": "NO"}


@pytest.mark.parametrize("item", ["NPU_TURBO", "", "=1", "A B=1"])
def test_a_property_that_is_none_is_refused(item: str) -> None:
    settings = DeviceSettings(decoder_properties=(item,))
    message = refusal(ConfigError, plan_stages, settings, ["CPU"])
    assert message.startswith(f"model.decoder_properties has {item!r}: expected KEY=VALUE")


def test_each_device_gets_latency_and_a_precision_that_it_is_good_at() -> None:
    assert properties_for("CPU", plan()) == LATENCY | FULL_PRECISION
    assert properties_for("GPU.1", plan()) == LATENCY | HALF_PRECISION
    assert properties_for("GPU.1", plan(), precise=True) == LATENCY | FULL_PRECISION
    assert properties_for("NPU", plan()) == LATENCY
    assert properties_for("NPU.3720", plan()) == LATENCY


def test_with_integer_weights_a_processor_chooses_its_own_precision() -> None:
    groups = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 512}
    assert properties_for("CPU", StagePlan("encoder", ("CPU",), {}), 512) == LATENCY | groups
    never = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    assert properties_for("CPU", StagePlan("decoder", ("CPU",), {}), 512) == LATENCY | never | FULL_PRECISION
    assert properties_for("GPU", plan(), 512) == LATENCY | HALF_PRECISION
    assert properties_for("NPU", plan(), 512) == LATENCY
    through = StagePlan("decoder", ("NPU",), {}, npu_through_cpu=True)
    assert properties_for("NPU", through, 512) == properties_for("NPU", through)


def test_the_users_properties_win_over_ours() -> None:
    assert properties_for("GPU", plan("INFERENCE_PRECISION_HINT=f32")) == LATENCY | FULL_PRECISION
    own = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"}
    assert properties_for("CPU", plan("DYNAMIC_QUANTIZATION_GROUP_SIZE=64"), 512).items() >= own.items()


def test_a_property_goes_to_the_kind_of_device_that_it_names() -> None:
    some = plan("NPU_TURBO=YES", "GPU_QUEUE_PRIORITY=HIGH", "CPU_DENORMALS_OPTIMIZATION=YES", "NUM_STREAMS=1")
    own = {
        device: set(properties_for(device, some)) - {*LATENCY, *FULL_PRECISION} for device in ("NPU", "GPU.0", "CPU")
    }
    assert own == {
        "NPU": {"NPU_TURBO", "NUM_STREAMS"},
        "GPU.0": {"GPU_QUEUE_PRIORITY", "NUM_STREAMS"},
        "CPU": {"CPU_DENORMALS_OPTIMIZATION", "NUM_STREAMS"},
    }


def test_the_npus_plugin_can_have_the_cpu_compute() -> None:
    through = plan(device="GPU", npu_through_cpu=True)
    assert through.candidates == ("NPU",)
    # Neither an NPU is here nor what was asked for.
    assert plan_stages(DeviceSettings(device="GPU", npu_through_cpu=True), ["CPU"])["encoder"].candidates == ("NPU",)
    x = ov.opset13.parameter([1, 4])
    core = ov.Core()
    try:
        core.get_property("NPU", "SUPPORTED_PROPERTIES")
    except RuntimeError as error:
        pytest.skip(f"this openvino lacks the NPU plugin: {error}")
    core.compile_model(ov.Model([ov.opset13.relu(x)], [x], "relu"), "NPU", properties_for("NPU", through))


def test_good_properties_pass() -> None:
    core = ov.Core()
    check_properties(core, "CPU", plan())
    check_properties(core, "CPU", plan("NUM_STREAMS=1", "ENABLE_CPU_PINNING=NO", "NPU_TURBO=YES"))


def test_nothing_is_compiled_where_the_user_set_nothing() -> None:
    core = FakeCore({"CPU": {}})
    check_properties(core, "CPU", plan("NPU_TURBO=YES"))
    assert core.n_compiled == 0


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("NUM_STREAMSS=1", "CPU does not take NUM_STREAMSS='1' for the decoder ("),
        ("FULL_DEVICE_NAME=x", "CPU does not take FULL_DEVICE_NAME='x'"),
        ("NUM_STREAMS=many", "many; stoi"),
        ("PERFORMANCE_HINT=FAST", "LATENCY"),
        (f"ENABLE_CPU_PINNING={'x' * 5000}", "CPU does not take ENABLE_CPU_PINNING='xxx"),
        (f"{'X' * 5000}=1", "CPU does not take XXX"),
    ],
)
def test_a_property_that_openvino_refuses_is_one_clear_line(item: str, problem: str) -> None:
    message = refusal(ConfigError, check_properties, ov.Core(), "CPU", plan("NUM_STREAMS=1", "PERF_COUNT=NO", item))
    assert problem in message
    assert message.endswith("correct it in model.properties or model.decoder_properties")
    assert "Exception from" not in message


def test_a_cache_of_the_users_own_is_refused() -> None:
    assert "model.cache_dir" in refusal(ConfigError, check_properties, ov.Core(), "CPU", plan("CACHE_DIR=/tmp/x"))


def test_a_device_that_compiles_nothing_is_not_the_properties_fault() -> None:
    class Broken(FakeCore):
        def compile_model(self, model: object, device: str, properties: Mapping[str, object]) -> object:
            raise RuntimeError(STACK.format("no compiler"))

    check_properties(Broken({}), "NPU", plan("NPU_TURBO=YES"))


def test_devices_tell_what_they_can() -> None:
    core = FakeCore({"NPU": {"FULL_DEVICE_NAME": "Intel(R)  AI Boost\n", "NPU_DRIVER_VERSION": 1688}, "GPU.0": {}})
    npu = describe_device(core, "NPU")
    assert (npu.name, npu.full_name, npu.driver) == ("NPU", "Intel(R) AI Boost", "1688")
    silent = describe_device(core, "GPU.0")
    assert (silent.full_name, silent.driver) == ("", "")
    unknown = describe_device(core, "XPU")
    assert (unknown.full_name, unknown.driver) == ("", "")


def test_the_real_devices_are_listed() -> None:
    assert "CPU" in available_devices()
    cpu = next(device for device in list_devices() if device.name == "CPU")
    assert cpu.full_name
    assert cpu.driver == ""


def test_an_openvino_that_lists_nothing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @property
        def available_devices(self) -> list[str]:
            raise RuntimeError(STACK.format("plugins.xml is gone"))

    monkeypatch.setattr("streamer.whisper.device.devices.the_core", Broken)
    for function in (available_devices, list_devices):
        assert "(plugins.xml is gone)" in refusal(InferenceError, function)


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("L0 pfnCreate2 result: ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, code 0x78000003", "its driver has no compiler: "),
        ("Unsupported configuration key: NPU_MAX_TILES", "or one that is older than this OpenVINO"),
        ("Missing upper bound for one or more nodes", "an old one, which takes fixed sizes only"),
        ("another", "update its driver"),
    ],
)
def test_the_usual_messages_about_an_npu_are_explained(said: str, meaning: str) -> None:
    error = RuntimeError(STACK.format(said))
    for device in ("NPU", "NPU.3720"):
        assert meaning in remedy_for(device, error)
    assert remedy_for("GPU", error) == "update its driver"


def test_a_device_is_tried_with_a_small_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_it_cannot_compile("CPU") == ""

    class WithoutCompiler:
        def compile_model(self, *arguments: object) -> None:
            raise RuntimeError(STACK.format("Unsupported configuration key: NPU_MAX_TILES"))

    monkeypatch.setattr("streamer.whisper.device.devices.the_core", WithoutCompiler)
    reason = why_it_cannot_compile("NPU")
    assert reason.startswith("it compiles nothing (Unsupported configuration key: NPU_MAX_TILES): its driver has no")


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
        signal.signal(signal.SIGUSR1, lambda *_: print("heard"))
        print("ready", flush=True)
        input()
        """
    program, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, encoding="utf-8") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.communicate("\n")[0] == "heard\n"
    assert process.returncode == 0
