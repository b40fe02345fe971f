"""`streamer doctor`: runs the checks of all rooms, and prints what is wrong and how to repair it.

A new check is a function that returns findings, in the module `doctor` of the room that it checks, and an entry in
`CHECKS`. Checks run in processes of their own, as a broken driver or an absent disk crashes or hangs what asks it. None
needs the network.
"""

import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from streamer.commands.invocation import Invocation
from streamer.commands.signature import MODEL, Arg, Flags
from streamer.commands.terminal import make_console, make_table
from streamer.errors import ConfigError
from streamer.findings import Finding, Severity, ok, problem
from streamer.settings.load import config_path, default_token_path
from streamer.settings.table import AUTO, Settings
from streamer.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

# For which an answer is waited for: the first question to a driver may make it start.
TIMEOUT_S = 60.0

# What the process of a check runs.
ANSWER = """import json, sys; sys.path[:] = json.loads(sys.argv[1])
from streamer.commands.doctor import answer
answer()"""

# Columns of the table at most: a longer line is hard to read.
TABLE_WIDTH = 110


def _check_devices(settings: Settings) -> dict[str, Finding]:
    from streamer.setup.loading import device_settings
    from streamer.whisper.device.doctor import check_devices

    return check_devices(device_settings(settings.model))


def _check_files(settings: Settings) -> dict[str, Finding]:
    from streamer.whisper.doctor import check_cache, check_hub, check_model

    name = settings.model.name
    # What `auto` stands for is known when the speed is.
    model = {} if name == AUTO else {"Model": check_model(name)}
    return {**model, "Compiled graphs": check_cache(settings.model.cache_dir), "Hub cache": check_hub()}


def _check_speed(settings: Settings) -> dict[str, Finding]:
    from streamer.setup.auto import check_speed

    return check_speed(settings)


def _check_microphone(settings: Settings) -> dict[str, Finding]:
    from streamer.audio.doctor import check_microphone

    source = settings.input
    needed = "mic" in source.source.split("+") and not source.fallback
    return check_microphone(source.microphone, needed=needed)


def _check_system_sound(settings: Settings) -> dict[str, Finding]:
    from streamer.audio.doctor import check_applications, check_system_sound

    source = settings.input.source
    found = check_system_sound(needed="system" in source.split("+"))
    return found | (check_applications() if source.startswith(("app:", "mic+app:")) else {})


def _check_port(settings: Settings) -> dict[str, Finding]:
    from streamer.server.doctor import check_port

    return {"Port": check_port(settings.server, default_token_path())}


def _report(settings: Settings) -> dict[str, Finding]:
    from streamer.whisper.cache import cache_base
    from streamer.whisper.doctor import report

    return report(cache_base(settings.model.cache_dir))


@dataclass(frozen=True, slots=True)
class Probe:
    """Findings by their names, and what to do if there is no answer."""

    run: Callable[[Settings], dict[str, Finding]]
    remedy: str


_SOUND_SERVER = "see that the sound server runs, and update the drivers of sound cards"

# In the order of the table.
CHECKS = {
    "OpenVINO": Probe(
        _check_devices,
        "pip install --upgrade --force-reinstall openvino; if it crashes or hangs, update the drivers of NPU and GPU",
    ),
    "Files": Probe(_check_files, "see whether a disk or server that it needs is away, such as a network drive"),
    "Speed": Probe(_check_speed, "see OpenVINO above"),
    "PortAudio": Probe(_check_microphone, _SOUND_SERVER),
    "System sound": Probe(_check_system_sound, _SOUND_SERVER),
    "Port": Probe(_check_port, "see whether the network and its name servers answer"),
}

# What `--report` shows.
REPORT = "Report"
_PROBES = {**CHECKS, REPORT: Probe(_report, CHECKS["OpenVINO"].remedy)}


def doctor(
    *,
    report: Annotated[bool, Arg("print devices, drivers and verdicts, to be pasted into an issue")] = False,
    invocation: Annotated[Invocation, Flags(MODEL)],
) -> int:
    """Look for what is wrong with this machine's set-up.

    Checks drivers, libraries, permissions, sound, the model and the port, and says how to repair what is wrong. The
    exit code is 1 if something is.

    Example: streamer doctor --model base.en
    """
    console = make_console()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    findings = {"Program": ok(f"streamer {__version__}, {python}, {platform.system()} {platform.machine()}")}
    if report:
        findings |= check_apart(REPORT, invocation.load())
        for name, finding in findings.items():
            # A library's message may hold the path of a file.
            text = finding.found.replace(str(Path.home()), "~")
            console.print(f"{name}: {text}", markup=False, highlight=False, soft_wrap=True)
        return 0
    try:
        settings = invocation.settings()
        path = config_path(invocation.config, os.environ)
        found = str(path) if path.is_file() else f"none: the defaults hold; {path} would be read"
        findings["Configuration"] = ok(found)
    except ConfigError as error:
        settings = Settings()
        findings["Configuration"] = problem(str(error), "correct it; all other checks are of the defaults")
    with console.status("checking this machine"):
        for name in CHECKS:
            findings |= check_apart(name, settings)
    return show(findings, console)


def show(findings: Mapping[str, Finding], console: "Console") -> int:
    """Print findings by their names. Returns 1 if there are problems, else 0."""
    from rich.text import Text

    styles = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.PROBLEM: "bold red"}
    table = make_table("Checks", "Check", "Verdict", "Found, and what to do")
    for name, finding in findings.items():
        text = Text(finding.found)
        if finding.remedy:
            text.append("\n").append("to do: ", "bold").append(finding.remedy)
        table.add_row(name, Text(finding.severity, styles[finding.severity]), text)
    console.print(table, markup=False, width=min(console.width, TABLE_WIDTH))
    severities = [finding.severity for finding in findings.values()]
    n_problems, n_warnings = severities.count(Severity.PROBLEM), severities.count(Severity.WARNING)
    console.print(f"{_counted(n_problems, 'problem')}, {_counted(n_warnings, 'warning')}", highlight=False)
    return 1 if n_problems else 0


def check_apart(name: str, settings: Settings, timeout_s: float = TIMEOUT_S) -> dict[str, Finding]:
    """Run a check in another process. If it crashes or hangs, the only finding is a problem of the check's name."""
    import subprocess

    try:
        process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-I", "-c", ANSWER, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return {name: problem(f"another process cannot be started ({error})", "install streamer again")}
    try:
        output, errors = process.communicate(_encoded((name, settings)), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        # What hangs in the kernel cannot be killed, and is left behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        return {name: problem(f"no answer within {timeout_s:g} s", _PROBES[name].remedy)}
    try:
        return msgspec.convert(json.loads(output.splitlines()[-1]), dict[str, Finding])
    except (IndexError, ValueError):
        lines = errors.decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "without a message")
        return {name: problem(f"exit code {process.returncode}, {last.strip():.200}", _PROBES[name].remedy)}


def answer() -> None:
    """Run the check whose name is on standard input, with the settings; write its findings to standard output."""
    name, settings = msgspec.convert(json.loads(sys.stdin.buffer.read()), tuple[str, Settings])
    # In a line of its own: libraries may have written before.
    sys.stdout.write(f"\n{_encoded(_PROBES[name].run(settings)).decode()}\n")


def _encoded(value: object) -> bytes:
    """Return a value as JSON in ASCII. The name of a file may have bytes that are no UTF-8, which msgspec refuses."""
    return json.dumps(msgspec.to_builtins(value)).encode("ascii")


def _counted(n: int, what: str) -> str:
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"
