"""What `streamer doctor` looks at: everything that a start needs, what is wrong with it, and how to mend it.

Nothing here needs the network.
"""

import contextlib
import errno
import http.client
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console
from rich.text import Text

from streamer import __version__
from streamer.commands import probes
from streamer.commands.drivers import (
    Obstacle,
    gpu_obstacle,
    may_read_and_write,
    npu_compiler_obstacle,
    npu_obstacle,
)
from streamer.commands.invocation import Invocation
from streamer.commands.probes import Audio, Inference, ask_apart
from streamer.commands.progress import format_size
from streamer.commands.terminal import make_table
from streamer.errors import ConfigError, StreamerError
from streamer.outside import one_line
from streamer.settings.load import config_path, token_path
from streamer.settings.table import AUTO, Settings
from streamer.whisper.generation import DEFAULT_WINDOWS_S

# What a check may take, such as one of a directory on a server that is away.
CHECK_TIMEOUT_S = 15.0
HEALTH_TIMEOUT_S = 2.0

MIN_OPENVINO = (2026, 0)

# Columns of the table at most: a longer line is hard to read.
TABLE_WIDTH = 110

# Share of the processor that other programs take while the speed is measured, in percent, above which it is reported.
BUSY_PERCENT = 20.0
BUSY_OVER_S = 1.0

# A large model is 3 GB to fetch, and as much again where it is compiled.
LITTLE_SPACE_BYTES = 4 * 10**9

# A model's file that is so short is none.
MIN_WEIGHTS_BYTES = 1000
WEIGHTS_SUFFIXES = (".safetensors", ".npz", ".pt", ".bin", ".xml")


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it works without
    PROBLEM = "problem"  # a start with these settings fails


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    verdict: Verdict
    found: str

    # Empty where there is nothing to do, or where an error that was found says it.
    remedy: str = ""


ok, warning, problem = (partial(Finding, verdict) for verdict in (Verdict.OK, Verdict.WARNING, Verdict.PROBLEM))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the checks look at."""

    settings: Settings
    inference: Inference
    audio: Audio

    # What `answer_system` said.
    system: Mapping[str, str] = field(default_factory=dict)

    # What `answer_speed` said, and what share of the processor others took just before, in percent.
    speed: Mapping[str, Any] = field(default_factory=dict)
    busy_percent: float = 0.0

    # Memory that programs may still take.
    free_bytes: int = 0

    # The configuration file that was named on the command line, and why the settings were refused.
    config: Path | None = None
    refusal: ConfigError | None = None

    # As `sys.platform`, where the file system begins, and whether this user may use a device's file.
    platform: str = sys.platform
    root: Path = Path("/")
    may_use: Callable[[Path], bool] = may_read_and_write

    def wants(self, kind: str) -> bool:
        """Whether the settings name a kind of device."""
        model = self.settings.model
        names = (model.device, model.encoder_device, model.cross_kv_device, model.decoder_device)
        return any(name.partition(".")[0] == kind for name in names)


def diagnose(invocation: Invocation, console: Console) -> int:
    """Check everything and print it; the defaults, if the settings are refused. Returns 1 if there are problems."""
    try:
        settings, refusal = invocation.settings(), None
    except ConfigError as error:
        settings, refusal = Settings(), error
    with console.status("looking at this machine"):
        inference = Inference(**ask_apart(probes.answer_inference, timeout_s=probes.INFERENCE_TIMEOUT_S))
        speed = {"error": "OpenVINO does not answer"}
        busy_percent = psutil.cpu_percent(BUSY_OVER_S)
        if not inference.error:
            speed = ask_apart(probes.answer_speed, timeout_s=probes.SPEED_TIMEOUT_S)
        microphone = settings.input.microphone
        machine = Machine(
            settings=settings,
            inference=inference,
            speed=speed,
            busy_percent=busy_percent,
            free_bytes=psutil.virtual_memory().available,
            audio=Audio(**ask_apart(probes.answer_audio, microphone, timeout_s=probes.AUDIO_TIMEOUT_S)),
            system=ask_apart(probes.answer_system, timeout_s=probes.SYSTEM_TIMEOUT_S),
            config=invocation.config,
            refusal=refusal,
        )
        findings = {name: run_check(check, machine) for name, check in CHECKS.items()}
    return show(findings, console)


def show(findings: Mapping[str, Finding], console: Console) -> int:
    """Print findings by their names. Returns 1 where there are problems, else 0."""
    styles = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}
    table = make_table("Checks", "Check", "Verdict", "Found, and what to do")
    for name, finding in findings.items():
        text = Text(finding.found)
        if finding.remedy:
            text.append("\n").append("to do: ", "bold").append(finding.remedy)
        table.add_row(name, Text(finding.verdict, styles[finding.verdict]), text)
    console.print(table, markup=False, width=min(console.width, TABLE_WIDTH))
    verdicts = [finding.verdict for finding in findings.values()]
    n_problems, n_warnings = verdicts.count(Verdict.PROBLEM), verdicts.count(Verdict.WARNING)
    console.print(f"{_counted(n_problems, 'problem')}, {_counted(n_warnings, 'warning')}", highlight=False)
    return 1 if n_problems else 0


def run_check(check: "Check", machine: Machine, timeout_s: float = CHECK_TIMEOUT_S) -> Finding:
    """Run a check that may hang or fail."""
    findings: list[Finding] = []

    def run() -> None:
        try:
            findings.append(check(machine))
        except Exception as error:  # noqa: BLE001 - the other checks go on
            findings.append(
                problem(
                    f"the check failed ({type(error).__name__}: {error!s:.200})",
                    "install streamer again; where that does not help, report it",
                )
            )

    thread = threading.Thread(target=run, name="check", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if findings:
        return findings[0]
    return problem(
        f"no answer within {timeout_s:g} s",
        "see whether a disk or server that it needs is away, such as a network drive",
    )


def check_program(machine: Machine) -> Finding:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return ok(f"streamer {__version__}, {python}, {platform.system()} {platform.machine()}")


def check_configuration(machine: Machine) -> Finding:
    if machine.refusal is not None:
        return problem(str(machine.refusal), "correct it; all else here is told of the defaults")
    path = config_path(machine.config, os.environ)
    if path.is_file():
        return ok(f"{path}")
    return ok(f"none: the defaults hold; {path} would be read")


def check_openvino(machine: Machine) -> Finding:
    inference = machine.inference
    install = "pip install --upgrade --force-reinstall openvino"
    if inference.error:
        return problem(
            f"OpenVINO cannot be used: {inference.error}",
            f"{install}; where it crashes or hangs, update the drivers of NPU and GPU",
        )
    found = f"{inference.version}, finds {', '.join(inference.devices) or 'no device'}"
    if not inference.devices:
        return problem(found, f"the CPU at least should be there: {install}")
    numbers = re.match(r"(\d+)\.(\d+)", inference.version)
    if numbers and (int(numbers[1]), int(numbers[2])) < MIN_OPENVINO:
        return warning(f"{found}; expected {'.'.join(map(str, MIN_OPENVINO))} or newer", install)
    return ok(found)


def check_npu(machine: Machine) -> Finding:
    finding = _check_accelerator(
        machine,
        "NPU",
        npu_obstacle,
        "; where the processor has one (Core Ultra), install the Intel NPU driver: Windows Update, or intel.com",
    )
    obstacle = npu_compiler_obstacle(machine.root) if machine.platform == "linux" else None
    if finding.verdict is not Verdict.OK or obstacle is None:
        return finding
    return Finding(_bad(machine.wants("NPU")), f"{finding.found}; {obstacle.fact}", obstacle.remedy)


def check_gpu(machine: Machine) -> Finding:
    return _check_accelerator(
        machine,
        "GPU",
        gpu_obstacle,
        "; where there is one of Intel's, install its latest driver: Windows Update, or intel.com",
    )


def check_stages(machine: Machine) -> Finding:
    """The devices that the settings ask for."""
    if machine.inference.error:
        return warning("unknown, since OpenVINO does not answer", "see OpenVINO above")
    # Late: it needs OpenVINO, which may be what is broken.
    from streamer.commands.loading import device_settings
    from streamer.whisper.device.devices import plan_stages

    try:
        plans = plan_stages(device_settings(machine.settings.model), list(machine.inference.devices))
    except StreamerError as error:
        return problem(str(error))
    return ok(", ".join(f"{plan.stage} on {plan.candidates[0]}" for plan in plans.values()))


def check_portaudio(machine: Machine) -> Finding:
    """The library that microphones are heard through."""
    if machine.audio.error:
        return Finding(_bad(_hears_microphone(machine)), machine.audio.error)
    return ok(f"works, {_counted(len(machine.audio.microphones), 'input')}")


def check_microphone(machine: Machine) -> Finding:
    """The microphone of the settings, and whether this user may hear it."""
    audio = machine.audio
    verdict = _bad(_hears_microphone(machine))
    if audio.error:
        return warning("unknown, since PortAudio does not answer", "see PortAudio above")
    if not audio.microphones:
        return Finding(verdict, "none", f"{_microphone_remedy(machine)}; or name a file with --input FILE")
    if audio.refusal:
        return Finding(verdict, audio.refusal, "correct input.microphone; `streamer devices` lists them")
    wanted = machine.settings.input.microphone
    return ok(f"{wanted!r:.80} is there" if wanted else audio.default or audio.microphones[0])


def check_system_sound(machine: Machine) -> Finding:
    """What the computer plays, heard for a moment."""
    if error := machine.system.get("error"):
        return Finding(_bad("system" in machine.settings.input.source.split("+")), error)
    return ok(machine.system.get("name", ""))


def check_model(machine: Machine) -> Finding:
    """The model: is it here, and are its files whole."""
    from streamer.whisper import locate
    from streamer.whisper.files import size_of
    from streamer.whisper.hub import cache
    from streamer.whisper.shipped import EMBEDDED_ORIGIN, SAMPLE_OF, limits

    name = machine.settings.model.name
    if name == AUTO:
        if "error" in machine.speed:
            return warning(
                f"model.name is auto, and the speed is unknown: {machine.speed['error']}", "see OpenVINO above"
            )
        # Late: they need OpenVINO, which may be what is broken.
        from streamer.commands.auto import candidates, keeping_pace
        from streamer.commands.fit import Speed

        names = candidates(machine.settings.decoding)
        names = keeping_pace(names, Speed(**machine.speed), machine.free_bytes, machine.settings.stream)
        name = next(filter(cache.cached, names), names[0])
    path = locate.find_model(name)
    if path is None:
        if cache.repository(name) is not None:
            return warning(
                f"{name!r:.200} is not here; it would be fetched at the first start",
                f"streamer models pull {name:.200}",
            )
        return problem(f"there is no model {name!r:.200}", "`streamer models list` shows those that there are")
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    weights = [file for file in files if file.suffix in WEIGHTS_SUFFIXES]
    if not weights:
        return problem(
            f"{path} holds no weights: expected a file that ends in {', '.join(WEIGHTS_SUFFIXES)}",
            "fetch the model again",
        )
    for file in weights:
        n_bytes = file.stat().st_size
        if n_bytes < MIN_WEIGHTS_BYTES:
            return problem(
                f"{file} has {n_bytes} bytes: a download that was broken off, or what Git leaves in a file's place",
                "fetch the model again, or run `git lfs pull` where it lies",
            )
    found = f"{path}, {format_size(size_of(path))}; `streamer models verify {name}` tries it out"
    if name == SAMPLE_OF:
        return warning(found, limits(EMBEDDED_ORIGIN))
    return ok(found)


def check_sizes(machine: Machine) -> Finding:
    """Which published models fit the memory and keep pace: estimated, for the CPU."""
    if "error" in machine.speed:
        return warning(f"unknown: {machine.speed['error']}", "see OpenVINO above")
    # Late: they need OpenVINO, which may be what is broken.
    from streamer.commands.fit import SIZES, Speed, delay_s, memory_bytes

    speed, settings = Speed(**machine.speed), machine.settings
    window_s = max(settings.model.windows_s or DEFAULT_WINDOWS_S)
    facts, verdict, remedy = [], Verdict.OK, ""
    for name, dims in SIZES.items():
        need = round(memory_bytes(dims))
        behind_s, cost_s = delay_s(speed, dims, window_s, settings.stream)
        if need > machine.free_bytes:
            facts.append(
                f"{name} does not fit (about {format_size(need)}, and {format_size(machine.free_bytes)} are free)"
            )
        elif cost_s > settings.stream.max_pace_s:
            facts.append(f"{name} is too slow (a pass takes {cost_s:.0f} s)")
        else:
            facts.append(f"{name}: {behind_s:.1f} s behind")
            continue
        if settings.model.name.removesuffix(".en") == name.removesuffix(".en"):
            verdict, remedy = Verdict.WARNING, "choose a smaller model: model.name, or --model NAME"
    if machine.busy_percent >= BUSY_PERCENT:
        facts.append(f"measured while the machine was busy: {machine.busy_percent:.0f} %")
    facts.append("estimated for the CPU and weights of 8 bits: `streamer bench --model NAME` measures")
    return Finding(verdict, "; ".join(facts), remedy)


def check_port(machine: Machine) -> Finding:
    from streamer.server.access import Access
    from streamer.server.sockets import bind

    server = machine.settings.server
    host = server.host.strip("[]")
    try:
        Access.of(server, token_path(server))
        if server.tls == "on" or server.tls_certificate or server.tls_key:
            from streamer.server.tls import make_tls

            make_tls(server)
        infos = socket.getaddrinfo(host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except ConfigError as error:
        return problem(str(error))
    except (OSError, UnicodeError) as error:
        return problem(
            f"server.host {host!r:.100} cannot be resolved ({error})",
            "set server.host to a name or address of this machine, such as 127.0.0.1",
        )
    failures: list[OSError] = []
    for family, _, _, _, address in infos:
        try:
            bind(family, address).close()
        except OSError as error:
            failures.append(error)
    if not server.port:
        return ok(f"{host}, any free port")
    taken = next((failure for failure in failures if failure.errno == errno.EADDRINUSE), None)
    if taken is not None:
        return _taken_port(host, server.port)
    if failures and len(failures) == len(infos):
        return problem(
            f"cannot listen on {host} port {server.port} ({failures[0].strerror})",
            "set server.host to an address of this machine, and server.port to one that programs may use (from 1024)",
        )
    return ok(f"{host} port {server.port} is free")


def check_cache(machine: Machine) -> Finding:
    """The directory of compiled graphs."""
    from streamer.whisper.cache import CACHE_VARIABLE, cache_base

    setting = machine.settings.model.cache_dir
    is_set = bool(setting or os.environ.get(CACHE_VARIABLE))
    try:
        path = cache_base(setting)
    except RuntimeError as error:  # the home of nobody
        return problem(f"model.cache_dir {setting!r:.100}: {error}", "name a directory")
    return _check_directory(
        path,
        _bad(is_set),
        "set model.cache_dir to a directory that this user may write to; without one each start compiles anew",
    )


def check_hub(machine: Machine) -> Finding:
    """The directory of models from the Hugging Face Hub."""
    from huggingface_hub import constants

    finding = _check_directory(
        Path(constants.HF_HUB_CACHE),
        Verdict.WARNING,
        "set HF_HOME to a directory that this user may write to; without one no model can be fetched",
    )
    if finding.verdict is Verdict.OK and constants.HF_HUB_OFFLINE:
        return ok(f"{finding.found}; offline, since HF_HUB_OFFLINE is set")
    return finding


Check = Callable[[Machine], Finding]

# In the order of the table.
CHECKS: dict[str, Check] = {
    "Program": check_program,
    "Configuration": check_configuration,
    "OpenVINO": check_openvino,
    "NPU": check_npu,
    "GPU": check_gpu,
    "Stages": check_stages,
    "Model": check_model,
    "Sizes": check_sizes,
    "PortAudio": check_portaudio,
    "Microphone": check_microphone,
    "System sound": check_system_sound,
    "Port": check_port,
    "Compiled graphs": check_cache,
    "Hub cache": check_hub,
}


def _check_accelerator(
    machine: Machine,
    kind: str,
    obstacle_on_linux: Callable[[Path, Callable[[Path], bool]], Obstacle | None],
    elsewhere: str,
) -> Finding:
    seen = [about for name, about in machine.inference.devices.items() if name.partition(".")[0] == kind]
    if seen:
        return ok("; ".join(seen))
    if machine.platform != "linux":
        return ok(f"OpenVINO finds none{elsewhere if machine.platform == 'win32' else ''}")
    obstacle = obstacle_on_linux(machine.root, machine.may_use)
    if obstacle is None:
        return ok("this machine has none")
    return Finding(_bad(machine.wants(kind)), obstacle.fact, obstacle.remedy)


def _bad(is_used: bool) -> Verdict:
    """Return how bad it is that something is missing."""
    return Verdict.PROBLEM if is_used else Verdict.WARNING


def _hears_microphone(machine: Machine) -> bool:
    return "mic" in machine.settings.input.source.split("+") and not machine.settings.input.fallback


def _microphone_remedy(machine: Machine) -> str:
    if machine.platform == "darwin":
        return "plug one in, and allow the terminal to hear it (System Settings, Privacy, Microphone)"
    if machine.platform != "linux":
        return "plug one in, and allow programs to hear it (Settings, Privacy, Microphone)"
    nodes = sorted((machine.root / "dev/snd").glob("pcm*c"))
    if not nodes:
        return "plug one in: Linux knows of no sound card that records; in a container, start it with --device /dev/snd"
    if not any(map(machine.may_use, nodes)):
        return "sudo usermod -aG audio $USER, then log out and in again: this user may not use /dev/snd"
    return "see that the sound server runs: systemctl --user status pipewire pulseaudio"


def _taken_port(host: str, port: int) -> Finding:
    status = _daemon_status({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)  # noqa: S104
    if status is None:
        return problem(
            f"{host} port {port} is taken by another program",
            "stop it, or choose another port: server.port, or --port N (0 picks a free one)",
        )
    return ok(
        f"a streamer daemon runs on {host} port {port}, its status is {status}; a second one needs another --port",
    )


def _daemon_status(host: str, port: int) -> str | None:
    """Ask what listens on a port how it is, in plain HTTP and over TLS; None where that is no streamer."""
    from streamer.client.connection import unverified

    # Nothing is told to it but the question, and nothing depends on the answer.
    over_tls = http.client.HTTPSConnection(host, port, timeout=HEALTH_TIMEOUT_S, context=unverified())
    for connection in (http.client.HTTPConnection(host, port, timeout=HEALTH_TIMEOUT_S), over_tls):
        no_answer = (OSError, http.client.HTTPException, ValueError, RecursionError)
        with contextlib.closing(connection), contextlib.suppress(*no_answer):
            connection.request("GET", "/healthz")
            response = connection.getresponse()
            if response.getheader("Server") == "streamer":
                return one_line(msgspec.json.decode(response.read(1 << 16), type=_Health).status)[:40]
    return None


class _Health(msgspec.Struct):
    """What a daemon answers."""

    status: str


def _check_directory(path: Path, bad: Verdict, remedy: str) -> Finding:
    """Look whether a directory can be written to, or made; and how much is in it and beside it."""
    existing = next((folder for folder in (path, *path.parents) if folder.exists()), None)
    if existing is None:
        return Finding(bad, f"{path} cannot be made: the drive is not there", remedy)
    if reason := _why_not_writable(existing, is_final=existing == path):
        return Finding(bad, f"{path} cannot be {'written to' if existing == path else 'made'} ({reason})", remedy)
    free = shutil.disk_usage(existing).free
    held = format_size(_size(path)) if existing == path else "not made yet"
    found = f"{path}, {held}, {format_size(free)} free"
    if free < LITTLE_SPACE_BYTES:
        return warning(found, "make room, or choose another place: a large model takes some gigabytes")
    return ok(found)


def _why_not_writable(folder: Path, *, is_final: bool) -> str:
    if not folder.is_dir():
        return f"{folder} is a file"
    try:
        if is_final:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"streamer")
        elif not os.access(folder, os.W_OK | os.X_OK):
            return f"this user may not write to {folder}"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _size(folder: Path) -> int:
    """Return the bytes in a directory; what is linked to counts where it lies."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total


def _counted(n: int, what: str) -> str:
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"
