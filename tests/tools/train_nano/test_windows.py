"""What a window's labels say is what its audio has: nothing that was cut off, at the times at which it is heard.

The corpus is made so that every test can hear it: each word has one sound of its own, and the samples of a sound are
all alike. What is written is held against what the windows' audio itself shows.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from streamer.audio.constants import SAMPLE_RATE
from tests.tools.train_nano.support import Said, write_shard
from tools.train_nano.corpus import Corpus
from tools.train_nano.spectrogram import UNWARPED, WARPS
from tools.train_nano.windows import (
    FRAME_S,
    IGNORED,
    MOST_TOKENS,
    PHONES,
    PROMPT_TOKENS,
    UNCLEAR_S,
    Lesson,
    Script,
    Window,
    Windows,
)

TOKENIZER = Path(__file__).parents[3] / "models" / "nano.en" / "tokenizer.json"
# One word for each sound but the pause; some are one token, some many.
_SHORT = "the of and in to a it is he was that had she they with for at by on not this have from but which were there"
_LONG = "magnificent Elizabeth, seventy-two Thursday. quarter 'tis encyclopedia, rhythm? \"So thirteen; I Zanzibar"
WORDS = [*_SHORT.split(), *_LONG.split()]
NUMBER = {word: number for number, word in enumerate(WORDS, 1)}
LOUDNESS = 500  # of a sound: this times one more than its number
MARGIN_S = 0.06  # before the first word of an utterance and after the last
LESSON = Lesson(seconds=6.0, prompts=0.5, timestamps=0.5, cuts=0.5, padding=0.4, shifted=0.5, no_speech=0.0)


@cache
def script() -> Script:
    return Script(Tokenizer.from_file(str(TOKENIZER)))


def duration(word: str) -> float:
    """How long a word lasts when nothing cuts it off."""
    return 0.12 + 0.012 * NUMBER[word]


def utterance(words: list[str], gaps: list[float], lengths: list[float]) -> Said:
    """Words that follow one another, with a pause before each but the first."""
    times = []
    phones = [("pau", MARGIN_S)]
    at = MARGIN_S
    for word, gap, length in zip(words, [0.0, *gaps], lengths, strict=True):
        if gap:
            at = round(at + gap, 3)
            phones.append(("pau", at))
        times.append((at, round(at + length, 3)))
        at = times[-1][1]
        phones.append((PHONES[NUMBER[word]], at))
    phones.append(("pau", round(at + MARGIN_S, 3)))
    samples = np.zeros(round(phones[-1][1] * SAMPLE_RATE), np.int16)
    begin = 0
    for name, end in phones:
        number = PHONES.index(name)
        samples[begin : round(end * SAMPLE_RATE)] = LOUDNESS * (number + 1) if number else 0
        begin = round(end * SAMPLE_RATE)
    return Said(" ".join(words), times, phones, samples)


def utterances(seed: int, known: list[str] = WORDS, count: int = 30) -> list[Said]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        words = rng.sample(known, rng.randint(1, 12))
        gaps = [rng.choice((0.0, 0.0, 0.04, round(rng.uniform(0.02, 0.3), 3))) for _ in words[1:]]
        made.append(utterance(words, gaps, [duration(word) for word in words]))
    return made


def corpus_of(folder: Path, **voices: list[Said]) -> Corpus:
    for name, said in voices.items():
        write_shard(folder, f"{name}-0000", said)
    corpus = Corpus(folder)
    corpus.refresh()
    return corpus


def windows_of(corpus: Corpus, seed: int = 0) -> Windows:
    return Windows(corpus, dict.fromkeys(corpus.voices, 1.0), script(), seed)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus_of(tmp_path_factory.mktemp("corpus"), one=utterances(1), two=utterances(2))


@pytest.fixture(scope="module")
def made(corpus: Corpus) -> list[Window]:
    """Windows of every kind, of several lengths, not spoilt."""
    lengths = (2.0, 5.0, 6.0, 8.0, 30.0)
    return [windows_of(corpus, seed).make(replace(LESSON, seconds=lengths[seed % 5])) for seed in range(600)]


@dataclass(frozen=True)
class Heard:
    """A word that the frames of a window name, and when its samples are heard."""

    word: str
    start: float
    end: float

    @property
    def whole(self) -> bool:
        return self.end - self.start > duration(self.word) - UNCLEAR_S / 2


def heard(window: Window) -> list[Heard]:
    frames = np.concatenate([[0], window.phones, [0]])
    edges = np.flatnonzero(np.diff(frames))
    changes = np.flatnonzero(np.diff(window.audio, prepend=0, append=0)) / SAMPLE_RATE  # a word is one tone throughout
    found = []
    for begin, end in pairwise(edges):
        if frames[begin + 1]:
            after = np.searchsorted(changes, (begin + end) / 2 * FRAME_S)
            found.append(Heard(WORDS[frames[begin + 1] - 1], changes[after - 1], changes[after]))
    return found


@dataclass(frozen=True)
class Parts:
    """A window's tokens."""

    prompt: list[int]
    head: list[int]
    text: list[int]  # with timestamps, without the end
    timed: bool

    @property
    def words(self) -> list[int]:
        return [token for token in self.text if token < script().end]


def parts(window: Window) -> Parts:
    tokens = window.tokens
    start = tokens.index(script().start)
    timed = script().no_timestamps not in tokens
    head = start + (3 if timed else 4)
    return Parts(tokens[:start], tokens[start:head], tokens[head:], timed)


def seconds_of(token: int) -> float:
    return (token - script().timestamp(0.0)) * FRAME_S


def test_a_window_is_as_long_as_its_lesson_says(made: list[Window]) -> None:
    for window in made:
        frames = len(window.phones)
        assert frames * FRAME_S in (2.0, 5.0, 6.0, 8.0, 30.0)
        assert window.audio.shape == (320 * frames,)
        assert window.audio.dtype == np.float32
        assert window.phones.dtype == np.int64
        assert len(window.tokens) == len(window.labels) == len(window.times) <= MOST_TOKENS
        assert 0 <= window.position <= 1500 - frames
        assert 0 <= window.mel_end <= 2 * frames
    assert {window.position for window in made if len(window.phones) == 1500} == {0}
    assert len({window.position for window in made}) > 100


def test_the_labels_are_the_next_tokens_and_nothing_is_learnt_of_the_prompt(made: list[Window]) -> None:
    for window in made:
        split = parts(window)
        start = len(split.prompt)
        first = start + len(split.head) - 1  # the last token of the head; after it the transcript is predicted
        assert window.labels[:start] == [IGNORED] * start
        assert window.labels[start] == script().language
        assert window.labels[start + 1 : first] == [IGNORED] * (first - start - 1)
        assert window.labels[first:-1] == window.tokens[first + 1 :]
        assert window.labels[-1] == script().end
        assert script().end not in window.tokens


def test_the_head_is_whispers(made: list[Window]) -> None:
    marks = script()
    for window in made:
        split = parts(window)
        assert split.head[:3] == [marks.start, marks.language, marks.task]
        assert split.head[3:] == ([] if split.timed else [marks.no_timestamps])
        assert all(token < marks.end or token >= marks.timestamp(0.0) for token in split.text)
    for found in ([parts(window).timed for window in made], [bool(parts(window).prompt) for window in made]):
        assert np.mean(found) == pytest.approx(0.5, abs=0.08)


def test_every_frame_has_the_number_of_the_sound_that_is_heard_in_its_middle(made: list[Window]) -> None:
    for window in made:
        middles = np.arange(len(window.phones)) * 320 + 160
        steady = np.ptp([window.audio[middles + shift] for shift in (-8, -4, 0, 4, 8)], axis=0) == 0
        assert np.mean(steady) > 0.8
        assert np.array_equal(window.phones[steady] > 0, window.audio[middles][steady] > 0)
        level = window.audio[middles] / (window.phones + 1)
        loud = level[steady & (window.phones > 0)]
        assert len(loud) == 0 or np.ptp(loud) < 1e-3 * loud.max()


def test_what_is_written_is_what_is_heard_in_full(made: list[Window]) -> None:
    written = cut_off = 0
    for window in made:
        said = heard(window)
        words = [one.word for one in said if one.whole]
        assert parts(window).words == script().text(words)
        assert all(one.whole for one in said[:-1])
        written += len(words)
        cut_off += len(said) - len(words)
    assert written > 2000
    assert cut_off > 50


def test_each_word_has_its_own_time(made: list[Window]) -> None:
    for window in made:
        said = iter(one for one in heard(window) if one.whole)
        tokens = [(token, time) for token, time in zip(window.labels, window.times, strict=True)]
        first = len(window.tokens) - len(parts(window).text) - 1
        assert all(time < 0 for _, time in tokens[:first])
        spoken = [(token, time) for token, time in tokens[first:] if token < script().end]
        while spoken:
            one = next(said)
            count = len(script().word(one.word)[0])
            times = [time for _, time in spoken[:count]]
            spoken = spoken[count:]
            assert times == sorted(set(times))
            assert one.start - FRAME_S < times[0]
            assert times[-1] < one.end + FRAME_S


def test_every_time_lies_within_the_window(made: list[Window]) -> None:
    for window in made:
        known = [time for time in window.times if time != -1.0]
        assert known == sorted(known)
        assert all(0 <= time <= len(window.phones) * FRAME_S for time in known)


def test_the_end_is_predicted_where_the_last_word_ends(made: list[Window]) -> None:
    for window in made:
        whole = [one for one in heard(window) if one.whole]
        assert window.times[-1] == (pytest.approx(whole[-1].end, abs=FRAME_S) if whole else -1.0)


def test_timestamps_count_from_the_thirty_seconds_and_frame_the_sentences(made: list[Window]) -> None:
    marks = script()
    sentences = 0
    for window in made:
        split = parts(window)
        if not split.timed:
            assert all(token < marks.end for token in split.text)
            continue
        stamps = [seconds_of(token) for token in split.text if token >= marks.end]
        offset = window.position * FRAME_S
        assert stamps == sorted(stamps)
        assert all(offset <= stamp <= offset + len(window.phones) * FRAME_S + 1e-6 for stamp in stamps)
        whole = [one for one in heard(window) if one.whole]
        labels = window.labels[len(window.tokens) - len(split.text) - 1 : -1]
        assert labels == split.text
        assert not split.text or split.text[0] >= marks.end
        opened = False
        sounded = 0.0  # where the last word so far ends
        remaining = list(whole)
        at = 0
        while at < len(labels):
            if labels[at] >= marks.end:
                stamp = seconds_of(labels[at]) - offset
                opened = not opened
                edge = remaining[0].start if opened else sounded
                assert stamp == pytest.approx(edge, abs=1.6 * FRAME_S)
                sentences += opened
                at += 1
            else:
                assert opened
                one = remaining.pop(0)
                sounded = one.end
                at += len(marks.word(one.word)[0])
        assert not remaining
    assert sentences > 500


def test_a_sentence_that_is_cut_off_has_no_last_timestamp(tmp_path: Path) -> None:
    words = WORDS[:30]
    corpus = corpus_of(tmp_path, one=[utterance(words, [0.05] * 29, [duration(word) for word in words])])
    windows = windows_of(corpus)
    for _ in range(100):
        text = parts(windows.make(Lesson(seconds=4.0, timestamps=1.0, no_speech=0.0))).text
        assert text[0] >= script().end
        assert all(token < script().end for token in text[1:])


def test_no_cut_leaves_a_word_of_which_nobody_could_tell_whether_it_was_said_in_full(made: list[Window]) -> None:
    found = 0
    for window in made:
        for one in heard(window):
            if not one.whole:
                found += 1
                assert one.end - one.start < duration(one.word) - UNCLEAR_S + 0.001
    assert found > 50


def test_no_cut_lies_just_before_the_end_of_a_short_word_either(tmp_path: Path) -> None:
    words = WORDS[:20]
    corpus = corpus_of(tmp_path, one=[utterance(words, [0.0] * 19, [0.3, 0.06] * 10)])
    windows = windows_of(corpus)
    (said,) = corpus.voices["one"]
    for _ in range(200):
        sound = np.flatnonzero(windows.make(Lesson(seconds=2.0, timestamps=0.0, no_speech=0.0)).audio)
        cut = MARGIN_S + (sound[-1] + 1 - sound[0]) / SAMPLE_RATE  # in the utterance
        missing = [end - cut for _, end in said.words]
        assert not [seconds for seconds in missing if 0.001 < seconds < UNCLEAR_S - 0.001]


def test_speech_may_begin_before_the_window_and_what_was_said_before_is_the_prompt(tmp_path: Path) -> None:
    words = WORDS[:30]
    before = ["Zanzibar", "rhythm?"]
    said = replace(utterance(words, [0.05] * 29, [duration(word) for word in words]), before=" ".join(before))
    windows = windows_of(corpus_of(tmp_path, one=[said]))
    firsts = set()
    others = 0
    for _ in range(200):
        window = windows.make(Lesson(seconds=8.0, prompts=1.0, cuts=1.0, no_speech=0.0))
        first = NUMBER[heard(window)[0].word] - 1
        prompt = parts(window).prompt
        assert prompt[0] == script().previous
        assert 1 <= len(prompt) - 1 <= PROMPT_TOKENS
        if prompt[1:] != script().text(before + words[:first])[1 - len(prompt) :]:  # another text
            assert prompt[1:] == script().text(before + words)[1 - len(prompt) :]
            others += 1
        assert heard(window)[0].start <= 0.05 + FRAME_S
        firsts.add(first)
    assert firsts == set(range(1, 29))
    assert 30 < others < 90


def test_windows_are_warped_by_the_share_that_the_lesson_says(corpus: Corpus) -> None:
    windows = windows_of(corpus)
    assert {windows.make(LESSON).warp for _ in range(50)} == {UNWARPED}
    warps = Counter(windows.make(replace(LESSON, warped=0.5)).warp for _ in range(1000))
    assert set(warps) == set(range(len(WARPS)))
    assert warps[UNWARPED] / 1000 == pytest.approx(0.5 + 0.5 / len(WARPS), abs=0.06)


def test_without_cuts_every_sentence_is_heard_from_its_beginning(corpus: Corpus) -> None:
    beginnings = {said.text.split()[0] for voice in corpus.voices.values() for said in voice}
    windows = windows_of(corpus)
    for _ in range(100):
        window = windows.make(Lesson(seconds=8.0, no_speech=0.0, timestamps=1.0))
        assert heard(window)[0].word in beginnings


@pytest.mark.parametrize("tokens", [400, 430, 440, 443])
@pytest.mark.parametrize("timestamps", [0.0, 1.0])
def test_no_window_has_more_tokens_than_whisper(tmp_path: Path, tokens: int, timestamps: float) -> None:
    """A prompt leaves room for the transcript, however fast the speech is."""
    long = "encyclopedia,"
    size = len(script().word(long)[0])
    assert len(script().word("the")[0]) == 1
    words = [long] * (tokens // size) + ["the"] * (tokens % size)
    length = round(29.5 / len(words), 3)
    corpus = corpus_of(tmp_path, one=[utterance(words, [0.0] * (len(words) - 1), [length] * len(words))])
    windows = windows_of(corpus)
    for _ in range(20):
        window = windows.make(Lesson(seconds=30.0, prompts=1.0, timestamps=timestamps, no_speech=0.0))
        assert len(window.tokens) <= MOST_TOKENS


@pytest.mark.parametrize("with_times", [False, True])
def test_a_window_without_speech_says_so_and_ends(corpus: Corpus, with_times: bool) -> None:
    marks = script()
    windows = windows_of(corpus)
    lesson = replace(LESSON, no_speech=1.0, timestamps=float(with_times))
    silent = prompted = 0
    for _ in range(100):
        window = windows.make(lesson)
        start = window.tokens.index(marks.start)
        tokens, labels = window.tokens[start:], window.labels[start:]
        prompted += start > 0
        assert window.labels[:start] == [IGNORED] * start
        assert tokens[:3] == [marks.start, marks.language, marks.task]
        assert labels[0] == marks.no_speech
        assert labels[-1] == marks.end
        if with_times:
            stamp = marks.timestamp(window.position * FRAME_S)
            assert tokens[3:] == [stamp]
            assert labels[1:-1] == [IGNORED, stamp]
        else:
            assert tokens[3:] == [marks.no_timestamps]
            assert labels[1:-1] == [IGNORED, IGNORED]
        assert window.times == [-1.0] * len(window.tokens)
        assert not window.phones.any()
        assert window.audio.shape == (320 * len(window.phones),)
        assert window.audio.dtype == np.float32
        assert np.isfinite(window.audio).all()
        assert np.abs(window.audio).max() <= 1
        silent += not window.audio.any()
    assert 0 < silent < 40
    assert 30 < prompted < 70


def test_the_share_without_speech(corpus: Corpus) -> None:
    windows = windows_of(corpus)
    labels = [windows.make(replace(LESSON, no_speech=0.3)).labels for _ in range(500)]
    assert np.mean([script().no_speech in label for label in labels]) == pytest.approx(0.3, abs=0.06)


def test_no_audio_lies_behind_the_end_of_the_spectrogram(made: list[Window]) -> None:
    short = 0
    for window in made:
        short += window.mel_end < 2 * len(window.phones)
        assert not window.audio[window.mel_end * 160 :].any()
    assert short > 20


def test_spoilt_windows_keep_their_words(corpus: Corpus) -> None:
    spoilt = 0
    for seed in range(60):
        clean = windows_of(corpus, seed).make(replace(LESSON, degraded=1.0, strength=0.0))
        hard = windows_of(corpus, seed).make(replace(LESSON, degraded=1.0, strength=1.0))
        assert hard.audio.shape == clean.audio.shape
        assert hard.audio.dtype == np.float32
        assert np.isfinite(hard.audio).all()
        assert np.array_equal(hard.phones, clean.phones)
        assert hard.tokens == clean.tokens
        spoilt += not np.array_equal(hard.audio, clean.audio)
    assert spoilt > 40


def test_the_same_seed_makes_the_same_windows(corpus: Corpus) -> None:
    lesson = replace(LESSON, degraded=0.5, strength=1.0, no_speech=0.2, masked=0.5)
    one, same, other = windows_of(corpus, 7), windows_of(corpus, 7), windows_of(corpus, 8)
    differs = 0
    for _ in range(40):
        first, second, third = one.make(lesson), same.make(lesson), other.make(lesson)
        for name, value in vars(first).items():
            assert np.array_equal(value, getattr(second, name)), name
        differs += not np.array_equal(first.audio, third.audio)
    assert differs > 35


def test_voices_are_heard_by_their_shares_and_those_without_speech_not_at_all(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, one=utterances(1, WORDS[:20]), two=utterances(2, WORDS[20:]))
    windows = Windows(corpus, {"absent": 50.0, "one": 3.0, "two": 1.0}, script(), 0)
    first: Counter[str] = Counter()
    while first.total() < 800:
        said = heard(windows.make(Lesson(seconds=2.0, no_speech=0.0)))
        first.update("one" if NUMBER[one.word] <= 20 else "two" for one in said[:1])
    assert first["one"] / first.total() == pytest.approx(0.75, abs=0.05)


def test_what_is_added_to_the_corpus_is_heard(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, one=utterances(1, WORDS[:20]))
    windows = Windows(corpus, {"one": 1.0, "two": 1e6}, script(), 0)
    assert NUMBER[heard(windows.make(LESSON))[0].word] <= 20
    write_shard(tmp_path, "two-0000", utterances(2, WORDS[20:]))
    corpus.refresh()
    assert NUMBER[heard(windows.make(LESSON))[0].word] > 20


def test_sounds_that_the_list_lacks_and_utterances_without_any_teach_no_sound(tmp_path: Path) -> None:
    said = utterance(["the", "of"], [0.0], [0.4, 0.4])
    strange = replace(said, phones=[(f"{name}~" if name != "pau" else "h#", end) for name, end in said.phones])
    for number, spoken in enumerate((strange, replace(said, phones=[]))):
        corpus = corpus_of(tmp_path / str(number), one=[spoken])
        windows = windows_of(corpus)
        window = windows.make(Lesson(seconds=5.0, no_speech=0.0))
        loud = np.abs(window.audio.reshape(-1, 320)[:, 160]) > 0
        assert loud.any()
        assert (window.phones[loud] == IGNORED).all()
        assert set(window.phones[~loud]) == ({0} if number == 0 else {0, IGNORED})


def test_the_time_of_a_token_is_the_middle_of_its_letters() -> None:
    numbers, middles = script().word("encyclopedia,")
    assert len(numbers) == len(middles) > 2
    assert all(0 < middle < 1 for middle in middles)
    assert list(middles) == sorted(set(middles))
    assert script().word("the")[1] == (0.5,)


def test_the_text_is_split_as_the_tokenizer_splits_it() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    text = "He said, \"it's the 22nd; (isn't it?)\""
    ids = tokenizer.encode(f" {text}", add_special_tokens=False).ids
    assert script().text(text.split()) == ids


@pytest.mark.parametrize(("seconds", "stamp"), [(-0.5, "0.00"), (0.0, "0.00"), (1.234, "1.24"), (31.0, "30.00")])
def test_a_timestamp_is_a_fiftieth_of_a_second(seconds: float, stamp: str) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    assert script().timestamp(seconds) == tokenizer.token_to_id(f"<|{stamp}|>")


def test_a_tokenizer_of_something_else_is_refused() -> None:
    from tokenizers.models import BPE

    with pytest.raises(ValueError, match=r"the tokenizer lacks <\|endoftext\|>; it is not one of Whisper"):
        Script(Tokenizer(BPE()))
