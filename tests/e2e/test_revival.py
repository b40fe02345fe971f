"""Devices that are lost while they compute: nothing of what was said is."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from streamer.audio.mel import log_mel
from streamer.commands.transcribe import transcribe_files
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.errors import InferenceError
from streamer.events import Error, Event, Final, Gap, from_json
from streamer.offline import transcribe
from streamer.session.task import Request
from streamer.settings.load import load_settings
from streamer.settings.table import DecodingSettings
from streamer.whisper import model as model_module
from streamer.whisper.device import stage as stage_module
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import Stage
from streamer.whisper.model import WhisperModel
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.support import NANO, SPEECH, Tensors, load_on_cpu, read, tamper

REQUEST = Request(prefix=(), prompt="", language="en", task="transcribe", n_samples=160_000)


@pytest.fixture
def model() -> WhisperModel:
    return load_on_cpu(NANO)


@pytest.fixture(scope="module")
def often_lost() -> WhisperModel:
    """A model for tests in which each loss of its device is the first."""
    return load_on_cpu(NANO)


@pytest.fixture
def each_a_first_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "FAILS_AGAIN_WITHIN_S", 0.0)


@pytest.fixture(scope="module")
def mel() -> NDArray[np.floating]:
    return log_mel(read(SPEECH), 80)


@pytest.fixture(scope="module")
def expected(often_lost: WhisperModel, mel: NDArray[np.floating]) -> str:
    return text(often_lost, mel)


def text(model: WhisperModel, mel: NDArray[np.floating]) -> str:
    encoded = WhisperEncoder(model).encode(mel.astype(np.float32), 0)
    return "".join(word.text for word in WhisperDecoder(model, DecodingSettings()).decode(encoded, REQUEST).words)


Break = Callable[[WhisperModel, str, int], None]


@pytest.fixture
def break_device() -> Break:
    """Let a stage of the present runtime fail at its nth run from now, and at all that follow."""

    def break_(model: WhisperModel, stage: str, after: int) -> None:
        (part,) = (part for part in model.runtime.stages if part.sizes.stage == stage)
        runs = iter(range(10**9))

        def fail(inputs: Tensors) -> None:
            if next(runs) >= after:
                raise part.failure("ZE_RESULT_ERROR_DEVICE_LOST")

        tamper(model.runtime, stage, fail)

    return break_


@pytest.mark.usefixtures("each_a_first_loss")
@pytest.mark.parametrize(("stage", "after"), [("encoder", 0), ("cross_kv", 0), ("decoder", 0), ("decoder", 7)])
def test_a_stage_that_fails_is_started_again_and_its_window_is_not_lost(
    often_lost: WhisperModel,
    mel: NDArray[np.floating],
    expected: str,
    break_device: Break,
    stage: str,
    after: int,
) -> None:
    before = often_lost.runtime
    break_device(often_lost, stage, after)
    assert text(often_lost, mel) == expected
    assert often_lost.runtime is not before


@pytest.mark.usefixtures("each_a_first_loss")
def test_a_window_that_was_encoded_before_the_loss_is_decoded_after_it(
    often_lost: WhisperModel, mel: NDArray[np.floating], break_device: Break
) -> None:
    encoded = WhisperEncoder(often_lost).encode(mel.astype(np.float32), 1)
    decoder = WhisperDecoder(often_lost, DecodingSettings())
    expected = decoder.decode(encoded, REQUEST)
    break_device(often_lost, "decoder", 3)
    assert decoder.decode(encoded, REQUEST).words == expected.words


def test_a_device_that_fails_again_is_given_up_for_the_next(
    model: WhisperModel,
    mel: NDArray[np.floating],
    expected: str,
    break_device: Break,
) -> None:
    compilation = model.runtime.compilation
    for stage, plan in compilation.plans.items():
        # The only device that there surely is, twice.
        compilation.plans[stage] = type(plan)(stage, ("CPU", "CPU"), plan.properties)
    break_device(model, "encoder", 0)
    assert text(model, mel) == expected
    assert compilation._failed == {"encoder": 0, "cross_kv": 0, "decoder": 0}
    break_device(model, "encoder", 0)
    assert text(model, mel) == expected
    assert compilation._failed == {"encoder": 1, "cross_kv": 0, "decoder": 0}


def test_where_no_other_device_is_left_the_last_one_is_started_again(
    model: WhisperModel, mel: NDArray[np.floating], expected: str, break_device: Break
) -> None:
    for _ in range(3):
        break_device(model, "encoder", 0)
        assert text(model, mel) == expected


def test_a_device_that_fails_again_at_once_is_an_error(model: WhisperModel) -> None:
    def fail(runtime: Runtime) -> None:
        raise InferenceError("CPU failed")

    with pytest.raises(InferenceError):
        model.run(fail)


@pytest.mark.usefixtures("each_a_first_loss")
def test_a_loss_long_after_the_last_is_a_first_one(
    often_lost: WhisperModel, mel: NDArray[np.floating], expected: str, break_device: Break
) -> None:
    for _ in range(2):
        break_device(often_lost, "encoder", 0)
        assert text(often_lost, mel) == expected


def test_an_accelerator_that_never_answers_is_given_up(model: WhisperModel, mel: NDArray[np.floating]) -> None:
    (part,) = (part for part in model.runtime.stages if part.sizes.stage == "encoder")
    part._watched, part._patience_s = True, 0.0
    with pytest.raises(InferenceError):
        model.runtime.encode(mel, 0)
    assert part._request in [request for request, _ in stage_module._hung]
    part._request.wait()  # it was only slow


@pytest.mark.usefixtures("each_a_first_loss")
def test_a_recording_is_transcribed_over_a_lost_device(
    often_lost: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = as_whisper(often_lost, language="en", temperature=(0.0,))
    infer = Stage.infer
    runs = itertools.count()
    lost_at: list[int] = []

    def lose(part: Stage, inputs: Tensors, outputs: Tensors | None = None) -> None:
        if next(runs) in lost_at:
            raise part.failure("ZE_RESULT_ERROR_DEVICE_LOST")
        infer(part, inputs, outputs)

    monkeypatch.setattr(Stage, "infer", lose)
    expected = list(transcribe(often_lost, read(SPEECH), options))
    # The encoder, a later step, and the words' alignment, which comes last.
    for at in (0, 9, next(runs) - 1):
        lost_at[:], runs = [at], itertools.count()
        before = often_lost.runtime
        assert list(transcribe(often_lost, read(SPEECH), options)) == expected
        assert often_lost.runtime is not before


def test_the_language_of_a_recording_is_found_over_a_lost_device(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, break_device: Break
) -> None:
    model.tokenizer.languages["de"] = model.tokenizer.languages["en"] - 1
    monkeypatch.setattr(model.tokenizer, "multilingual", True)
    found: list[str] = []
    model.runtime.decoder.use(model.runtime.encode(log_mel(read(SPEECH), 80), 0))
    break_device(model, "decoder", 0)
    finals = transcribe(model, read(SPEECH), as_whisper(model), on_language=lambda language, _: found.append(language))
    next(finals, None)
    assert len(found) == 1


def test_a_stream_goes_on_over_a_lost_device_without_a_gap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load_settings(None, {}, {"model.device": "CPU"})

    def run() -> list[Event]:
        assert transcribe_files(settings, [SPEECH], format="jsonl", streaming=True, output=None) == 0
        return [from_json(line) for line in capsys.readouterr().out.splitlines()]

    def ends(events: list[Event]) -> tuple[float, float]:
        finals = [event for event in events if isinstance(event, Final)]
        return finals[0].start, finals[-1].end

    whole = run()
    infer = Stage.infer
    stages: list[str] = []
    lost: list[int] = []

    def lose(part: Stage, inputs: Tensors, outputs: Tensors | None = None) -> None:
        stages.append(part.sizes.stage)
        if not lost and stages.count("encoder") == 5 and stages[-1] == "decoder":
            lost.append(len(stages))
            raise part.failure("ZE_RESULT_ERROR_DEVICE_LOST")
        infer(part, inputs, outputs)

    monkeypatch.setattr(Stage, "infer", lose)
    events = run()
    assert lost
    assert stages.count("encoder") > 8
    assert not [event for event in events if isinstance(event, Gap | Error)]
    # Into how many finals it is divided depends on the machine's pace.
    assert ends(events) == pytest.approx(ends(whole), abs=0.5)
