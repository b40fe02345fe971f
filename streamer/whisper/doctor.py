"""What `streamer doctor` checks of models and of the directories that they are kept in."""

import contextlib
import os
import platform
import shutil
import tempfile
from pathlib import Path

import openvino
from huggingface_hub import constants

from streamer.errors import StreamerError
from streamer.findings import Finding, Severity, missing, ok, problem, warning
from streamer.whisper import locate
from streamer.whisper.cache import CACHE_VARIABLE, cache_base
from streamer.whisper.check import require
from streamer.whisper.device.devices import device_property, kind_of, list_devices, the_core, why_it_cannot_compile
from streamer.whisper.files import format_size, size_of
from streamer.whisper.hub import cache
from streamer.whisper.shipped import EMBEDDED_ORIGIN, SAMPLE_OF, limits
from streamer.whisper.source import read_model
from streamer.whisper.trust import kept_verdicts

# A large model is 3 GB to fetch, and as much again when it is compiled.
LITTLE_SPACE_BYTES = 4 * 10**9

# Properties of devices that a report shows.
_REPORTED = {
    "NPU": ("DEVICE_ARCHITECTURE", "NPU_COMPILER_VERSION", "NPU_MAX_TILES", "NPU_DEVICE_TOTAL_MEM_SIZE"),
    "GPU": ("DEVICE_ARCHITECTURE",),
    "CPU": ("OPTIMIZATION_CAPABILITIES",),
}

# Of models that a report names; another's name may be a person's.
_PUBLISHERS = ("openai/", "distil-whisper/", "streamer/")


def check_model(name: str) -> Finding:
    """Check that a model is here, and that its files belong together; nothing is compiled."""
    path = locate.find_model(name)
    if path is None and cache.parse(name) is not None:
        pull = f"streamer models pull {name:.200}"
        return warning(f"{name!r:.200} is not here; it would be fetched at the first start", pull)
    if path is None:
        return problem(f"there is no model {name!r:.200}", "`streamer models list` shows those that there are")
    try:
        require(read_model(path, name).checks)
    except StreamerError as error:
        return problem(str(error), f"`streamer models verify {name:.200}` shows all that is checked")
    found = f"{path}, {format_size(size_of(path))}; `streamer models verify {name}` tries it out"
    return warning(found, limits(EMBEDDED_ORIGIN)) if name == SAMPLE_OF else ok(found)


def check_cache(setting: str) -> Finding:
    """Check the directory of compiled graphs; `setting` is `model.cache_dir`."""
    try:
        path = cache_base(setting)
    except RuntimeError as error:  # the home directory of an unknown user
        return problem(f"model.cache_dir {setting!r:.100}: {error}", "name a directory")
    remedy = "set model.cache_dir to a directory that this user may write to; without one each start compiles anew"
    return _check_directory(path, remedy, needed=bool(setting or os.environ.get(CACHE_VARIABLE)))


def check_hub() -> Finding:
    """Check the directory of models from the Hugging Face Hub."""
    remedy = "set HF_HOME to a directory that this user may write to; without one no model can be fetched"
    finding = _check_directory(Path(constants.HF_HUB_CACHE), remedy, needed=False)
    if finding.severity is Severity.OK and constants.HF_HUB_OFFLINE:
        return ok(f"{finding.found}; offline, since HF_HUB_OFFLINE is set")
    return finding


def report(folder: Path) -> dict[str, Finding]:
    """Return what the project needs of a machine with an accelerator, without paths: devices, drivers, verdicts.

    folder : the directory of compiled graphs
    """
    system = platform.system()
    with contextlib.suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    found = {"System": ok(f"{system}, kernel {platform.release()}"), "OpenVINO": ok(openvino.get_version())}
    for device in list_devices():
        facts = {name: device_property(the_core(), device.name, name) for name in _REPORTED[kind_of(device.name)]}
        reason = why_it_cannot_compile(device.name)
        shown = [device.about, *(f"{name} {value}" for name, value in facts.items() if value), *filter(None, [reason])]
        found[device.name] = ok(", ".join(shown))
    for i, verdict in enumerate(kept_verdicts(folder), 1):
        model = verdict.model if verdict.model.startswith(_PUBLISHERS) else "a model"
        where = f"{verdict.graph} of {model} on {verdict.device}, OpenVINO {verdict.openvino}"
        found[f"Verdict {i}"] = ok(f"{where}: compiled in {verdict.compile_s:g} s, {verdict.problem or 'right'}")
    if "Verdict 1" not in found:
        found["Verdicts"] = ok("none: run `streamer models verify base --device NPU`, and then this again")
    return found


def _check_directory(path: Path, remedy: str, *, needed: bool) -> Finding:
    """Check whether a directory can be written to, or made; return how much is in it and how much is free."""
    # Not with `exists`, which raises below a directory that this user may not enter.
    existing = next((folder for folder in (path, *path.parents) if os.access(folder, os.F_OK)), None)
    if existing is None:
        return missing(f"{path} cannot be made: the drive is not there", remedy, needed=needed)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"streamer")
    except OSError as error:
        reason = f"{existing} is a file" if existing.is_file() else error.strerror or str(error)
        failed = "written to" if existing == path else "made"
        return missing(f"{path} cannot be {failed} ({reason})", remedy, needed=needed)
    free = shutil.disk_usage(existing).free
    held = format_size(_size(path)) if existing == path else "not made yet"
    found = f"{path}, {held}, {format_size(free)} free"
    if free < LITTLE_SPACE_BYTES:
        return warning(found, "make room, or choose another directory: a large model takes some gigabytes")
    return ok(found)


def _size(folder: Path) -> int:
    """Return the bytes in a directory. A linked file counts in its own directory only."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(directory) / name).lstat().st_size
    return total
