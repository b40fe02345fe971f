"""A corpus has two halves that are alike and share nothing, and is read as it was made."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamer.audio.constants import SAMPLE_RATE
from streamer.errors import AudioFileError, UsageError
from tests.tools.benchmarks.test_passages import check_words
from tests.tools.benchmarks.voices import COMMA_S, WORD_S, ToneVoice
from tools.benchmarks import corpus
from tools.benchmarks.corpus import HALVES, RECORDINGS, SPEECH, VOICES, Recording, find, make, read
from tools.benchmarks.passages import Passage
from tools.benchmarks.sounds_of_rooms import SOUNDS
from tools.benchmarks.synthetic.speech import Speech, SynthesisError, Voice

MINUTES = 2.0


def say_nothing(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of tones, of sentences that are numbered."""
    base = tmp_path_factory.mktemp("corpus")
    text = base / "text.txt"
    text.write_text("".join(f"The sentence, here, has the name X{n}.\n" for n in range(60)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "open_voice", lambda name: ToneVoice())
        make(base / "made", text=text, minutes=MINUTES, sounds_minutes=0.05, tell=say_nothing)
    return base / "made"


@pytest.fixture(scope="module")
def recordings(folder: Path) -> list[Recording]:
    return [read(path) for path in find(folder)]


def of_kind(recordings: list[Recording], kind: str) -> list[Recording]:
    found = [recording for recording in recordings if recording.kind == kind]
    assert len(found) == len(HALVES)
    return found


def pauses(recording: Recording) -> list[float]:
    return [after.start - before.end for before, after in pairwise(recording.words)]


def sentences(recording: Recording) -> set[str]:
    return {sentence.strip() for sentence in recording.text.replace("?", ".").split(".") if sentence.strip()}


def test_both_halves_have_every_kind_and_voice(recordings: list[Recording]) -> None:
    kinds, voices = (
        [sorted(getattr(recording, name) for recording in recordings if recording.half == half) for half in HALVES]
        for name in ("kind", "voice")
    )
    assert kinds[0] == kinds[1] == sorted((*SPEECH, *SOUNDS))
    assert voices[0] == voices[1]
    heard = {voice for recording in recordings for voice in recording.voice.split(", ")}
    assert heard == {name.partition(":")[2] for name in VOICES} | {""}


def test_no_sentence_is_in_both_halves_or_twice(recordings: list[Recording]) -> None:
    said = [sentence for recording in recordings for sentence in sentences(recording)]
    whole = [sentence for sentence in said if sentence.startswith("The sentence, here,")]
    assert len(whole) > 40
    assert len(set(whole)) == len(whole)


def test_each_half_has_about_the_minutes_of_speech(recordings: list[Recording]) -> None:
    for half in HALVES:
        spoken_s = sum(len(recording.words) * WORD_S for recording in recordings if recording.half == half)
        # Words are what is counted here; a sentence has pauses within, too.
        assert 0.4 * MINUTES * 60 < spoken_s < 1.2 * MINUTES * 60


def test_words_are_where_they_are_said_to_be(recordings: list[Recording]) -> None:
    for recording in recordings:
        assert recording.samples.dtype == np.float32
        assert recording.text.split() == [word.word for word in recording.words]
        background = recording.kind in SPEECH and SPEECH[recording.kind].background
        if not background and recording.kind != "fast":  # at that rate a tone is too short to be told from the next
            check_words(Passage(recording.samples, recording.words))


def test_kinds_are_what_they_are_called(recordings: list[Recording]) -> None:
    for recording in of_kind(recordings, "breathless"):
        assert max(pauses(recording)) < 0.15
    for recording in of_kind(recordings, "pauses"):
        assert max(pauses(recording)) > 60
    for recording in of_kind(recordings, "clean"):
        assert COMMA_S <= max(pauses(recording)) <= 1.0
    for recording in of_kind(recordings, "fast"):
        assert recording.words[0].end - recording.words[0].start == pytest.approx(WORD_S / 1.3, abs=1e-3)
    for recording in of_kind(recordings, "numbers"):
        assert "X" not in recording.text
    for recording in of_kind(recordings, "cut"):
        assert recording.words[0].start < 0.2
        assert recording.audio_s - recording.words[-1].end < 0.6
        assert min(np.abs(recording.samples[:40]).max(), np.abs(recording.samples[-40:]).max()) > 0.05
    for kind in SOUNDS:
        for recording in of_kind(recordings, kind):
            assert not recording.text
            assert not recording.words
            assert recording.audio_s == pytest.approx(3.0)


@pytest.mark.parametrize("kind", [name for name, kind in SPEECH.items() if kind.background])
def test_noise_lies_under_the_speech_by_its_ratio(recordings: list[Recording], kind: str) -> None:
    for recording in of_kind(recordings, kind):
        speech = np.zeros(len(recording.samples), bool)
        for word in recording.words:
            speech[round(word.start * SAMPLE_RATE) : round(word.end * SAMPLE_RATE)] = True
        both, noise = (np.mean(recording.samples[where] ** 2) for where in (speech, ~speech))
        snr_db = 10 * np.log10((both - noise) / noise)
        assert snr_db == pytest.approx(SPEECH[kind].snr_db, abs=3)


def test_a_seed_gives_one_corpus(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(corpus, "open_voice", lambda name: ToneVoice())
    text = folder.parent / "text.txt"
    again = make(tmp_path / "again", text=text, minutes=MINUTES, sounds_minutes=0.05, tell=say_nothing)
    assert sorted(path.name for path in again) == [path.name for path in find(folder)]
    for path in again:
        for suffix in (".flac", ".json"):
            made, before = path.with_suffix(suffix), folder / path.with_suffix(suffix).name
            assert made.read_bytes() == before.read_bytes()
    other = make(tmp_path / "other", text=text, minutes=0.1, sounds_minutes=0.01, seed=2, tell=say_nothing)
    assert {read(path).seed for path in other}.isdisjoint(read(path).seed for path in again)


def test_made_up_sentences_stand_in_for_a_text_that_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(corpus, "open_voice", lambda name: ToneVoice())
    paths = make(tmp_path / "made", text=tmp_path / "none.txt", minutes=0.1, sounds_minutes=0, tell=say_nothing)
    said = [sentence for path in paths for sentence in sentences(read(path))]
    assert len(paths) == len(HALVES) * len(SPEECH)
    assert len(said) >= 2 * len(paths)


def test_more_minutes_are_more_rounds_by_other_voices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(corpus, "open_voice", lambda name: ToneVoice())
    monkeypatch.setattr(corpus, "SPEECH", {"clean": corpus.Kind(6.0, 0)})
    paths = make(tmp_path / "made", minutes=0.3, sounds_minutes=0, tell=say_nothing)
    assert len(paths) == 2 * 3
    assert [read(path).voice for path in paths[:3]] == ["slt", "rms", "awb"]


def test_a_voice_that_is_not_there_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def only_flite(name: str) -> Voice:
        if name.startswith("flite:"):
            return ToneVoice()
        raise SynthesisError(f"{name} is not here")

    monkeypatch.setattr(corpus, "open_voice", only_flite)
    lines: list[str] = []
    paths = make(tmp_path / "made", minutes=0.1, sounds_minutes=0, tell=lines.append)
    assert sum(line.startswith("left out: ") for line in lines) == 4
    assert {read(path).synthesiser for path in paths} == {"flite"}


def test_without_any_voice_there_is_no_corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none(name: str) -> Voice:
        raise SynthesisError(f"{name} is not here")

    monkeypatch.setattr(corpus, "open_voice", none)
    with pytest.raises(UsageError, match="install flite"):
        make(tmp_path / "made", tell=say_nothing)
    assert not (tmp_path / "made").exists()


def test_voices_that_refuse_everything_are_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("No one can say this.\n" * 2000, encoding="utf-8")
    monkeypatch.setattr(corpus, "open_voice", lambda name: _Mute())
    with pytest.raises(UsageError, match="refused 20 sentences"):
        make(tmp_path / "made", minutes=0.1, tell=say_nothing)


class _Mute(ToneVoice):
    def say(self, text: str, rate: float = 1.0) -> Speech:
        raise SynthesisError("no")


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("", encoding="utf-8")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(UsageError, match="folder of its own"):
            make(folder, tell=say_nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("minutes", [0.0, -1.0, 1e9, float("nan")])
def test_minutes_that_make_no_sense_are_refused(minutes: float, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="minutes"):
        make(tmp_path / "made", minutes=minutes)


def test_recordings_are_found_by_half_and_kind(folder: Path) -> None:
    assert len(find(folder)) == len(HALVES) * (len(SPEECH) + len(SOUNDS))
    assert {read(path).half for path in find(folder, "held")} == {"held"}
    assert [path.stem for path in find(folder, "tune", ("music", "clean"))] == ["tune-clean-1", "tune-music"]


SILENCE = np.zeros(SAMPLE_RATE, np.float32)


def test_a_recording_with_the_times_of_sentences_has_no_times_of_words(tmp_path: Path) -> None:
    said = [
        {"start": 0.1, "end": 0.4, "voice": "slt", "text": "Come in."},
        {"start": 0.5, "end": 0.9, "voice": "rms", "text": "Sit down."},
    ]
    for name in ("breathless", "slt"):
        soundfile.write(tmp_path / f"{name}.flac", SILENCE, SAMPLE_RATE)
        (tmp_path / f"{name}.json").write_text(json.dumps(said), encoding="utf-8")
    held, tune = (read(path) for path in find(tmp_path))
    assert (held.text, held.words, held.voice) == ("Come in. Sit down.", (), "slt, rms")
    assert [(recording.kind, recording.half) for recording in (held, tune)] == [
        ("breathless", "held"),
        ("clean", "tune"),
    ]


def test_a_recording_with_its_text_alone_is_of_people(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "jane.flac", SILENCE, SAMPLE_RATE)
    (tmp_path / "jane.txt").write_text("Come in.\nSit down.\n", encoding="utf-8")
    recording = read(tmp_path / "jane.flac")
    assert (recording.text, recording.words, recording.kind) == ("Come in. Sit down.", (), "people")


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the shared recordings are not here")
def test_the_shared_recordings_are_halved() -> None:
    for half in HALVES:
        found = [read(path) for path in find(RECORDINGS, half)]
        assert len(found) == 3
        assert all(recording.text and not recording.words for recording in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "no .json beside it"),
        ("{", "does not say"),
        ("3", "does not say"),
        ("{}", "does not say"),
        ('[{"voice": "slt"}]', "does not say"),
        ('{"text": "a", "words": [{"word": "a"}]}', "does not say"),
        ('{"text": "a", "words": [{"word": "a", "start": "soon", "end": 1}]}', "does not say"),
        (
            '{"text": 3, "words": [], "half": "held", "kind": "clean", "voice": "", "synthesiser": "", "seed": 1}',
            "does not say",
        ),
    ],
)
def test_a_recording_that_nothing_describes_is_refused(text: str | None, expected: str, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", SILENCE, SAMPLE_RATE)
    if text is not None:
        (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(AudioFileError, match=expected):
        read(tmp_path / "a.flac")


def test_what_is_no_such_audio_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Come in.", encoding="utf-8")
    with pytest.raises(AudioFileError, match="cannot be read"):
        read(tmp_path / "a.flac")
    (tmp_path / "a.flac").write_bytes(b"RIFF")
    with pytest.raises(AudioFileError, match="cannot be read"):
        read(tmp_path / "a.flac")
    soundfile.write(tmp_path / "a.flac", SILENCE, 8000)
    with pytest.raises(AudioFileError, match="8000 Hz"):
        read(tmp_path / "a.flac")
