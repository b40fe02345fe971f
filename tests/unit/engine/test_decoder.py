"""What a session's request makes of its windows: options of its own, the language, and a second look."""

import dataclasses
import itertools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from streamer.audio.mel import log_mel
from streamer.engine import decoder as live
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder, make_engine
from streamer.errors import ConfigError, InferenceError, LostDeviceError
from streamer.session.task import Request
from streamer.settings.load import load_settings
from streamer.settings.options import SessionOptions
from streamer.settings.table import DecodingSettings
from streamer.setup.session import session_settings
from streamer.whisper import shared
from streamer.whisper.decode import fallback
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.window import DecodedWindow
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.generation import default_generation
from streamer.whisper.loading import Loaded
from streamer.whisper.model import WhisperModel
from streamer.whisper.option_checks import check_decode_options
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.refusals import Refusal, refusals
from tests.unit.whisper.support import NANO, SPEECH, TINY_CONFIG, Untyped, load_on_cpu, read
from tests.waiting import WAIT_S

SAMPLES = read(SPEECH)
REQUEST = Request(prefix=(), prompt="", language="en", task="transcribe", n_samples=len(SAMPLES), first=True)
ENCODED: Untyped = None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> WhisperModel:
    return load_on_cpu(NANO, tmp_path_factory.mktemp("compiled"), n_beams=3)


@pytest.fixture(scope="module")
def encoded(model: WhisperModel) -> EncodedWindow:
    return WhisperEncoder(model).encode(log_mel(SAMPLES, 80).astype(np.float32), 0, len(SAMPLES))


class KnownModel:
    """A model that hears three languages, as probable as it is told, and says what is scripted at each temperature."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokenizer = Tokenizer.load(NANO, n_vocab=2022, multilingual=True)
        self.tokenizer.languages.update({"de": 300, "ja": 301})
        self.dims = ModelDimensions.from_huggingface({**TINY_CONFIG, "max_target_positions": 448}, NANO)
        self.generation = default_generation(self.tokenizer, self.dims)
        self.n_beams, self.knows_heads = 5, True
        decoder = SimpleNamespace(n_calls=0, block_tokens=16, capacity=448)
        self.runtime = SimpleNamespace(decoder=decoder, decoder_of=lambda encoded: decoder, windows_s=(30,))
        self.probabilities = {"en": 1.0, "de": 0.0, "ja": 0.0}
        # How often the language was looked for.
        self.n_searches = 0
        self.attempts: list[WindowTask] = []
        # What each of them was decoded by.
        self.options: list[DecodeOptions] = []
        # By temperature, what is said besides the text; what is not there is trusted.
        self.said: dict[float, dict[str, Untyped]] = {}
        # Called while a window is decoded, with what says that it is to end.
        self.meanwhile: Callable[[Callable[[], bool]], object] = lambda cancelled: None
        monkeypatch.setattr(live, "detect_language", self.detect)
        monkeypatch.setattr(fallback, "decode_window", self.decode)

    def run(self, compute: Callable[[Untyped], Untyped]) -> Untyped:
        return compute(self.runtime)

    choose_language = WhisperModel.choose_language

    def detect(self, _: object, __: object) -> tuple[str, dict[str, float]]:
        self.n_searches += 1
        return max(self.probabilities, key=self.probabilities.__getitem__), self.probabilities

    def decode(
        self,
        _decoder: object,
        _tokenizer: object,
        options: DecodeOptions,
        task: WindowTask,
        cancelled: Callable[[], bool],
        draw: Untyped,
    ) -> DecodedWindow:
        self.attempts.append(task)
        self.options.append(options)
        self.meanwhile(cancelled)
        tokens = [*task.begins_with, *self.tokenizer.encode(" some words")]
        window = DecodedWindow(
            tokens=tokens,
            log_probs=[-0.1] * len(tokens),
            no_speech_prob=0.1,
            avg_logprob=-0.1,
            attention=np.ones((1, 4 + len(tokens), 1500), dtype=np.float32),
            n_start=4,
            temperature=task.temperature,
        )
        return dataclasses.replace(window, **self.said.get(task.temperature, {}))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    return KnownModel(monkeypatch)


def decoder_of(known: Untyped, clock: Callable[[], float] = lambda: 0.0, **decoding: Untyped) -> WhisperDecoder:
    return WhisperDecoder(known, DecodingSettings(**decoding), clock)


class TestOptions:
    def test_each_session_has_its_own_and_one_that_chose_nothing_the_daemons(self, known: KnownModel) -> None:
        decoder = decoder_of(known, initial_prompt="A talk.", beam_size=5)
        own = DecodingSettings(initial_prompt="A song.", hotwords=("NPU",), beam_size=2)
        for options in (None, own, DecodingSettings(), own):
            decoder.decode(ENCODED, dataclasses.replace(REQUEST, options=options))
        talk, song = (tuple(known.tokenizer.encode(text)) for text in (" A talk.", " A song."))
        assert talk == known.attempts[0].prompt
        assert song == known.attempts[1].prompt[-len(song) :]
        assert known.attempts[2].prompt == ()
        assert [options.n_beams for options in known.options] == [5, 2, 1, 2]
        assert [len(options.filters) for options in known.options] == [0, 1, 0, 1]
        # The tree of hot words is built once.
        assert isinstance(known.options[1].filters[0], HotWords)
        assert known.options[1].filters[0] is known.options[3].filters[0]

    def test_a_carried_prompt_stays_whole_before_the_newest_of_what_was_said(self, known: KnownModel) -> None:
        decoder = decoder_of(known, initial_prompt="A talk.", carry_initial_prompt=True)
        said = "".join(f" {n}" for n in range(300))
        decoder.decode(ENCODED, dataclasses.replace(REQUEST, prompt=said))
        talk, newest = (tuple(known.tokenizer.encode(text)) for text in (" A talk.", said))
        assert known.attempts[0].prompt == (talk + newest[len(newest) - (448 // 2 - 1 - len(talk)) :])

    def test_beams_of_a_session_are_followed(self, model: WhisperModel, encoded: EncodedWindow) -> None:
        own = DecodingSettings(beam_size=3)
        by_session = WhisperDecoder(model, DecodingSettings()).decode(
            encoded, dataclasses.replace(REQUEST, options=own)
        )
        by_daemon = WhisperDecoder(model, DecodingSettings(beam_size=3)).decode(encoded, REQUEST)
        assert by_session == by_daemon
        assert WhisperDecoder(model, DecodingSettings()).decode(encoded, REQUEST) == by_daemon, "as many as there are"
        greedy = WhisperDecoder(model, DecodingSettings(beam_size=1)).decode(encoded, REQUEST)
        fewer = DecodingSettings(beam_size=2)
        assert by_session.n_calls != greedy.n_calls
        assert WhisperDecoder(model, DecodingSettings()).decode(encoded, dataclasses.replace(REQUEST, options=fewer))

    @refusals("decoding")
    def test_what_the_model_cannot_do_is_refused_to_daemon_and_client(
        self, model: WhisperModel, refusal: Refusal
    ) -> None:
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in refusal.given.items()
        }
        given["hotwords"] = given.get("hotwords", ()) or tuple(map(str, range(given.pop("n_hotwords", 0))))
        with refusal.expected():
            check_decode_options(DecodingSettings(**given), model)
        with refusal.expected():
            session_settings(load_settings(None, {}, {}), model, SessionOptions(**given))

    def test_a_session_has_the_daemons_options_where_a_client_chose_none(self, model: WhisperModel) -> None:
        settings = load_settings(None, {}, {"decoding.hotwords": "NPU, OpenVINO", "decoding.beam_size": 2})
        daemons = DecodingSettings(hotwords=("NPU", "OpenVINO"), beam_size=2)
        assert session_settings(settings, model).options == daemons == check_decode_options(settings.decoding, model)
        own = SessionOptions(initial_prompt="A talk.", hotwords=(" NPU ", "NPU"))
        chosen = session_settings(settings, model, own).options
        assert chosen == msgspec.structs.replace(daemons, initial_prompt="A talk.", hotwords=("NPU",))

    def test_allowed_languages_are_those_of_the_model(self, known: Untyped) -> None:
        settings = load_settings(None, {}, {})
        chosen = session_settings(settings, known, SessionOptions(languages=("de", "en")))
        assert (chosen.language, chosen.languages) == ("auto", ("de", "en"))
        assert session_settings(settings, known, SessionOptions(languages=("de",))).language == "de"
        assert session_settings(settings, known, SessionOptions(language="ja", languages=("de",))).language == "ja"
        with pytest.raises(ConfigError):
            session_settings(settings, known, SessionOptions(languages=("de", "xx")))


AMONG: dict[str, Untyped] = {"language": "auto", "languages": ("en", "ja")}
CHOSEN: dict[str, Untyped] = {"language": "en", "chosen": True}


class TestLanguage:
    @pytest.mark.parametrize(
        ("english", "german", "of", "expected"),
        [
            pytest.param(0.1, 0.85, {"language": "auto"}, ("de", True, "", 1), id="the likeliest"),
            pytest.param(0.1, 0.85, {"language": "de"}, ("de", True, "", 0), id="named"),
            pytest.param(0.1, 0.85, AMONG | {"languages": ("de",)}, ("de", True, "", 0), id="the only one"),
            pytest.param(0.3, 0.6, AMONG, ("en", True, "", 1), id="allowed"),
            pytest.param(0.03, 0.96, AMONG | {"n_samples": 31_000}, ("en", False, "", 1), id="probably not allowed"),
            pytest.param(
                0.3, 0.6, {"language": "auto", "known_languages": ("de", "en")}, ("de", True, "", 1), id="known"
            ),
            pytest.param(0.5, 0.4, CHOSEN, ("en", True, "", 1), id="chosen before"),
            pytest.param(0.1, 0.8, CHOSEN, ("en", False, "", 1), id="chosen before, and no longer heard"),
        ],
    )
    def test_the_likeliest_is_decoded_in_unless_one_is_given(
        self, known: KnownModel, english: float, german: float, of: dict[str, Untyped], expected: Untyped
    ) -> None:
        known.probabilities = {"en": english, "de": german, "ja": 1.0 - english - german}
        request = dataclasses.replace(REQUEST, n_samples=5 * 16_000)
        found = decoder_of(known).decode(ENCODED, dataclasses.replace(request, **of))
        assert (found.language, found.language_sure, found.language_outside, known.n_searches) == expected
        assert known.attempts[0].language == found.language

    @pytest.mark.parametrize("of", [AMONG, AMONG | CHOSEN], ids=["not chosen", "chosen before"])
    def test_a_language_that_is_not_allowed_is_not_decoded_in_another(
        self, known: KnownModel, of: dict[str, Untyped]
    ) -> None:
        known.probabilities = {"en": 0.01, "de": 0.98, "ja": 0.01}
        found = decoder_of(known).decode(ENCODED, dataclasses.replace(REQUEST, n_samples=2 * 16_000, **of))
        assert (found.words, found.language_sure, found.language_outside, known.attempts) == ((), False, "de", [])


LOOPED = {"looped": True, "avg_logprob": -0.05}
UNLIKELY = {"avg_logprob": -1.5}
RETRY = dataclasses.replace(REQUEST, retry_s=10.0, prefix=(513, 514))


def temperatures_of(known: KnownModel) -> list[float]:
    return [attempt.temperature for attempt in known.attempts]


class TestSecondLook:
    @pytest.mark.parametrize("said", [{}, {"avg_logprob": -1.5, "no_speech_prob": 0.9}], ids=["trusted", "silence"])
    def test_a_text_that_is_trusted_and_silence_have_none(self, known: KnownModel, said: dict[str, Untyped]) -> None:
        known.said = {0.0: said}
        assert not decoder_of(known).decode(ENCODED, RETRY).failed
        assert temperatures_of(known) == [0.0]

    @pytest.mark.parametrize("failure", [LOOPED, UNLIKELY], ids=["looped", "unlikely"])
    def test_temperatures_are_tried_until_a_text_is_trusted(
        self, known: KnownModel, failure: dict[str, Untyped]
    ) -> None:
        known.said = {0.0: failure, 0.2: failure}
        own = DecodingSettings(beam_size=5)
        hypothesis = decoder_of(known).decode(ENCODED, dataclasses.replace(RETRY, options=own))
        assert temperatures_of(known) == [0.0, 0.2, 0.4]
        assert (hypothesis.temperature, hypothesis.failed, hypothesis.looped) == (0.4, False, False)
        assert all(options.n_beams == 5 for options in known.options)
        assert all(attempt.begins_with == RETRY.prefix for attempt in known.attempts)

    def test_the_likeliest_text_counts_where_none_is_trusted_and_not_the_last(self, known: KnownModel) -> None:
        known.said = {t: {"avg_logprob": -2.0 + (t == 0.6) / 2} for t in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)}
        hypothesis = decoder_of(known).decode(ENCODED, RETRY)
        assert temperatures_of(known) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        assert (hypothesis.temperature, hypothesis.failed, hypothesis.avg_logprob) == (0.6, True, -1.5)

    @pytest.mark.parametrize("off", ["request", "settings"])
    def test_there_is_none_where_it_was_not_asked_for(self, known: KnownModel, off: str) -> None:
        known.said = {0.0: LOOPED}
        decoder = decoder_of(known, temperature_increment_on_fallback=None if off == "settings" else 0.2)
        hypothesis = decoder.decode(ENCODED, REQUEST if off == "request" else RETRY)
        assert temperatures_of(known) == [0.0]
        assert hypothesis.failed

    def test_the_settings_ladder_is_climbed(self, known: KnownModel) -> None:
        known.said = {0.0: LOOPED, 0.4: LOOPED, 0.9: LOOPED}
        decoder_of(known, temperature=0.4, temperature_increment_on_fallback=0.5).decode(ENCODED, RETRY)
        assert temperatures_of(known) == [0.0, 0.4, 0.9]

    def test_it_ends_when_its_time_is_over(self, known: KnownModel) -> None:
        """Each attempt takes 4 s, of 10; that which is cut off does not count, however likely its text."""
        known.said = {t: {"avg_logprob": -2.0 + t} for t in (0.0, 0.2, 0.4)}
        now = itertools.count(0, 4)
        time_s = [0.0]
        cut_off: list[bool] = []

        def take_time(cancelled: Callable[[], bool]) -> None:
            time_s[0] = float(next(now))
            cut_off.append(cancelled())

        known.meanwhile = take_time
        hypothesis = decoder_of(known, lambda: time_s[0]).decode(ENCODED, RETRY)
        assert temperatures_of(known) == [0.0, 0.2, 0.4, 0.6]
        assert cut_off == [False, False, False, True]
        assert (hypothesis.temperature, hypothesis.failed) == (0.4, True)

    def test_it_ends_when_another_session_waits(self, known: KnownModel) -> None:
        """However briefly: an attempt that was cut off does not count."""
        known.said = {t: {"avg_logprob": -2.0 + t} for t in (0.0, 0.2, 0.4)}
        waiting = iter([False, False, True])
        known.meanwhile = lambda cancelled: cancelled()
        hypothesis = decoder_of(known).decode(ENCODED, RETRY, lambda: next(waiting, False))
        assert temperatures_of(known) == [0.0, 0.2, 0.4]
        assert (hypothesis.temperature, hypothesis.failed, hypothesis.cut_short) == (0.2, True, True)
        assert not decoder_of(known).decode(ENCODED, RETRY).cut_short

    @pytest.mark.slow
    def test_settled_words_stay_at_every_temperature_and_the_draws_are_the_same(
        self, model: WhisperModel, encoded: EncodedWindow
    ) -> None:
        # Nothing is ever likely enough.
        decoder = WhisperDecoder(model, DecodingSettings(logprob_threshold=-0.0, no_speech_threshold=None))
        first = decoder.decode(encoded, REQUEST)
        prefix = tuple(token for word in first.words[:3] for token in word.tokens)
        request = dataclasses.replace(REQUEST, prefix=prefix, retry_s=1e9)
        once = decoder.decode(encoded, dataclasses.replace(request, retry_s=0.0))
        found = decoder.decode(encoded, request)
        assert tuple(token for word in found.words for token in word.tokens)[: len(prefix)] == prefix
        assert found.failed
        assert found.avg_logprob >= once.avg_logprob
        assert found.n_calls > 5 * once.n_calls / 2
        assert decoder.decode(encoded, request) == found


def test_each_run_of_a_graph_is_progress(
    model: WhisperModel, encoded: EncodedWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of a file may take minutes on a slow machine, which is not stuck for that."""
    noted: list[None] = []
    monkeypatch.setattr("streamer.engine.decoder.note_progress", lambda: noted.append(None))
    engine = make_engine(model, DecodingSettings())
    n_before = sum(stage.n_calls for stage in model.runtime.stages)
    engine._encoder.encode(log_mel(SAMPLES, 80).astype(np.float32), 0, len(SAMPLES))
    engine._decoder.decode(encoded, REQUEST, lambda: False)
    assert len(noted) == sum(stage.n_calls for stage in model.runtime.stages) - n_before
    assert len(noted) > 5


def test_the_end_does_not_wait_for_a_device_that_is_started_again(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling, go_on = threading.Event(), threading.Event()

    def compile_anew(loaded: Loaded, error: InferenceError, *, again: bool) -> Loaded:
        compiling.set()
        assert go_on.wait(3 * WAIT_S)
        return loaded

    monkeypatch.setattr(shared, "restart", compile_anew)
    engine = make_engine(model, DecodingSettings())
    lost = LostDeviceError("the device is lost", "decoder")
    monkeypatch.setattr(engine._decoding, "_turn", lambda: model.recover(model.runtime, lost))
    engine.start()
    assert compiling.wait(WAIT_S)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    try:
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
        assert engine._decoding.is_alive()
    finally:
        go_on.set()
        engine._decoding.join(WAIT_S)
