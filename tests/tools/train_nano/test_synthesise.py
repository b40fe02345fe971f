"""Shards: what is spoken is found again, stopped work goes on, and every voice has its share."""

import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
import pytest

from streamer.audio.constants import SAMPLE_RATE
from tools.train_nano import sentences, synthesise
from tools.train_nano.corpus import Corpus
from tools.train_nano.speech import Speech, SynthesisError
from tools.train_nano.synthesise import MARGIN_S, plan, shard_name, speak_shard
from tools.train_nano.voices import VOICES, open_voice

P = ParamSpec("P")
T = TypeVar("T")

ROOT = Path(__file__).parents[3]
SILENCE_S = 0.3  # that the voice leaves at either end
WORD_S = 0.1
PER_SHARD = 20


@dataclass
class Fake:
    """Speaks each word as a tone; `cannot` and `silent` choose texts that it cannot speak, or speaks as silence."""

    said: list[tuple[str, float, float]] = field(default_factory=list)
    cannot: Callable[[str], bool] = lambda text: False
    silent: Callable[[str], bool] = lambda text: False

    def say(self, text: str, rate: float = 1.0, pitch: float = 1.0) -> Speech:
        if self.cannot(text):
            raise SynthesisError(f"could not speak {text!r}")
        self.said.append((text, rate, pitch))
        length = WORD_S / rate
        words = [(SILENCE_S + i * length, SILENCE_S + (i + 1) * length) for i in range(len(text.split()))]
        times = np.arange(round((words[-1][1] + SILENCE_S) * SAMPLE_RATE)) / SAMPLE_RATE
        tone = 9000 * np.cos(2 * np.pi * 200 * pitch * times)
        tone[(times < words[0][0]) | (times >= words[-1][1]) | self.silent(text)] = 20
        phones = [("pau", SILENCE_S), *(("ah", end) for _, end in words), ("pau", float(times[-1]))]
        return Speech(tone.astype(np.int16), words, phones)


class Here(Executor):
    """Does the work at once, in this process."""

    def __init__(self, jobs: int, initializer: Callable[[], None]) -> None:
        pass

    def submit(self, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        try:
            future.set_result(function(*arguments, **keywords))
        except Exception as error:  # noqa: BLE001 - what the work raises is the caller's
            future.set_exception(error)
        return future


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """The only voice there is, under every name but those that begin with "absent"."""
    voice = Fake()

    def opened(name: str) -> Fake:
        if name.startswith("absent"):
            raise SynthesisError(f"the voice {name} is not here")
        return voice

    monkeypatch.setattr(synthesise, "open_voice", opened)
    monkeypatch.setattr(synthesise, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(synthesise, "SENTENCES_PER_SHARD", PER_SHARD)
    synthesise._voice.cache_clear()
    yield voice
    synthesise._voice.cache_clear()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    lines = [f"Sentence {letter}, of the text, is here." for letter in "abcdefghijklmnopqrstuvwxyz"]
    (folder / "words.txt").write_text("better\nletters\n", encoding="utf-8")
    (folder / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def run(monkeypatch: pytest.MonkeyPatch, text: Path, corpus: Path, *arguments: str) -> None:
    paths = ["--text", str(text), "--words", str(text / "words.txt"), "--corpus", str(corpus)]
    monkeypatch.setattr(sys, "argv", ["synthesise", *paths, *arguments])
    synthesise.main()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_what_was_spoken_is_found_again(fake: Fake, text: Path, tmp_path: Path) -> None:
    seconds = speak_shard(text, text / "words.txt", tmp_path / "corpus", "flite:slt", 3)
    assert sorted(contents(tmp_path / "corpus")) == ["flite-slt-0003.jsonl", "flite-slt-0003.pcm"]
    corpus = Corpus(tmp_path / "corpus")
    corpus.refresh()
    (utterances,) = corpus.voices.values()
    assert [utterance.text for utterance in utterances] == [text for text, _, _ in fake.said]
    assert len(utterances) == PER_SHARD
    assert sum(utterance.seconds for utterance in utterances) == pytest.approx(seconds)


@pytest.mark.usefixtures("fake")
def test_times_lie_within_the_samples_and_silence_at_the_ends_is_cut_away(text: Path, tmp_path: Path) -> None:
    speak_shard(text, text / "words.txt", tmp_path / "corpus", "flite:slt", 0)
    corpus = Corpus(tmp_path / "corpus")
    corpus.refresh()
    for utterance in corpus.voices["flite-slt"]:
        count = len(utterance.text.split())
        assert len(utterance.words) == count
        assert utterance.words[0][0] == pytest.approx(MARGIN_S, abs=0.003)
        assert utterance.words[-1][1] == pytest.approx(utterance.seconds - MARGIN_S, abs=0.003)
        ends = [end for _, end in utterance.phones]
        assert ends == sorted(ends)
        assert [name for name, _ in utterance.phones] == ["pau", *["ah"] * count, "pau"]
        for time in [*ends, *(time for word in utterance.words for time in word)]:
            assert 0 <= time <= utterance.seconds + 0.0005
        loud = np.flatnonzero(np.abs(utterance.samples) > 100)
        assert loud[0] / SAMPLE_RATE == pytest.approx(utterance.words[0][0], abs=0.003)
        assert loud[-1] / SAMPLE_RATE == pytest.approx(utterance.words[-1][1], abs=0.003)


def test_a_finished_shard_is_not_made_again(fake: Fake, text: Path, tmp_path: Path) -> None:
    seconds = speak_shard(text, text / "words.txt", tmp_path / "corpus", "flite:slt", 0)
    before = contents(tmp_path / "corpus")
    fake.said.clear()
    assert speak_shard(text, text / "words.txt", tmp_path / "corpus", "flite:slt", 0) == pytest.approx(seconds)
    assert fake.said == []
    assert contents(tmp_path / "corpus") == before


@pytest.mark.parametrize("left", [".pcm", ".part"])
@pytest.mark.usefixtures("fake")
def test_an_interrupted_shard_is_made_again(text: Path, tmp_path: Path, left: str) -> None:
    speak_shard(text, text / "words.txt", tmp_path / "whole", "flite:slt", 0)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / f"flite-slt-0000{left}").write_bytes(b"half")
    speak_shard(text, text / "words.txt", corpus, "flite:slt", 0)
    assert contents(corpus) == contents(tmp_path / "whole")


def test_a_shard_is_the_same_on_every_run_and_unlike_any_other(fake: Fake, text: Path, tmp_path: Path) -> None:
    said: list[list[tuple[str, float, float]]] = []
    for corpus, voice, number in (
        ("one", "flite:slt", 0),
        ("two", "flite:slt", 0),
        ("two", "flite:slt", 1),
        ("two", "flite:rms", 0),
    ):
        fake.said.clear()
        random.seed(len(said))
        speak_shard(text, text / "words.txt", tmp_path / corpus, voice, number)
        said.append(list(fake.said))
    assert said[0] == said[1]
    assert contents(tmp_path / "one").items() <= contents(tmp_path / "two").items()
    assert all(said[0] != other for other in said[2:])
    assert said[2] != said[3]


def test_every_sentence_has_a_rate_and_a_pitch_of_its_own(fake: Fake, text: Path, tmp_path: Path) -> None:
    for number in range(5):
        speak_shard(text, text / "words.txt", tmp_path, "flite:slt", number)
    rates = [rate for _, rate, _ in fake.said]
    pitches = [pitch for _, _, pitch in fake.said]
    assert all(low <= rate <= high for rate in rates for low, high in [synthesise.RATES])
    assert all(low <= pitch <= high for pitch in pitches for low, high in [synthesise.PITCHES])
    assert len(set(rates)) == len(rates) == 5 * PER_SHARD
    assert 0.3 * len(pitches) < pitches.count(1.0) < 0.7 * len(pitches)


def test_a_voice_reads_all_sentences_before_it_reads_one_again(
    fake: Fake, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesise, "SHARE_MADE", 0.0)
    monkeypatch.setattr(synthesise, "SHARE_PHRASES", 0.0)
    monkeypatch.setattr(synthesise, "SHARE_VARIED", 0.0)
    lines = (text / "train.txt").read_text(encoding="utf-8").splitlines()
    for number in range(4):
        speak_shard(text, text / "words.txt", tmp_path, "flite:slt", number)
    read = [said for said, _, _ in fake.said]
    assert sorted(read[:26]) == sorted(read[26:52]) == sorted(lines)
    assert read[:26] != read[26:52]
    fake.said.clear()
    speak_shard(text, text / "words.txt", tmp_path, "flite:rms", 0)
    assert [said for said, _, _ in fake.said] != read[:PER_SHARD]


def test_the_shares_that_are_made_up_and_cut_to_phrases(
    fake: Fake, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesise, "SENTENCES_PER_SHARD", 1000)
    monkeypatch.setattr(sentences, "made", lambda rng: "Made.")
    monkeypatch.setattr(sentences, "varied", lambda sentence, replacements, rng: f"Varied {sentence}")
    monkeypatch.setattr(sentences, "phrases", lambda sentence, rng: "Varied cut." if "Varied" in sentence else "Cut.")
    speak_shard(text, text / "words.txt", tmp_path, "flite:slt", 0)
    counts = Counter(said for said, _, _ in fake.said)
    assert counts["Made."] == 250
    assert (counts["Cut."] + counts["Varied cut."]) / 750 == pytest.approx(0.3, abs=0.06)
    varied = sum(count for said, count in counts.items() if said.startswith("Varied"))
    assert varied / 750 == pytest.approx(0.4, abs=0.06)


@pytest.mark.usefixtures("fake")
def test_what_is_read_before_a_sentence_is_kept_with_it(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesise, "SHARE_VARIED", 0.0)
    monkeypatch.setattr(synthesise, "SHARE_PHRASES", 0.0)
    speak_shard(text, text / "words.txt", tmp_path / "corpus", "flite:slt", 0)
    corpus = Corpus(tmp_path / "corpus")
    corpus.refresh()
    lines = (text / "train.txt").read_text(encoding="utf-8").splitlines()
    read = 0
    for utterance in corpus.voices["flite-slt"]:
        if utterance.text in lines:
            at = lines.index(utterance.text)
            assert utterance.before == " ".join(lines[max(0, at - synthesise.SENTENCES_BEFORE) : at])
            read += 1
        else:
            assert len(re.findall(r"[.?!]", utterance.before)) >= synthesise.SENTENCES_BEFORE
    assert read == PER_SHARD * 3 // 4


def test_sentences_that_cannot_be_spoken_or_are_silent_are_left_out(fake: Fake, text: Path, tmp_path: Path) -> None:
    fake.cannot = lambda text: len(text) % 3 == 0
    fake.silent = lambda text: len(text) % 3 == 1
    speak_shard(text, text / "words.txt", tmp_path, "flite:slt", 0)
    corpus = Corpus(tmp_path)
    corpus.refresh()
    kept = [utterance.text for utterance in corpus.voices["flite-slt"]]
    assert kept == [text for text, _, _ in fake.said if len(text) % 3 == 2]
    assert 0 < len(kept) < PER_SHARD
    for utterance in corpus.voices["flite-slt"]:
        assert np.abs(utterance.samples).max() > 5000


def test_a_voice_that_speaks_nothing_is_an_error_and_leaves_nothing(fake: Fake, text: Path, tmp_path: Path) -> None:
    fake.cannot = lambda text: True
    with pytest.raises(SynthesisError, match="the voice flite:slt spoke none of the sentences of shard 7"):
        speak_shard(text, text / "words.txt", tmp_path / "corpus", "flite:slt", 7)
    assert not (tmp_path / "corpus").exists()


def test_the_plan_gives_every_voice_its_share() -> None:
    total = sum(VOICES.values())
    shards = list(plan(VOICES, 60.0))
    assert len(shards) == 360
    assert len(set(shards)) == len(shards)
    for voice, share in VOICES.items():
        numbers = [number for name, number in shards if name == voice]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) == pytest.approx(360 * share / total, abs=1.5)


def test_the_voices_take_turns() -> None:
    shares = {"a": 3.0, "b": 2.0, "c": 1.0}
    shards = [voice for voice, _ in plan(shares, 10.0)]
    for length in range(1, len(shards) + 1):
        counts = Counter(shards[:length])
        assert all(abs(counts[voice] - share / 6 * length) <= 1.5 for voice, share in shares.items())


def test_more_hours_go_on_where_fewer_ended() -> None:
    few, many = list(plan(VOICES, 5.0)), list(plan(VOICES, 20.0))
    assert many[: len(few)] == few
    assert len(list(islice(plan(VOICES, 0.0001), 5))) == 1


def test_a_shard_is_named_after_its_voice() -> None:
    assert shard_name("espeak:en-gb-x-rp+m7", 12) == "espeak-en-gb-x-rp+m7-0012"
    assert len({shard_name(voice, 0) for voice in VOICES}) == len(VOICES)


@pytest.mark.usefixtures("fake")
def test_the_program_makes_what_is_missing_and_says_how_much(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    voices = ("--voices", "flite:slt", "flite:rms", "absent:one")
    run(monkeypatch, text, corpus, "--hours", "0.1", *voices)  # three shards of two minutes
    out = capsys.readouterr().out
    assert "left out: the voice absent:one is not here" in out
    assert out.splitlines()[-1].rpartition("\r")[2].startswith("3/3 shards, ")
    before = contents(corpus)
    assert len(before) == 6
    assert not any("absent" in name for name in before)
    run(monkeypatch, text, corpus, "--hours", "0.2", *voices)
    after = contents(corpus)
    assert before.items() <= after.items()
    assert len(after) == 12


@pytest.mark.usefixtures("fake")
def test_without_sentences_the_program_says_which_file_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, tmp_path, tmp_path / "corpus")
    refused(caught.value, str(tmp_path / "train.txt"), "one a line")


@pytest.mark.usefixtures("fake")
def test_an_empty_file_of_sentences_is_refused(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text / "train.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, text, tmp_path / "corpus", "--hours", "0.01")
    refused(caught.value, str(text / "train.txt"))


@pytest.mark.usefixtures("fake")
def test_without_a_list_of_words_the_program_says_where_to_get_one(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text / "words.txt").unlink()
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, text, tmp_path / "corpus", "--hours", "0.01")
    refused(caught.value, str(text / "words.txt"), "wamerican")


@pytest.mark.usefixtures("fake")
def test_without_a_voice_the_program_says_what_to_install(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, text, tmp_path / "corpus", "--voices", "absent:one", "absent:two")
    refused(caught.value, "no voice", "espeak")
    assert not (tmp_path / "corpus").exists()


def test_a_voice_that_speaks_nothing_ends_the_program_with_a_line(
    fake: Fake, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.cannot = lambda text: True
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, text, tmp_path / "corpus", "--hours", "0.01", "--voices", "flite:slt")
    refused(caught.value, "flite:slt")


def refused(error: SystemExit, *parts: str) -> None:
    """Python prints a text as it is and exits with 1."""
    assert isinstance(error.code, str)
    assert "\n" not in error.code
    for part in parts:
        assert part in error.code


def test_the_program_speaks_in_processes_of_its_own(text: Path, tmp_path: Path) -> None:
    try:
        open_voice("flite:kal")
    except SynthesisError as error:
        pytest.skip(str(error))
    corpus = tmp_path / "corpus"
    paths = ["--text", str(text), "--words", str(text / "words.txt"), "--corpus", str(corpus)]
    arguments = [*paths, "--hours", "0.2", "--jobs", "1", "--voices", "flite:kal"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.train_nano.synthesise", *arguments],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1/1 shards" in done.stdout
    read = Corpus(corpus)
    read.refresh()
    assert len(read.voices["flite-kal"]) > 90


def test_a_synthesiser_that_is_unknown_is_refused() -> None:
    with pytest.raises(SynthesisError, match="it is flite, espeak or festival, then a colon and the voice"):
        open_voice("mine:me")
