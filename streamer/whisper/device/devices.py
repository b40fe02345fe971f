"""Inference devices: which there are, which of them each stage tries, and with which OpenVINO properties.

Names of devices and properties are OpenVINO's: https://docs.openvino.ai, "Inference Devices and Modes".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import openvino as ov
from openvino import opset13

from streamer.errors import ConfigError, InferenceError
from streamer.whisper.graphs.ports import STAGES
from streamer.whisper.ir import first_line

# What AUTO prefers: the idle accelerator first, the processor that always works last.
DEVICE_ORDER = ("NPU", "GPU", "CPU")

# The same of a decoder while an NPU encodes. To encode is most of the work: no third device is woken up for the rest.
_BESIDE_NPU = ("NPU", "CPU", "GPU")

# The same of all stages until an NPU's graphs are compiled.
_UNTIL_NPU = ("GPU", "CPU", "NPU")

# Reduced precision would change tokens between machines. An NPU computes in half precision and takes no such hint.
_FULL_PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}

# What a GPU's matrix units compute in. Its results have to pass the checks, else it computes in full precision.
_HALF_PRECISION = {"INFERENCE_PRECISION_HINT": "f16"}

# The NPU plugin without an NPU: it delegates to the CPU (docs/design.md). By default it passes tensors from one
# partition to the next in half precision, which an NPU computes in anyway; a check on a CPU wants it exact.
_NPU_THROUGH_CPU = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_F16IC": "NO", **_FULL_PRECISION}

# What OpenVINO's messages about an NPU mean, and what to do.
_NPU_MESSAGES = {
    "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE": "its driver has no compiler: `streamer doctor` says what to install",
    "Unsupported configuration key: NPU_MAX_TILES": (
        "its driver has no compiler, or an older one than this OpenVINO: `streamer doctor` says what to install"
    ),
    "Missing upper bound for one or more nodes": (
        "its compiler is old and takes fixed sizes only: update driver and OpenVINO"
    ),
}

# Whose settings a stage follows: keys and values are made of what the encoder computes.
SETTINGS_OF = {"encoder": "encoder", "cross_kv": "encoder", "decoder": "decoder"}

# What `the_core` has made, the newest last.
_cores: list[ov.Core] = []


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """An inference device; its full name and driver are empty if it does not report them."""

    name: str  # as OpenVINO calls it, such as GPU.1
    full_name: str
    driver: str

    @property
    def about(self) -> str:
        """Its full name and driver, as a person reads them."""
        return (self.full_name or "unnamed") + (self.driver and f", driver {self.driver}")


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """Devices of the stages. Properties are texts such as `NPU_TURBO=YES`."""

    # AUTO, NPU, GPU, CPU or a device's full name.
    device: str = "AUTO"

    # The same of the encoder with its keys and values, and of the decoder; empty: as `device`.
    encoder_device: str = ""
    decoder_device: str = ""

    # OpenVINO properties of all stages, and more of these two, which win.
    properties: Sequence[str] = ()
    encoder_properties: Sequence[str] = ()
    decoder_properties: Sequence[str] = ()

    # Everything goes through the NPU plugin, which has the CPU compute.
    npu_through_cpu: bool = False


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Which devices a stage tries, the best first, and the user's properties for them."""

    stage: str
    candidates: tuple[str, ...]
    properties: Mapping[str, object]

    # What was asked for: AUTO, a kind of device or a full name.
    wanted: str = "AUTO"
    npu_through_cpu: bool = False

    # Whether an NPU takes over when its graphs are compiled.
    until_npu: bool = False

    @property
    def is_for_npu(self) -> bool:
        return kind_of(self.candidates[0]) == "NPU" and not self.npu_through_cpu

    def why(self, device: str, available: Sequence[str]) -> str:
        """Return why a device was taken: for AUTO, what is wrong with those that it prefers."""
        if self.npu_through_cpu:
            return "the NPU's plugin, which has the CPU compute"
        if self.until_npu:
            return "until the NPU's graphs are compiled, some minutes"
        if self.wanted != "AUTO" and kind_of(device) == kind_of(self.wanted):
            return "as asked for"
        kinds = {kind_of(name) for name in available}
        known = self.candidates
        later = {kind_of(name) for name in (known[known.index(device) :] if device in known else ())}
        preferred = [kind for kind in DEVICE_ORDER[: DEVICE_ORDER.index(kind_of(device))] if kind not in later]
        reasons = [f"{kind} does not work" if kind in kinds else f"no {kind} here" for kind in preferred]
        return f"{self.wanted}: {', '.join(reasons) or 'the first choice'}"


def the_core(*, renewed: bool = False) -> ov.Core:
    """Return the program's OpenVINO core; `renewed` to begin anew with devices that were lost.

    None is ever released: its CPU plugin gives the thread that uses it first a stack for signals' handlers, and when it
    goes, in whatever thread, unmaps that stack. The next signal, such as Ctrl-C's, would end the program.
    """
    if renewed or not _cores:
        _cores.append(ov.Core())
    return _cores[-1]


def available_devices() -> list[str]:
    """Return the names of the inference devices that OpenVINO finds here. Raises InferenceError if it fails."""
    try:
        return list(the_core().available_devices)
    except RuntimeError as error:
        raise InferenceError(
            f"OpenVINO cannot list its devices ({first_line(error)}): expected the CPU at least; install it again with"
            " pip install --force-reinstall openvino"
        ) from None


def list_devices() -> list[DeviceInfo]:
    """Return the inference devices that OpenVINO finds here. Raises InferenceError if it fails."""
    return [describe_device(the_core(), name) for name in available_devices()]


def describe_device(core: ov.Core, name: str) -> DeviceInfo:
    """Return what a device reports of itself, which may be nothing."""
    driver = device_property(core, name, f"{kind_of(name)}_DRIVER_VERSION")
    return DeviceInfo(name, device_property(core, name, "FULL_DEVICE_NAME"), driver)


def kind_of(device: str) -> str:
    """Return the kind of a device: GPU for GPU.1."""
    return device.partition(".")[0]


def remedy_for(device: str, error: Exception) -> str:
    """Return what it means that a device does not compile a graph, and what to do."""
    meanings = _NPU_MESSAGES.items() if kind_of(device) == "NPU" else ()
    return next((meaning for message, meaning in meanings if message in str(error)), "update its driver")


def why_it_cannot_compile(device: str) -> str:
    """Have a device compile and compute a graph of one operation. Returns why it cannot, in a line; empty if it can."""
    error = _refusal(the_core(), device, {}, compute=True)
    return "" if error is None else f"it computes nothing ({first_line(error)}): {remedy_for(device, error)}"


def choose_devices(wanted: str, available: Sequence[str], stage: str = "") -> list[str]:
    """Return all available devices that fit AUTO, NPU, GPU or CPU, the best first (`GPU.1` counts as a GPU).

    wanted : one of these, or a device's full name
    stage : the stage that it is for; empty: all

    Raises ConfigError if no device fits.
    """
    # A lone GPU is listed without its number.
    for name in (wanted, wanted.removesuffix(".0")):
        if name in available:
            return [name]
    kinds = DEVICE_ORDER if wanted == "AUTO" else (wanted,)
    found = [name for kind in kinds for name in available if kind_of(name) == kind]
    if found:
        return found
    purpose, setting = (f" for the {stage}", f"model.{SETTINGS_OF[stage]}_device") if stage else ("", "--device")
    raise ConfigError(
        f"device {wanted}{purpose} is not there, OpenVINO finds {', '.join(available) or 'none'}: see what `streamer"
        f" doctor` says of its driver, or choose another with {setting} (AUTO takes the best there is)"
    )


def plan_stages(settings: DeviceSettings, available: Sequence[str]) -> dict[str, StagePlan]:
    """Return which devices each stage tries. Raises ConfigError for one that is not there, or no KEY=VALUE."""
    own_settings = {
        "encoder": (settings.encoder_device, settings.encoder_properties),
        "decoder": (settings.decoder_device, settings.decoder_properties),
    }
    plans: dict[str, StagePlan] = {}
    for stage in STAGES:
        own, own_properties = own_settings[SETTINGS_OF[stage]]
        wanted = own or settings.device
        candidates = ["NPU"] if settings.npu_through_cpu else choose_devices(wanted, available, stage if own else "")
        properties = {
            **_parsed(settings.properties, "model.properties"),
            **_parsed(own_properties, f"model.{SETTINGS_OF[stage]}_properties"),
        }
        plans[stage] = StagePlan(stage, tuple(candidates), properties, wanted, settings.npu_through_cpu)
    return _beside_npu(plans)


def _beside_npu(plans: Mapping[str, StagePlan]) -> dict[str, StagePlan]:
    """Return plans by which a decoder that an NPU cannot compute is tried on the CPU next, while the NPU encodes."""
    decoder = plans["decoder"]
    if not decoder.is_for_npu or not plans["encoder"].is_for_npu:
        return dict(plans)
    candidates = sorted(decoder.candidates, key=lambda device: _BESIDE_NPU.index(kind_of(device)))
    return {**plans, "decoder": replace(decoder, candidates=tuple(candidates))}


def with_last_resorts(plans: Mapping[str, StagePlan], available: Sequence[str]) -> dict[str, StagePlan]:
    """Return plans in which other devices follow an NPU, also one that was asked for."""
    others = [device for device in choose_devices("AUTO", available) if kind_of(device) != "NPU"]
    return _beside_npu(
        {
            stage: replace(plan, candidates=(*dict.fromkeys((*plan.candidates, *others)),)) if plan.is_for_npu else plan
            for stage, plan in plans.items()
        }
    )


def until_npu(plans: Mapping[str, StagePlan]) -> dict[str, StagePlan]:
    """Return plans in which other devices compute first what is for an NPU, without properties, which are for that."""
    return {
        stage: replace(
            plan,
            candidates=(*sorted(plan.candidates, key=lambda device: _UNTIL_NPU.index(kind_of(device))),),
            properties={},
            until_npu=True,
        )
        if plan.is_for_npu
        else plan
        for stage, plan in plans.items()
    }


def _parsed(properties: Sequence[str], setting: str) -> dict[str, str]:
    parsed = {}
    for item in properties:
        key, equals, value = item.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{setting} has {item!r:.60}: expected KEY=VALUE, such as NPU_TURBO=YES; correct it")
        parsed[key] = value
    return parsed


def properties_for(
    device: str, plan: StagePlan, group_size: int | None = None, *, precise: bool = False
) -> dict[str, object]:
    """Return the properties to compile a stage with: ours, and the user's, which win.

    group_size : activations that may share a scale when they meet weights of 8 or 4 bits; None: the weights are whole
    precise : whether a device that may choose half precision is to compute in full precision instead
    """
    ours: dict[str, object] = {**_FULL_PRECISION}
    if plan.npu_through_cpu:
        ours = {**_NPU_THROUGH_CPU}
    elif kind_of(device) == "NPU":
        ours = {}
    elif kind_of(device) == "GPU" and not precise:
        ours = {**_HALF_PRECISION}
    elif device == "CPU" and group_size is not None:
        # Such weights are not exact: the processor may encode as it does fastest, on some in bfloat16. Groups of
        # OpenVINO's own size, 32, cost a tenth of the encoder's time more. Rounded activations would give a token other
        # logits in a block than alone.
        ours = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": group_size}
        if plan.stage == "decoder":
            ours = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, **_FULL_PRECISION}
    return {"PERFORMANCE_HINT": "LATENCY", **ours, **own_properties(device, plan)}


def has_choice(device: str, plan: StagePlan) -> bool:
    """Return whether a device computes in half precision first, and in full precision if that fails the checks."""
    return kind_of(device) == "GPU" and "INFERENCE_PRECISION_HINT" not in own_properties(device, plan)


def own_properties(device: str, plan: StagePlan) -> dict[str, object]:
    """Return the user's properties for this device: not those that name another kind, such as NPU_TURBO."""
    others = tuple(kind for kind in DEVICE_ORDER if kind != kind_of(device))
    return {key: value for key, value in plan.properties.items() if not key.startswith(others)}


def check_properties(core: ov.Core, device: str, plan: StagePlan) -> None:
    """Raise ConfigError if the device does not take one of the user's properties, with which a small graph is tried.

    A device that cannot compile it without them either is not checked: that is not the properties' fault.
    """
    ours = properties_for(device, replace(plan, properties={}))
    for key, value in own_properties(device, plan).items():
        if key == "CACHE_DIR":
            raise ConfigError("CACHE_DIR among the model's properties has no effect: set model.cache_dir instead")
        refusal = _refusal(core, device, {**ours, key: value})
        if refusal is not None and _refusal(core, device, ours) is None:
            raise ConfigError(
                f"{device} does not take {key:.60}={value!r:.60} for the {plan.stage} ({first_line(refusal)}): expected"
                f" a property of this device; correct it in model.properties or"
                f" model.{SETTINGS_OF[plan.stage]}_properties"
            )


def device_facts(core: ov.Core, device: str) -> list[str]:
    """Return OpenVINO's version, the device and its driver: what is compiled with them is of use to no others."""
    kind = kind_of(device)
    names = ("FULL_DEVICE_NAME", f"{kind}_DRIVER_VERSION", f"{kind}_COMPILER_VERSION")
    return [ov.get_version(), device, *(device_property(core, device, name) for name in names)]


def _refusal(
    core: ov.Core, device: str, properties: Mapping[str, object], *, compute: bool = False
) -> Exception | None:
    """Return with what a device refuses to compile a small graph, or to `compute` it, too."""
    x = opset13.parameter([1, 16])
    try:
        compiled = core.compile_model(ov.Model([opset13.relu(x)], [x], "properties"), device, dict(properties))
        if compute:
            compiled.create_infer_request().infer()
    except Exception as error:  # noqa: BLE001 - plugins and the bindings raise what they like
        return error
    return None


def device_property(core: ov.Core, device: str, name: str) -> str:
    """Return a property of a device as text; empty if the device does not report it."""
    try:
        return " ".join(str(core.get_property(device, name)).split())[:200]
    except Exception:  # noqa: BLE001 - plugins and the bindings raise what they like
        return ""
