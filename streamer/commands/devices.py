"""`streamer devices`: inference devices, the device of each stage, microphones, system sound and applications."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from streamer.commands.signature import DEVICES, Flags
from streamer.commands.terminal import make_console, make_table
from streamer.errors import StreamerError
from streamer.settings.table import ModelSettings, Settings

if TYPE_CHECKING:
    from rich.console import Console

    from streamer.whisper.device.devices import StagePlan


def devices(*, settings: Annotated[Settings, Flags(DEVICES)]) -> int:
    """List inference devices and microphones.

    Shows what each stage of the model would use, too.

    Example: streamer devices
    """
    console = make_console()
    for title, show in (
        ("Inference devices", _show_inference_devices),
        ("Microphones", _show_microphones),
        ("System sound", _show_system_sound),
        ("Applications", _show_applications),
    ):
        try:
            show(settings.model, console)
        except StreamerError as error:
            _say(console, f"{title}: {error}")
    return 0


def _show_inference_devices(model: ModelSettings, console: "Console") -> None:
    from streamer.whisper.device.devices import list_devices

    devices = list_devices()
    if not devices:
        _say(console, "Inference devices: none; `streamer doctor` says what is missing")
        return
    table = make_table("Inference devices", "Device", "Name")
    for device in devices:
        table.add_row(device.name, device.about)
    console.print(table, markup=False)
    try:
        _show_stages(model, [device.name for device in devices], console)
    except StreamerError as error:
        _say(console, f"Stages: {error}")


def _show_stages(model: ModelSettings, available: Sequence[str], console: "Console") -> None:
    from streamer.setup.loading import device_settings
    from streamer.whisper.device.devices import own_properties, plan_stages

    table = make_table("Stages of the model, with the present settings", "Stage", "Device", "Why", "Properties set")
    for plan in plan_stages(device_settings(model), available).values():
        device, *others = plan.candidates
        why = _why(plan, device, model, available)
        own = " ".join(f"{key}={value}" for key, value in own_properties(device, plan).items())
        table.add_row(plan.stage, device, f"{why}; {', '.join(others)} if it fails" if others else why, own or "none")
    console.print(table, markup=False)


def _why(plan: "StagePlan", device: str, model: ModelSettings, available: Sequence[str]) -> str:
    from streamer.whisper.device.devices import SETTINGS_OF

    if plan.npu_through_cpu:
        return f"model.npu_through_cpu: {plan.why(device, available)}"
    if plan.wanted == "AUTO":
        return plan.why(device, available)
    setting = f"{SETTINGS_OF[plan.stage]}_device"
    own = getattr(model, setting)
    return f"model.{setting} is {own}" if own else f"model.device is {model.device}"


def _show_microphones(_: ModelSettings, console: "Console") -> None:
    from streamer.audio.sources.microphone import list_microphones

    microphones = list_microphones()
    if not microphones:
        _say(console, "Microphones: none; plug one in, or name a file with --input FILE")
        return
    table = make_table("Microphones", "Number", "Name", "System", "Channels", "Rate", "Default")
    for each in microphones:
        channels, rate, default = str(each.channels), f"{each.default_sample_rate} Hz", "yes" if each.is_default else ""
        table.add_row(str(each.index), each.name, each.host_api, channels, rate, default)
    console.print(table, markup=False)


def _show_system_sound(_: ModelSettings, console: "Console") -> None:
    from streamer.audio.sources.system import SystemSound

    sound = SystemSound()
    sound.check()
    _say(console, f"System sound: {sound.name.removeprefix('system sound of ')}, with --input system")


def _show_applications(_: ModelSettings, console: "Console") -> None:
    from streamer.audio.sources.application import describe_applications, list_streams

    _say(console, f"Applications that play now: {describe_applications(list_streams())}; with --input app:NAME")


def _say(console: "Console", text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)
