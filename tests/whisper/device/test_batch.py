"""Windows that are decoded together get the tokens that each gets alone."""

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.errors import InferenceError
from streamer.whisper.decode.search import Found, Search, TokenDecoder, follow, follow_beams, greedy
from streamer.whisper.decode.window import WindowOptions, decode_window
from streamer.whisper.device import compile as compiling
from streamer.whisper.device.batch import BatchDecoder
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.runtime import EncodedWindow, Runtime
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import ModelGraphs, fix_sizes
from streamer.whisper.graphs.ports import BATCH_SLOTS, ports
from streamer.whisper.model import WhisperModel
from tests.whisper.sizes import lively_checkpoint
from tests.whisper.support import SAMPLE, noise, read

DIMS = ModelDimensions(8, 1500, 16, 2, 1, 40, 100, 16, 2, 2)
N_WINDOWS, N_BEAMS = 5, 3
END = 7

# Each window begins with other tokens, and another number of them.
STARTS = [[1], [2, 3], list(range(17)), [4] * 16, [5, 6, 8]]


@pytest.fixture(scope="module")
def graphs() -> ModelGraphs:
    return ModelGraphs.of(lively_checkpoint(DIMS), [(0, 0)])


def start(graphs: ModelGraphs) -> Runtime:
    compilation = Compilation(graphs, plan_stages(DeviceSettings("CPU"), ["CPU"]), n_beams=N_BEAMS)
    compilation.compile()
    return Runtime(compilation)


@pytest.fixture(scope="module", params=["narrow", "wide"])
def runtime(graphs: ModelGraphs, request: pytest.FixtureRequest) -> Runtime:
    """Wide models have one graph for all sizes of calls, a batch's too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "WIDE", 0 if request.param == "wide" else 10_000)
        return start(graphs)


def batch_of(runtime: Runtime, n_beams: int = 1) -> BatchDecoder:
    """Return a batch with all windows encoded."""
    stage = runtime.batch_stage()
    assert stage is not None
    batch = BatchDecoder(stage, runtime.dims, N_WINDOWS, n_beams)
    for mel, row in zip(mels(), batch.rows, strict=True):
        runtime.encode(mel, row)
    return batch


def mels() -> list[FloatArray]:
    return [log_mel(noise(480_000, seed), DIMS.n_mels) for seed in range(N_WINDOWS)]


def searching(number: int, n_beams: int) -> Callable[[TokenDecoder], list[Found]]:
    """Return what continues a window's beginning, each for another number of tokens at most."""
    search = Search(rules=(), end_of_text=END, limit=70 - 12 * number)

    def run(decoder: TokenDecoder) -> list[Found]:
        decoder.begin()
        logits, _ = decoder.feed(STARTS[number])
        if n_beams > 1:
            return follow_beams(decoder, logits[-1], search, n_beams=n_beams)
        return [follow(decoder, logits[-1], search, greedy)]

    return run


def texts(found: list[Found]) -> list[list[int]]:
    return [text.tokens for text in found]


@pytest.mark.parametrize("n_beams", [1, N_BEAMS])
def test_windows_get_the_tokens_that_each_gets_alone(runtime: Runtime, n_beams: int) -> None:
    searches = [searching(number, n_beams) for number in range(N_WINDOWS)]
    alone = [texts(run(runtime.decoder_of(runtime.encode(mel, 0)))) for mel, run in zip(mels(), searches, strict=True)]
    batch = batch_of(runtime, n_beams)
    # The second time nothing of the first is left, and where the windows have moved to is forgotten.
    for n_windows in (N_WINDOWS, 3):
        for mel, row in zip(mels()[:n_windows], batch.rows, strict=False):
            runtime.encode(mel, row)
        together = batch.decode(searches[:n_windows])
        assert [texts(found) for found, _ in together] == alone[:n_windows]
        # Each is told where its audio is.
        for (found, window), run in zip(together, searches, strict=False):
            assert texts(run(runtime.decoder_of(window))) == texts(found)
    assert len({len(tokens[0]) for tokens in alone}) > 1
    assert max(len(tokens[0]) for tokens in alone) > BATCH_SLOTS


def test_a_window_that_ends_at_once_holds_up_nobody(runtime: Runtime) -> None:
    batch = batch_of(runtime)
    run = searching(2, 1)
    found = batch.decode([lambda decoder: [], run, lambda decoder: []])
    window: EncodedWindow = found[1][1]
    assert texts(found[1][0]) == texts(run(runtime.decoder_of(window)))


def test_what_one_window_raises_ends_the_batch(runtime: Runtime) -> None:
    def fail(decoder: TokenDecoder) -> list[Found]:
        decoder.begin()
        decoder.feed([1])
        raise InferenceError("lost")

    with pytest.raises(InferenceError, match="lost"):
        batch_of(runtime).decode([searching(0, 1), fail, searching(2, 1)])


def test_what_is_called_before_each_call_may_end_all(graphs: ModelGraphs) -> None:
    def end() -> None:
        raise KeyboardInterrupt

    batch = batch_of(start(graphs))
    batch.stage.before = end
    with pytest.raises(KeyboardInterrupt):
        batch.decode([searching(0, 1), searching(1, 1)])


def test_decoders_for_one_window_are_told_from_those_for_several(graphs: ModelGraphs) -> None:
    """As those are that were saved before there were batches."""

    def of_one_window() -> ov.Model:
        return fix_sizes(graphs.build["decoder"](), ports("decoder", DIMS, 1).inputs)

    earlier = ModelGraphs(DIMS, graphs.alignment_heads, {**graphs.build, "decoder": of_one_window})
    assert start(earlier).batch_stage() is None


def test_speech_in_a_batch_is_the_same_text(model: WhisperModel) -> None:
    samples = read(SAMPLE)
    options = WindowOptions(language="en", timestamps=True, keep_attention=False, max_tokens=40)

    def run(decoder: TokenDecoder) -> list[int]:
        return decode_window(decoder, model.tokenizer, model.generation, options).tokens

    windows = [log_mel(samples[first : first + 160_000], model.dims.n_mels) for first in range(0, 480_000, 160_000)]
    runtime = model.runtime
    alone = [run(runtime.decoder_of(runtime.encode(mel, 0))) for mel in windows]
    stage = runtime.batch_stage()
    assert stage is not None
    batch = BatchDecoder(stage, model.dims, 3, 1)
    for mel, row in zip(windows, batch.rows, strict=True):
        runtime.encode(mel, row)
    assert [tokens for tokens, _ in batch.decode([run] * 3)] == alone
    assert np.mean([len(tokens) for tokens in alone]) > 10
