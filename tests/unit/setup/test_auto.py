"""Which model `model.name: auto` becomes, and which models this machine is fast enough for."""

import dataclasses
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from streamer.errors import ModelError, PeerError, StreamerError
from streamer.session.settings import when_stable
from streamer.settings.table import DecodingSettings, ModelSettings, Settings, StreamSettings, Task
from streamer.setup import auto, fit
from streamer.setup.fit import SIZES, Speed, decoder_bytes, delay_s, encoder_flops, memory_bytes
from streamer.whisper import cache as measurements
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.heads import PRESETS, Preset
from streamer.whisper.hub import cache
from streamer.whisper.weights.checkpoint import expected_shapes
from tests.daemon import SAMPLE
from tests.findings import OK, WARNING, expect

FAST = Speed(flops=5e12, step_bytes=1e11, block_bytes=1e11)

# About that of two cores of a server: a layer of small takes 0.03 s in 5 s of audio.
SERVER = Speed(flops=150e9, step_bytes=11e9, block_bytes=2.5e9)


def slower(factor: float) -> Speed:
    return Speed(**{name: value / factor for name, value in dataclasses.asdict(FAST).items()})


class World:
    """What is on this machine, and what sources have."""

    def __init__(self) -> None:
        self.here, self.there = set[str](), {"distil-small.en", "small.en", "base.en", "base", "tiny.en"}
        self.error: StreamerError = PeerError("the Hub cannot be reached")
        self.fetched: list[str] = []
        self.n_measured, self.speed = 0, FAST
        self.busy_percent, self.free_bytes = 0.0, 64 * 10**9

    def fetch(self, name: str) -> Path:
        self.fetched.append(name)
        if name not in self.there:
            raise self.error
        return Path(name)

    def measured(self) -> Speed:
        self.n_measured += 1
        return self.speed


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(auto, "fetch", world.fetch)
    monkeypatch.setattr(cache, "cached", lambda name: SAMPLE.parent if name in world.here else None)
    monkeypatch.setattr(Speed, "measured", world.measured)
    # Of each of four cores this process takes a tenth.
    monkeypatch.setattr(psutil, "cpu_percent", lambda: 10.0 + world.busy_percent)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(psutil.Process, "cpu_percent", lambda _: 40.0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=world.free_bytes))
    return world


def chosen(tmp_path: Path, *, live: bool = True, language: str = "auto", task: Task = "transcribe") -> str:
    model = ModelSettings(name="auto", cache_dir=str(tmp_path / "compiled"))
    settings = Settings(model=model, decoding=DecodingSettings(language=language, task=task))
    found = auto.choose_model(settings, live=live)
    assert msgspec.structs.replace(found, model=model) == settings
    return found.model.name


def test_a_model_that_is_named_is_left_alone(world: World) -> None:
    settings = Settings(model=ModelSettings(name="nano.en"))
    assert auto.choose_model(settings, live=True) is settings
    assert (world.n_measured, world.fetched) == (0, [])


FILES = {"live": False}


@pytest.mark.parametrize(
    ("here", "factor", "options", "name", "fetched"),
    [
        # The best that keeps pace is fetched.
        ("", 1, {}, "small.en", "small.en"),
        ("", 10, {}, "base", "base"),
        ("", 100, {}, "tiny.en", "tiny.en"),
        # A model that is here and keeps pace is used, even if a better one could be fetched.
        ("tiny.en", 1, {}, "tiny.en", ""),
        ("tiny.en base", 1, {}, "base", ""),
        ("small.en", 10, {}, "base", "base"),
        # Files need no pace.
        ("tiny.en", 1, FILES, "tiny.en", ""),
        ("small.en", 10, FILES, "small.en", ""),
        ("", 1000, FILES, "base", "base"),
        # Only base knows other languages, and translates.
        ("small.en tiny.en", 1, {"language": "de"}, "base", "base"),
        ("small.en tiny.en", 1, {"task": "translate"}, "base", "base"),
        ("small.en tiny.en", 1, {"language": "en", "task": "both"}, "base", "base"),
    ],
)
def test_which_model_is_used(
    world: World, tmp_path: Path, here: str, factor: float, options: dict[str, Any], name: str, fetched: str
) -> None:
    world.here, world.speed = {*here.split()}, slower(factor)
    assert chosen(tmp_path, **options) == name
    assert world.fetched == fetched.split()
    assert world.n_measured == (0 if options else 1)


def test_where_english_is_named_base_en_is_better_than_base(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.speed = slower(10)
    assert chosen(tmp_path, language="en") == chosen(tmp_path, language="en", live=False) == "base.en"
    assert chosen(tmp_path, language="en", task="translate") == "base"
    world.here = {"base", "tiny.en"}
    assert chosen(tmp_path, language="en") == "base"
    assert "`streamer models pull base.en`" in caplog.messages[-1]
    world.here, world.there, world.fetched = set(), {"base"}, []
    assert (chosen(tmp_path, language="en"), world.fetched) == ("base", ["base.en", "base"])


def test_distil_small_en_is_better_than_small_en_when_its_heads_are_known(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (chosen(tmp_path), auto.candidates(DecodingSettings())[0]) == ("small.en", "small.en")
    monkeypatch.setitem(PRESETS, "distil-small.en", Preset(4, 12, 51864, ((3, 2),)))
    assert chosen(tmp_path) == "distil-small.en"
    world.speed = slower(10)
    assert chosen(tmp_path / "slow") == "base"


def test_what_cannot_be_fetched_or_does_not_fit_is_not_chosen(world: World, tmp_path: Path) -> None:
    world.there = {"base"}
    assert (chosen(tmp_path), world.fetched) == ("base", ["small.en", "base"])
    world.here = {"tiny.en"}
    assert (chosen(tmp_path), world.fetched) == ("tiny.en", ["small.en", "base"])
    assert auto.keeping_pace(["small.en", "base", "tiny.en"], FAST, 10**9 // 2, StreamSettings()) == ["tiny.en"]


@pytest.mark.parametrize("error", [PeerError("no network"), ModelError("another digest"), StreamerError("no room")])
def test_if_nothing_can_be_fetched_it_is_nano_en_behind_a_line_that_says_why(
    world: World, tmp_path: Path, error: StreamerError, caplog: pytest.LogCaptureFixture
) -> None:
    world.error, world.there = error, set()
    assert chosen(tmp_path, live=False) == "nano.en"
    (message,) = caplog.messages
    assert (str(error) in message, "nano.en" in message) == (True, True)
    for options in ({"language": "de"}, {"task": "translate"}):  # which nano.en cannot do
        with pytest.raises(type(error)):
            chosen(tmp_path, **options)  # type: ignore[arg-type]


def test_the_speed_is_measured_once_unless_what_was_kept_is_damaged(world: World, tmp_path: Path) -> None:
    for _ in range(3):
        assert chosen(tmp_path) == "small.en"
    assert world.n_measured == 1
    (kept,) = (tmp_path / "compiled").glob("SPEED-*/speed.json")
    for damaged in ("{", "[]", "{}", '{"flops": "x"}', kept.read_text(encoding="utf-8").replace("1", "-1")):
        kept.write_text(damaged, encoding="utf-8")
        assert chosen(tmp_path) == "small.en"
    assert world.n_measured == 6


def test_the_speed_is_measured_again_if_the_machine_was_busy_or_nothing_can_be_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.speed, world.busy_percent = slower(100), 300.0
    assert chosen(tmp_path) == "tiny.en"
    world.speed, world.busy_percent = slower(10), 0.0
    assert chosen(tmp_path) == chosen(tmp_path) == "base"
    assert world.n_measured == 2
    monkeypatch.setattr(measurements, "open_cache", lambda setting: None)
    assert chosen(tmp_path) == chosen(tmp_path) == "base"
    assert world.n_measured == 4


def test_the_doctor_says_which_models_fit_and_keep_pace(world: World) -> None:
    def checked(**model: Any) -> Any:  # noqa: ANN401 - a finding
        return auto.check_speed(Settings(model=ModelSettings(**{"name": "nano.en", **model})))["Speed"]

    def delays(**model: Any) -> dict[str, float]:  # noqa: ANN401 - settings
        return {name: float(s) for name, s in re.findall(r"(\S+): ([\d.]+) s behind", checked(**model).found)}

    world.speed = SERVER
    whole, short = delays(windows_s=(30,)), delays()
    assert ([*whole], [*short]) == (["tiny.en", "base.en"], ["tiny.en", "base.en", "distil-small.en", "small.en"])
    assert whole["tiny.en"] < whole["base.en"]
    assert all(short[name] < whole[name] for name in whole)
    expect(checked(), OK, "turbo is too slow")
    expect(checked(name="turbo"), WARNING, "turbo is too slow", "--model")
    world.free_bytes, world.busy_percent = 500_000_000, 87.3
    expect(checked(name="base"), WARNING, "base.en does not fit (about", "--model")
    expect(checked(), OK, "87 %")


def test_the_doctor_checks_the_model_that_auto_stands_for(world: World) -> None:
    def checked(name: str) -> Any:  # noqa: ANN401 - a finding
        return auto.check_speed(Settings(model=ModelSettings(name=name))).get("Model")

    world.speed = slower(10)
    expect(checked("auto"), WARNING, "'base'", "streamer models pull base")
    world.here = {"tiny.en"}
    expect(checked("auto"), OK, "tiny.en")
    assert checked("base") is None


def test_the_processor_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_MEASURED", fit._size(64, (1, 1), 64))
    assert min(dataclasses.asdict(Speed.measured()).values()) > 0


def n_weights(dims: ModelDimensions, pattern: str) -> int:
    """Return how many weights the matrices of these names have."""
    shapes = {name: shape for name, shape in expected_shapes(dims).items() if len(shape) > 1}
    return sum(math.prod(shape) for name, shape in shapes.items() if re.fullmatch(pattern, name))


@pytest.mark.parametrize("dims", SIZES.values(), ids=SIZES)
def test_what_a_pass_costs_follows_from_the_weights(dims: ModelDimensions) -> None:
    cross, attention = r"decoder.*encoder_attn\.[kv]_proj.*", 4 * 1500**2 * dims.n_audio_state * dims.n_audio_layer
    n_encoding = n_weights(dims, r"encoder.*(conv2|fc|proj).*") + n_weights(dims, cross)
    n_decoding = n_weights(dims, r"decoder.*(fc|proj|tokens).*") - n_weights(dims, cross)
    assert encoder_flops(dims, 30) == 2 * (n_encoding * 1500 + n_weights(dims, r".*conv1.*") * 3000) + attention
    assert decoder_bytes(dims) == n_decoding
    # Keys and values in 32 bits.
    assert decoder_bytes(dims, 30) == n_decoding + 2 * 4 * 1500 * dims.n_text_state * dims.n_text_layer
    n_all = sum(map(math.prod, expected_shapes(dims).values()))
    scores = 4 * dims.n_audio_head * 1500**2
    needed = 0.3e9 + 1.1 * n_all + (decoder_bytes(dims, 30) - n_decoding) + scores
    assert memory_bytes(dims) == pytest.approx(max(0.65e9, needed))


@pytest.mark.parametrize("dims", SIZES.values(), ids=SIZES)
def test_text_is_as_far_behind_as_passes_take_and_wait(dims: ModelDimensions) -> None:
    stream = StreamSettings()
    behind_s, pass_s = delay_s(SERVER, dims, 15, stream)
    # A pass costs as its interval has it, which is as long as the pass itself or longer, and half of it is waited.
    interval_s = 2 * (behind_s - pass_s - when_stable(stream)[0] - 0.05)
    assert pass_s == pytest.approx(SERVER.pass_s(dims, 15, interval_s), rel=1e-3)
    assert max(stream.pace_s, min(pass_s, 30)) <= interval_s + 1e-6 <= 30 + 1e-3
    assert FAST.pass_s(dims, 15, 1.0) < pass_s < SERVER.pass_s(dims, 30, interval_s)
