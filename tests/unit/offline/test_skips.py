"""Speech that Whisper skipped: which passages are transcribed again, and what is put in their place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from streamer.constants import HOP_LENGTH, N_SAMPLES_PER_TOKEN, SAMPLE_RATE
from streamer.offline import recording as recording_module
from streamer.offline import texts, transcribe_segments
from streamer.offline.segments import Segment
from streamer.offline.skips import SkippedPassage, is_trusted, repeats, skipped, split_at_holes
from streamer.offline.speech import JoinedSpeech, SpeechFinder
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode import fallback
from streamer.whisper.decode.options import WindowTask
from streamer.whisper.decode.window import DecodedWindow
from streamer.whisper.decode.word_timestamps import SpokenSegment
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import decode_options
from streamer.whisper.result import TimedWord
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.words import split_to_words

END_OF_TEXT = 100
TEXT = (1,) * 20


def segment(start: int, end: int, tokens: Sequence[int] = TEXT, **known: Any) -> Segment:  # noqa: ANN401 - as it is
    """Return a segment from one frame to another, between its timestamps."""
    times = (END_OF_TEXT + 1, END_OF_TEXT + 2)
    return Segment(
        start_samples=start * HOP_LENGTH, end_samples=end * HOP_LENGTH, tokens=(times[0], *tokens, times[1]), **known
    )


def speech(*spans: tuple[int, int], n_frames: int = 3000) -> np.ndarray[Any, np.dtype[np.bool_]]:
    frames = np.zeros(n_frames, dtype=np.bool_)
    for begin, end in spans:
        frames[begin:end] = True
    return frames


@pytest.mark.parametrize(
    ("segments", "spoken", "passages"),
    [
        # Between two segments; with a fifth of a second before and after.
        ([(0, 500), (1500, 2000)], [(0, 450), (600, 1400), (1550, 2000)], [(580, 1420)]),
        # Padding takes nothing from a segment.
        ([(0, 500), (1500, 2000)], [(0, 2000)], [(500, 1500)]),
        # Before the first, after the last, and all of a window.
        ([(900, 1200)], [(100, 800), (900, 1200)], [(80, 820)]),
        ([(0, 500)], [(0, 500), (2800, 3000)], [(2780, 3000)]),
        ([], [(300, 1000)], [(280, 1020)]),
        # Pauses are part of a passage, and do not count as speech.
        ([(0, 100), (900, 1000)], [(0, 100), (200, 260), (500, 560)], [(180, 580)]),
        ([(0, 100), (900, 1000)], [(0, 100), (200, 240), (500, 540)], []),
        # Less than a second, and silence.
        ([(0, 500), (599, 1000)], [(0, 1000)], []),
        ([(0, 500), (1500, 2000)], [(0, 500), (1500, 2000)], []),
        # Segments that overlap, or reach past the frames.
        ([(0, 800), (500, 700), (700, 9000)], [(0, 3000)], []),
    ],
)
def test_speech_that_no_segment_covers_is_skipped(
    segments: list[tuple[int, int]], spoken: list[tuple[int, int]], passages: list[tuple[int, int]]
) -> None:
    # In the middle of a recording; tokens enough for any length.
    found = [segment(7000 + start, 7000 + end, (1,) * 50) for start, end in segments]
    assert skipped(found, speech(*spoken), 7000, END_OF_TEXT) == [
        SkippedPassage(7000 + begin, 7000 + end) for begin, end in passages
    ]


def test_a_segment_with_hardly_a_word_is_transcribed_again() -> None:
    # 12 s of speech: ten tokens are too few, twelve are not; timestamps do not count.
    for n_tokens, is_sparse in ((10, True), (12, False)):
        said = segment(500, 1700, (1,) * n_tokens)
        passages = [SkippedPassage(500, 1700, (said,))] if is_sparse else []
        assert skipped([segment(0, 500), said, segment(1700, 2000)], speech((0, 2000)), 0, END_OF_TEXT) == passages
    # Over silence a word is not too little, nor in a second of speech.
    assert skipped([segment(0, 3000, (1,))], speech((0, 90)), 0, END_OF_TEXT) == []
    assert skipped([segment(0, 3000, ())], speech((0, 110)), 0, END_OF_TEXT) != []


def test_speech_beside_a_sparse_segment_is_of_the_same_passage() -> None:
    sparse = segment(1000, 2000, (1,))
    passages = skipped([segment(0, 500), sparse, segment(2500, 3000)], speech((0, 3000)), 0, END_OF_TEXT)
    assert passages == [SkippedPassage(500, 2500, (sparse,))]


def word(start: int, end: int, attended: int | None = None) -> TimedWord:
    """Return a word from one frame to another, which the decoder attended to up to a frame."""
    furthest = end if attended is None else attended
    return TimedWord(" so", (1,), start * HOP_LENGTH, end * HOP_LENGTH, 1.0, furthest * HOP_LENGTH)


# Of a segment of 10 s, in frames.
REST = [(600, 700), (700, 800), (800, 900)]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        # Between two words, before the first, and behind the last.
        ([(0, 50), *REST], [(0, 50), (600, 1000)]),
        ([(500, 550), *REST], [(500, 1000)]),
        ([(0, 50), (100, 150), (150, 200)], [(0, 200)]),
        ([(400, 450), (700, 750)], [(400, 450), (700, 750)]),
        # Less than two seconds.
        ([(150, 200), (399, 499), *REST], [(0, 1000)]),
        # A word of 6 s is a second around what was attended to.
        ([(0, 600, 80), *REST], [(0, 130), (600, 1000)]),
        ([(0, 600, 590), *REST], [(500, 1000)]),
        ([(0, 600, 350), *REST], [(300, 400), (600, 1000)]),
        ([(0, 600, 2000), *REST], [(500, 1000)]),
        ([], [(0, 1000)]),
    ],
)
def test_words_that_leave_out_speech_are_in_parts(words: list[tuple[int, ...]], parts: list[tuple[int, int]]) -> None:
    whole = segment(7000, 8000, words=tuple(word(*(7000 + frame for frame in times)) for times in words))
    found = split_at_holes(whole, speech((0, 3000)), 7000)
    assert [(p.start_samples / HOP_LENGTH - 7000, p.end_samples / HOP_LENGTH - 7000) for p in found] == parts
    assert sum(len(part.words) for part in found) == len(words)
    assert all(p.start_samples <= w.start_samples <= w.end_samples <= p.end_samples for p in found for w in p.words)
    assert split_at_holes(whole, speech(), 7000) == [whole]


def test_speech_between_words_is_skipped() -> None:
    whole = segment(0, 1400, words=(word(0, 50), word(50, 100), word(1100, 1200), word(1200, 1300)))
    assert skipped([whole], speech((0, 1400)), 0, END_OF_TEXT) == [SkippedPassage(100, 1100)]
    # A pause is none.
    assert skipped([whole], speech((0, 150), (1000, 1400)), 0, END_OF_TEXT) == []


@pytest.mark.parametrize(
    ("known", "trusted"),
    [
        ({"avg_logprob": -0.5, "compression_ratio": 1.5, "no_speech_prob": 0.1}, True),
        ({"avg_logprob": -1.1, "compression_ratio": 1.5, "no_speech_prob": 0.1}, False),
        ({"avg_logprob": -0.5, "compression_ratio": 2.5, "no_speech_prob": 0.1}, False),
        # Elsewhere a likely text counts whatever this says; here nothing may be invented.
        ({"avg_logprob": -0.5, "compression_ratio": 1.5, "no_speech_prob": 0.7}, False),
    ],
)
def test_a_text_is_trusted_that_passes_all_thresholds(known: dict[str, Any], trusted: bool) -> None:
    off = DecodingSettings(logprob_threshold=None, compression_ratio_threshold=None, no_speech_threshold=None)
    assert is_trusted(segment(0, 1, TEXT, **known), DecodingSettings()) == trusted
    assert is_trusted(segment(0, 1, TEXT, **known), off)


class Script:
    """Texts with times in seconds, one for each window that is decoded, in place of the model's."""

    def __init__(self, model: WhisperModel, *windows: Sequence[tuple[float, str, float]], **known: Any) -> None:  # noqa: ANN401 - as it is
        self._model = model
        self._windows = list(windows)
        self._known = {"no_speech_prob": 0.0, "avg_logprob": -0.2, **known}
        self.asked: list[WindowTask] = []

    def decode(self, _1: object, _2: object, _3: object, task: WindowTask, *_: object) -> DecodedWindow:
        tokenizer = self._model.tokenizer
        begin = tokenizer.special.timestamp_begin
        tokens: list[int] = []
        for start_s, text, end_s in self._windows[len(self.asked)]:
            first, last = (begin + round(time * SAMPLE_RATE / N_SAMPLES_PER_TOKEN) for time in (start_s, end_s))
            tokens += [first, *tokenizer.encode(text), last]
        self.asked.append(task)
        # Later windows have the statistics that were asked for: those of what was skipped.
        known = self._known if len(self.asked) > 1 else {"no_speech_prob": 0.0, "avg_logprob": -0.2}
        return DecodedWindow(
            tokens=tokens,
            log_probs=[-0.2] * len(tokens),
            attention=np.empty((0, 0, 0)),
            n_start=0,
            temperature=task.temperature,
            **known,
        )


def run(
    monkeypatch: pytest.MonkeyPatch,
    model: WhisperModel,
    script: Script,
    duration_s: float,
    *,
    words: bool = False,
    unclear: list[tuple[float, float]] | None = None,
    **options: Any,  # noqa: ANN401 - any option
) -> list[tuple[float, float, str, str]]:
    """Transcribe a recording that the detector takes for speech from beginning to end; windows are not batched."""
    into = unclear if unclear is not None else []
    n_samples = round(duration_s * SAMPLE_RATE)
    n_frames = n_samples // HOP_LENGTH
    monkeypatch.setattr(fallback, "decode_window", script.decode)
    monkeypatch.setattr(
        SpeechFinder, "finish", lambda *_: JoinedSpeech([[(0, n_frames)]], [1.0] * (n_samples // 512), 0.5)
    )
    monkeypatch.setattr(recording_module, "decode_batch", lambda *_: None)
    monkeypatch.setattr(Runtime, "encode", lambda runtime, mel, row: runtime.window(mel.shape[1] // 100, row))
    decoding = decode_options(DecodingSettings(language="en", **options), model, words=words)
    segments = transcribe_segments(
        *(model, np.zeros(n_samples, dtype=np.float32), decoding),
        on_unclear=lambda start, end: into.append((start / SAMPLE_RATE, end / SAMPLE_RATE)),
    )
    return [(s.start_samples / SAMPLE_RATE, s.end_samples / SAMPLE_RATE, s.text.strip(), s.task) for s in segments]


# What is said in the scenes below, by a word of it.
SAID = {
    "day": " and so it began on that day",
    "years": " and so it went on for years",
    "nobody": " with what nobody wrote down before",
    "mill": " and so it began on that day in the mill",
    "Yes": " Yes.",
    "you": " you",
    "Thanks": " Thank you.",
    "nothing": "",
    "Minutes": " Minutes of the mill.",
    "river": " and so it began on that day and went on for years until the mill and the river were sold to a baker",
    "baker": " and so it went on for years until the mill and the river were sold to the baker from town",
}

NO_LADDER: dict[str, Any] = {"temperature_increment_on_fallback": None}
ALLOWED: dict[str, Any] = {"allow_skips": True}
PROMPTED: dict[str, Any] = {"condition_on_previous_text": "always", **ALLOWED}


def heard(windows: str) -> list[list[tuple[float, str, float]]]:
    """Return the texts of windows: start, text and end of each, "0 day 4, 9 years 14 | 0 nobody 5"."""
    texts = [[text.split() for text in window.split(",")] for window in windows.split("|")]
    return [[(float(start), SAID[word], float(end)) for start, word, end in window] for window in texts]


@pytest.mark.parametrize(
    ("windows", "duration_s", "options", "expected"),
    [
        # A sentence that is skipped; one that may be; and one that is not likely, or may be silence.
        ("0 day 4, 9 years 14 | 0 nobody 5", 14, {}, "0 day, 4 nobody, 9 years"),
        ("0 day 4, 9 years 14", 14, ALLOWED, "0 day, 9 years"),
        ("0 day 4, 9 years 14", 14, {"vad_filter": False}, "0 day, 9 years"),
        ("0 day 4, 9 years 14 | 0 nobody 5", 14, {**NO_LADDER, "avg_logprob": -1.5}, "0 day, 9 years"),
        ("0 day 4, 9 years 14 | 0 nobody 5", 14, {**NO_LADDER, "no_speech_prob": 0.7}, "0 day, 9 years"),
        # A word in ten seconds gives way to more than that.
        ("0 day 4, 4 you 14 | 0 nobody 10", 14, {}, "0 day, 4 nobody"),
        ("0 day 4, 4 you 14 | 0 you 10", 14, {}, "0 day, 4 you"),
        # What a window skips at its end is transcribed alone.
        ("0 river 20 | 0 nobody 10 | 0 years 10", 40, {}, "0 river, 20 nobody, 30 years"),
        # In 20 s Whisper skips again; nothing but the quietest place is known, the first that a piece may end at.
        (
            "0 day 4, 24 years 29 | 0 Thanks 4 | 0 Yes 4 | 0 nobody 8",
            *(29, {}, "0 day, 4 Thanks, 9.08 Yes, 14.16 nobody, 24 years"),
        ),
        # Batches fill in what was skipped, also the rest of a window.
        ("0 day 4, 9 years 14 | 0 nobody 5", 14, {"batch_size": 2}, "0 day, 4 nobody, 9 years"),
        ("0 day 4 | 0 nobody 10", 14, {"batch_size": 2}, "0 day, 4 nobody"),
        # A full window leaves enough for the next one.
        ("0 day 4 | 0 Yes 0.6", 30.1, ALLOWED, "0 day, 29.5 Yes"),
        # The last time stands 0.2 s before the end, as if more was to come; of a longer rest something is said.
        ("0 day 7, 7 years 13.8, 13.8 nothing 13.8", 14, {}, "0 day, 7 years"),
        ("0 day 7, 7 years 13.8, 13.8 nothing 13.8 | 0 Yes 0.6", 14.4, {}, "0 day, 7 years, 13.8 Yes"),
        ("0 day 7, 7 years 13.8, 13.8 nothing 13.8", 14, {"vad_filter": False}, "0 day, 7 years"),
        # What only repeats its prompt is decoded without it; what is said twice comes again.
        ("0 day 4, 4 years 29 | 0 years 9 | 0 nobody 9", 39, PROMPTED, "0 day, 4 years, 30 nobody"),
        ("0 day 4, 4 years 29 | 0 years 9 | 0 years 9", 39, PROMPTED, "0 day, 4 years, 30 years"),
        # A prompt of the user is no text of a batch.
        (
            "0 Minutes 9 | 0 day 4",
            *(14, {"batch_size": 2, "initial_prompt": "Minutes of the mill", **ALLOWED}, "0 day"),
        ),
        # What nobody can say in the time is decoded without the text before it, and is no text if that does not help.
        ("0 day 4 | 0 baker 5 | 0 Yes 5", 30.6, PROMPTED, "0 day, 30 Yes"),
        ("0 day 4 | 0 baker 5 | 0 Yes 5", 30.6, {"vad_filter": False, **PROMPTED}, "0 day, 30 Yes"),
        ("0 day 4 | 0 baker 5 | 0 baker 5", 30.6, PROMPTED, "0 day"),
        ("0 day 4 | 0 baker 5", 30.6, {"keep_failed": "last", **PROMPTED}, "0 day, 30 baker"),
    ],
)
def test_a_recording_has_what_was_said_and_nothing_else(
    windows: str,
    duration_s: float,
    options: dict[str, Any],
    expected: str,
    model: WhisperModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {name: options[name] for name in ("avg_logprob", "no_speech_prob") if name in options}
    others = {name: value for name, value in options.items() if name not in known}
    script = Script(model, *heard(windows), **known)
    found = run(monkeypatch, model, script, duration_s, **others)
    texts = [text.split() for text in expected.split(",")]
    assert [text for _, _, text, _ in found] == [SAID[word].strip() for _, word in texts]
    assert [start for start, *_ in found] == pytest.approx([float(start) for start, _ in texts], abs=0.3)
    assert len(script.asked) == windows.count("|") + 1


def test_both_tasks_get_what_was_skipped_without_the_text_around_it(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(model, *heard("0 day 4, 9 years 14 | 0 day 4, 9 years 14 | 0 nobody 5 | 0 nobody 5"))
    found = run(monkeypatch, model, script, 14, task="both", initial_prompt="Minutes.")
    for task in ("transcribe", "translate"):
        assert [start for start, *_, of in found if of == task] == [0.0, 4.0, 9.0]
    assert [options.task for options in script.asked] == ["transcribe", "translate"] * 2
    assert model.tokenizer.decode(list(script.asked[2].prompt)).strip() == "Minutes.", "only what the user prompts"


@pytest.mark.parametrize(
    "options", [{}, {"vad_filter": False}, {"batch_size": 2}, {"vad_filter": False, "clip_timestamps": "0,99"}]
)
def test_no_text_lies_behind_the_recording(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    found = run(monkeypatch, model, Script(model, *heard("0 day 4, 4 years 15, 15 Thanks 17")), 14, **options)
    assert [(start, end) for start, end, *_ in found] == [(0.0, 4.0), (4.0, 14.0)]


@pytest.mark.parametrize(
    ("windows", "known", "expected"),
    [
        ("0 day 4, 9 years 14 | 0 nobody 5", {"avg_logprob": -1.5}, [(4.0, 9.0)]),
        ("0 day 4, 5.5 years 14 | 0 nobody 5", {"avg_logprob": -1.5}, []),
        ("0 day 4, 9 years 14 | 0 day 4", {}, []),  # what its window says elsewhere is not missing
    ],
)
def test_what_has_no_text_in_the_end_is_reported(
    windows: str,
    known: dict[str, float],
    expected: list[tuple[float, float]],
    model: WhisperModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unclear: list[tuple[float, float]] = []
    run(monkeypatch, model, Script(model, *heard(windows), **known), 14, unclear=unclear, **NO_LADDER)
    assert unclear == expected


def in_halves(_: object, tokenizer: Tokenizer, segments: Sequence[Segment], *_1: object, **_2: object) -> list[Any]:
    """Time the words of segments: 0.5 s each from the start, and the last one up to the end."""
    found = []
    for segment in segments:
        words = split_to_words(tokenizer, [token for token in segment.tokens if tokenizer.is_text(token)], "en")
        starts = [segment.start_samples + i * SAMPLE_RATE // 2 for i in range(len(words))]
        starts[-1:] = [segment.end_samples - SAMPLE_RATE // 2 for _ in words[-1:]]
        timed = [TimedWord(*word, at, at + SAMPLE_RATE // 2, 0.5) for word, at in zip(words, starts, strict=True)]
        found.append(SpokenSegment(segment.start_samples, segment.end_samples, tuple(timed)))
    return found


@pytest.mark.parametrize("said", ["nobody", "nothing"])
def test_a_clause_that_is_missing_between_words_is_put_in_its_place(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(texts, "add_word_timestamps", in_halves)
    unclear: list[tuple[float, float]] = []
    script = Script(model, *heard(f"0 mill 13 | 0 {said} 8"))
    found = [each[:3] for each in run(monkeypatch, model, script, 13, words=True, unclear=unclear)]
    assert (found[0], found[-1]) == ((0.0, 4.5, "and so it began on that day in the"), (12.5, 13.0, "mill"))
    # The last word of what was put in is far from the others, too.
    assert [text for *_, text in found[1:-1]] == (["with what nobody wrote down", "before"] if SAID[said] else [])
    assert unclear == ([(7.0, 12.0)] if SAID[said] else [(4.5, 12.5)])


@pytest.mark.parametrize(
    ("text", "others", "expected"),
    [
        (" The Commission regards such stops.", " Yes. The commission regards such tops as presenting", True),
        (" But nobody was there.", " The Commission regards such stops.", False),
        (" But nobody was there.", "", False),
        ("", " The Commission regards such stops.", False),
    ],
)
def test_a_text_that_the_window_has_already_is_a_repetition(text: str, others: str, expected: bool) -> None:
    assert repeats(text, others) == expected
