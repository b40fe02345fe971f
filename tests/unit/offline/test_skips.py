"""Speech that Whisper skipped: which passages are transcribed again, and what is put in their place."""

import logging
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
from streamer.whisper.decode.window import DecodedWindow, WindowOptions
from streamer.whisper.decode.word_timestamps import SpokenSegment
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import resolve_decoding
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
        self.asked: list[WindowOptions] = []

    def decode(self, _1: object, _2: object, _3: object, options: WindowOptions, *_: object) -> DecodedWindow:
        tokenizer = self._model.tokenizer
        begin = tokenizer.special.timestamp_begin
        tokens: list[int] = []
        for start_s, text, end_s in self._windows[len(self.asked)]:
            first, last = (begin + round(time * SAMPLE_RATE / N_SAMPLES_PER_TOKEN) for time in (start_s, end_s))
            tokens += [first, *tokenizer.encode(text), last]
        self.asked.append(options)
        # Later windows have the statistics that were asked for: those of what was skipped.
        known = self._known if len(self.asked) > 1 else {"no_speech_prob": 0.0, "avg_logprob": -0.2}
        return DecodedWindow(
            tokens=tokens,
            log_probs=[-0.2] * len(tokens),
            attention=np.empty((0, 0, 0)),
            n_start=0,
            temperature=options.temperature,
            **known,
        )


def run(
    monkeypatch: pytest.MonkeyPatch,
    model: WhisperModel,
    script: Script,
    duration_s: float,
    **options: Any,  # noqa: ANN401 - any option
) -> list[tuple[float, float, str, str]]:
    """Transcribe a recording that the detector takes for speech from beginning to end."""
    n_samples = round(duration_s * SAMPLE_RATE)
    n_frames = n_samples // HOP_LENGTH
    monkeypatch.setattr(fallback, "decode_window", script.decode)
    monkeypatch.setattr(
        SpeechFinder, "finish", lambda *_: JoinedSpeech([[(0, n_frames)]], [1.0] * (n_samples // 512), 0.5)
    )
    words, on_unclear = options.pop("words", False), options.pop("on_unclear", lambda start, end: None)
    decoding = resolve_decoding(DecodingSettings(language="en", **options), model, words=words)
    segments = transcribe_segments(model, np.zeros(n_samples, dtype=np.float32), decoding, on_unclear=on_unclear)
    return [(s.start_samples / SAMPLE_RATE, s.end_samples / SAMPLE_RATE, s.text.strip(), s.task) for s in segments]


FIRST = (0.0, " and so it began on that day", 4.0)
LAST = (9.0, " and so it went on for years", 14.0)
SKIPPED = (0.0, " with what nobody wrote down before", 5.0)


def test_a_sentence_that_whisper_skipped_is_put_in_its_place(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(model, [FIRST, LAST], [SKIPPED])
    with caplog.at_level(logging.INFO):
        found = run(monkeypatch, model, script, 14, initial_prompt="Minutes.")
    assert [(start, end, text) for start, end, text, _ in found] == [
        (0.0, 4.0, "and so it began on that day"),
        (4.0, 9.0, "with what nobody wrote down before"),
        (9.0, 14.0, "and so it went on for years"),
    ]
    assert "skipped passages transcribed again: 1" in caplog.text
    # Alone: with what the user prompts, and without the text around it.
    assert model.tokenizer.decode(list(script.asked[1].prompt)).strip() == "Minutes."


@pytest.mark.parametrize("options", [{"allow_skips": True}, {"vad_filter": False}])
def test_a_skip_may_be_allowed(model: WhisperModel, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]) -> None:
    assert len(run(monkeypatch, model, Script(model, [FIRST, LAST]), 14, **options)) == 2


@pytest.mark.parametrize("known", [{"avg_logprob": -1.5}, {"no_speech_prob": 0.7}])
def test_nothing_is_put_in_that_fails_a_threshold(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, known: dict[str, float]
) -> None:
    script = Script(model, [FIRST, LAST], [SKIPPED], **known)
    with caplog.at_level(logging.INFO):
        found = run(monkeypatch, model, script, 14, temperature_increment_on_fallback=None)
    assert [text for _, _, text, _ in found] == ["and so it began on that day", "and so it went on for years"]
    assert len(script.asked) == 2
    assert "skipped" not in caplog.text


def test_a_sparse_segment_is_replaced_by_what_says_more(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = (4.0, " you", 14.0)
    more = (0.0, " with what nobody wrote down before", 10.0)
    found = run(monkeypatch, model, Script(model, [FIRST, sparse], [more]), 14)
    assert [text for _, _, text, _ in found] == ["and so it began on that day", "with what nobody wrote down before"]
    found = run(monkeypatch, model, Script(model, [FIRST, sparse], [(0.0, " you", 10.0)]), 14)
    assert [text for _, _, text, _ in found] == ["and so it began on that day", "you"]


def test_what_a_window_skips_at_its_end_is_transcribed_alone(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = " and so it began on that day and went on for years until the mill and the river were sold to the baker"
    more, last = " while nobody looked out of the window", " until the house was sold to a baker from town"
    script = Script(model, [(0.0, spoken, 20.0)], [(0.0, more, 10.0)], [(0.0, last, 10.0)])
    found = run(monkeypatch, model, script, 40)
    assert [(start, end) for start, end, _, _ in found] == [(0.0, 20.0), (20.0, 30.0), (30.0, 40.0)]


def spoken(_1: object, tokenizer: Tokenizer, segments: Sequence[Segment], *_: object, **_2: object) -> Any:  # noqa: ANN401 - as it is
    """Time the words of segments: 0.5 s each from the start, and the last one up to the end."""
    for segment in segments:
        tokens = [token for token in segment.tokens if tokenizer.is_text(token)]
        words = split_to_words(tokenizer, tokens, "en")
        times = [segment.start_samples + i * SAMPLE_RATE // 2 for i in range(len(words))]
        timed = [
            TimedWord(text, own, at, at + SAMPLE_RATE // 2, 0.5) for (text, own), at in zip(words, times, strict=True)
        ]
        last = segment.end_samples - SAMPLE_RATE // 2, segment.end_samples
        timed[-1:] = [TimedWord(*word, *last, 0.5) for word in words[-1:]]
        yield SpokenSegment(segment.start_samples, segment.end_samples, tuple(timed))


@pytest.mark.parametrize("found", [SKIPPED[1], ""])
def test_a_clause_that_is_missing_between_words_is_put_in_its_place(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr(texts, "add_word_timestamps", lambda *args, **options: list(spoken(*args, **options)))
    unclear: list[tuple[float, float]] = []

    def note(start: int, end: int) -> None:
        unclear.append((start / SAMPLE_RATE, end / SAMPLE_RATE))

    script = Script(model, [(0.0, " and so it began on that day in the mill", 13.0)], [(0.0, found, 8.0)])
    texts_found = run(monkeypatch, model, script, 13, words=True, on_unclear=note)
    before, behind = (0.0, 4.5, "and so it began on that day in the"), (12.5, 13.0, "mill")
    assert [each[:3] for each in (texts_found[0], texts_found[-1])] == [before, behind]
    if found:
        # The last word of what was put in is far from the others, too.
        assert [said for *_, said, _ in texts_found[1:-1]] == ["with what nobody wrote down", "before"]
        assert unclear == [(7.0, 12.0)]
    else:
        assert unclear == [(4.5, 12.5)]


def test_what_has_no_text_in_the_end_is_reported(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for end_s, expected in ((9.0, [(4.0, 9.0)]), (5.5, [])):
        unclear: list[tuple[float, float]] = []
        script = Script(model, [FIRST, (end_s, *LAST[1:])], [SKIPPED], avg_logprob=-1.5)
        run(
            monkeypatch,
            model,
            script,
            14,
            temperature_increment_on_fallback=None,
            on_unclear=lambda start, end, into=unclear: into.append((start / SAMPLE_RATE, end / SAMPLE_RATE)),
        )
        assert unclear == expected
    # What its window says elsewhere is not missing.
    script = Script(model, [FIRST, LAST], [(0.0, FIRST[1], 4.0)])
    run(monkeypatch, model, script, 14, on_unclear=lambda start, end: unclear.append((start, end)))
    assert not unclear


def test_a_long_passage_is_transcribed_in_pieces(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    # In 20 s Whisper skips again; nothing but the quietest place is known, the first that a piece may end at.
    pieces = [(0.0, " while nobody looked", 4.0), (0.0, " out of the window", 4.0), (0.0, " until the baker came", 8.0)]
    script = Script(model, [FIRST, (24.0, LAST[1], 29.0)], *([piece] for piece in pieces))
    found = run(monkeypatch, model, script, 29)
    assert [text for _, _, text, _ in found] == [text.strip() for _, text, _ in (FIRST, *pieces, LAST)]
    assert [start for start, *_ in found] == pytest.approx([0.0, 4.0, 9.08, 14.16, 24.0], abs=0.3)


@pytest.mark.parametrize("vad_filter", [True, False])
def test_what_is_left_of_a_recording_is_no_window(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, vad_filter: bool
) -> None:
    # The last time stands 0.2 s before the end, as if more was to come; of a longer rest something is said.
    text = (0.0, FIRST[1], 7.0), (7.0, LAST[1], 13.8)
    for duration_s, n_windows in ((14.0, 1), (14.4, 2)):
        script = Script(model, [*text, (13.8, "", 13.8)], [(0.0, " Yes.", 0.6)])
        run(monkeypatch, model, script, duration_s, vad_filter=vad_filter)
        assert len(script.asked) == n_windows


def test_a_full_window_leaves_enough_for_the_next_one(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(model, [FIRST], [(0.0, " Yes.", 0.6)])
    found = run(monkeypatch, model, script, 30.1, allow_skips=True)
    assert [(start, end) for start, end, *_ in found] == [(0.0, 4.0), (29.5, 30.1)]


PARAGRAPH = " and so it went on for years until the mill and the river were sold to the baker from town"


@pytest.mark.parametrize("vad_filter", [True, False])
@pytest.mark.parametrize("unprompted", [" Yes.", PARAGRAPH])
def test_a_scrap_gets_no_paragraph(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, unprompted: str, vad_filter: bool
) -> None:
    """What nobody can say in the time is decoded without the text before it, and is no text if that does not help."""
    windows = [[FIRST], [(0.0, PARAGRAPH, 5.0)], [(0.0, unprompted, 5.0)]]
    script = Script(model, *windows)
    options = {"vad_filter": vad_filter, "condition_on_previous_text": "always", "allow_skips": True}
    found = run(monkeypatch, model, script, 30.6, **options)
    assert [bool(options.prompt) for options in script.asked] == [False, True, False]
    assert [text for *_, text, _ in found[1:]] == ([] if unprompted == PARAGRAPH else ["Yes."])
    # As openai-whisper has it.
    script = Script(model, *windows)
    found = run(monkeypatch, model, script, 30.6, **options, keep_failed="last")
    assert found[1][2] == PARAGRAPH.strip()


def test_a_text_that_only_repeats_its_prompt_is_decoded_without_it(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is said twice comes again.
    for said in (" It went on for years.", LAST[1]):
        script = Script(model, [FIRST, (4.0, LAST[1], 29.0)], [(0.0, LAST[1], 9.0)], [(0.0, said, 9.0)])
        found = run(monkeypatch, model, script, 39, condition_on_previous_text="always", allow_skips=True)
        assert [text for *_, text, _ in found[2:]] == [said.strip()]


def test_a_prompt_of_the_user_is_no_text_of_a_batch(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "decode_batch", lambda *_: None)
    script = Script(model, [(0.0, " Minutes of the mill.", 9.0)], [FIRST])
    found = run(monkeypatch, model, script, 14, batch_size=2, allow_skips=True, initial_prompt="Minutes of the mill")
    assert [text for *_, text, _ in found] == [FIRST[1].strip()]


def test_no_text_lies_behind_the_recording(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({}, {"vad_filter": False}, {"batch_size": 2}, {"vad_filter": False, "clip_timestamps": "0,99"}):
        monkeypatch.setattr(recording_module, "decode_batch", lambda *_: None)
        script = Script(model, [FIRST, (4.0, LAST[1], 15.0), (15.0, " Thank you.", 17.0)])
        found = run(monkeypatch, model, script, 14, **options)
        assert [(start, end) for start, end, *_ in found] == [(0.0, 4.0), (4.0, 14.0)]


def test_both_tasks_get_what_was_skipped(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(model, [FIRST, LAST], [FIRST, LAST], [SKIPPED], [SKIPPED])
    found = run(monkeypatch, model, script, 14, task="both")
    assert [start for start, *_, task in found if task == "transcribe"] == [0.0, 4.0, 9.0]
    assert [start for start, *_, task in found if task == "translate"] == [0.0, 4.0, 9.0]
    assert [options.task for options in script.asked] == ["transcribe", "translate"] * 2


def test_batches_fill_in_what_was_skipped(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "decode_batch", lambda *_: None)
    script = Script(model, [FIRST, LAST], [SKIPPED], [FIRST], [(0.0, SKIPPED[1], 10.0)])
    assert [start for start, *_ in run(monkeypatch, model, script, 14, batch_size=2)] == [0.0, 4.0, 9.0]
    # A text that leaves off early: the rest of its window.
    assert [start for start, *_ in run(monkeypatch, model, script, 14, batch_size=2)] == [0.0, 4.0]


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
