"""Recordings to measure with: speech whose words' times are known to the sample, and sounds without speech.

A recording is `NAME.flac` (mono, 16 kHz) and `NAME.json`, which says what is said in it and when. `make()` makes a
folder of them from a seed: sentences that the model was not trained on, spoken by voices it was trained on. They come
in two halves with the same kinds and voices and not one sentence in common: settings are chosen on `tune`, and what is
reported is measured on `held`. On one machine the folder is the same to the bit each time it is made by a new process.
(In a process that has spoken before, what eSpeak NG speaks is not: it remembers. Festival and Flite do not.)
"""

import json
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.errors import AudioFileError, UsageError
from streamer.languages import LANGUAGE_NAMES
from tools.benchmarks.measure import SpokenWord
from tools.benchmarks.passages import Passage, cut_within_words, join, say_next, shorten_pauses
from tools.benchmarks.sounds_of_rooms import SOUNDS, crowd
from tools.benchmarks.synthetic import sentences, sounds
from tools.benchmarks.synthetic.acoustics import add_noise
from tools.benchmarks.synthetic.sounds import Samples
from tools.benchmarks.synthetic.speech import SynthesisError, Voice
from tools.benchmarks.synthetic.voices import open_voice

SHARED = Path(__file__).resolve().parents[3] / "shared"
TEXT = SHARED / "text" / "heldout.txt"  # sentences of LJ Speech that nano.en never saw, one a line
RECORDINGS = SHARED / "audio"  # recordings of some of them

HALVES = ("tune", "held")
# Those of the recordings in RECORDINGS that are held; the others are for tuning.
HELD_RECORDINGS = ("awb", "breathless", "noisy")

VOICES = (
    "flite:slt",
    "flite:rms",
    "flite:awb",
    "flite:kal16",
    "festival:ked_diphone",
    "festival:cmu_us_slt_arctic_hts",
    "espeak:en-us",
    "espeak:en-gb",
)
CROWD = ("flite:kal16", "flite:slt", "flite:awb", "flite:rms")

MOST_MINUTES = 600.0
LEAD_S = (0.4, 1.2)  # before the first word of a recording
TAIL_S = 1.5  # after the last
SPARE_S = 2.0  # a recording that lacks no more than this gets no further sentence

# What NAME.json has beside the words, and what recordings without their times have instead.
_DESCRIBED = ("text", "half", "kind", "voice", "synthesiser", "seed")
_WITHOUT_TIMES = {"words": (), "voice": "", "synthesiser": "", "seed": 0}

_NUMBER_WORDS = {
    *(sentences.cardinal(number) for number in range(100)),
    *(sentences.ordinal(number) for number in range(1, 32)),
    *("hundred", "thousand", "million", "oh", "point", "percent"),
}


@dataclass(frozen=True, slots=True)
class Recording:
    """What is measured with: sound, and what is said in it."""

    name: str
    samples: NDArray[np.float32]  # mono, 16 kHz
    text: str  # as it is written; empty where nobody speaks
    words: tuple[SpokenWord, ...]  # of text.split(), with their times; empty where the times are not known
    half: str  # "tune" or "held"
    kind: str  # of SPEECH or SOUNDS; "people" for recordings of people
    voice: str
    synthesiser: str
    seed: int

    @property
    def audio_s(self) -> float:
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True)
class Kind:
    """How one kind of speech is spoken."""

    speech_s: float  # how long, pauses between sentences not counted; make() scales it
    voice: int  # the number in VOICES of who speaks; in the next round the next one
    pause_s: tuple[float, float] = (0.3, 1.0)  # between sentences
    long_pause_s: float = 0.0  # that comes once, halfway
    longest_pause_s: float | None = None  # within a sentence; None: as it is spoken
    rate: float = 1.0
    numbers: bool = False  # sentences with three words of numbers or more, all made up
    turns: bool = False  # each sentence by another voice
    cut: bool = False  # begins and ends in the middle of a word
    background: str = ""  # "crowd" or a kind of sounds.KINDS
    snr_db: float = 0.0


SPEECH: dict[str, Kind] = {
    "clean": Kind(45.0, 0),
    "pauses": Kind(35.0, 1, pause_s=(3.0, 12.0), long_pause_s=65.0),
    "breathless": Kind(60.0, 2, pause_s=(0.02, 0.1), longest_pause_s=0.1),
    "fast": Kind(30.0, 3, rate=1.3),
    "numbers": Kind(30.0, 6, numbers=True),
    "noisy": Kind(30.0, 1, background="crowd", snr_db=15.0),
    "very-noisy": Kind(30.0, 0, background="crowd", snr_db=8.0),
    "music-under": Kind(30.0, 5, background="music", snr_db=12.0),
    "turns": Kind(40.0, 4, pause_s=(0.05, 0.6), turns=True),
    "cut": Kind(30.0, 7, cut=True),
}


def find(folder: Path, half: str | None = None, kinds: Sequence[str] = ()) -> list[Path]:
    """The recordings of a folder in the order of their names: of one half or both, of some kinds or all.

    Of a folder of folders, those in English with a text beside them.
    """
    found = []
    below = (path for path in folder.glob("*/*.flac") if path.with_suffix(".txt").is_file())
    for path in sorted(folder.glob("*.flac")) or sorted(path for path in below if language_of(path) == "en"):
        about = _describe(path)
        if half in (None, about["half"]) and (not kinds or about["kind"] in kinds):
            found.append(path)
    return found


def language_of(path: Path, default: str = "en") -> str:
    """Return the language of a recording: the end of its name, as in `fleurs-de-01`, if that is one."""
    code = re.search(r"-([a-z]{2})(-\d+)?$", path.stem)
    return code[1] if code and code[1] in LANGUAGE_NAMES else default


def read(path: Path) -> Recording:
    """A recording of make(), or one of those beside the project, whose words have no times.

    Those have the sentences with their times in `NAME.json`, or the text alone in `NAME.txt`.
    Raises AudioFileError where a file is missing or is no such thing.
    """
    about = _describe(path)
    try:
        samples, rate = soundfile.read(path, dtype="float32")
    except (OSError, soundfile.LibsndfileError) as error:
        raise AudioFileError(f"{path} cannot be read as audio ({error}); make the corpus anew") from None
    if rate != SAMPLE_RATE or samples.ndim != 1:
        raise AudioFileError(f"{path} has {samples.ndim} dimensions at {rate} Hz, expected mono at {SAMPLE_RATE} Hz")
    return Recording(path.stem, samples, **about)


def make(
    folder: Path,
    *,
    text: Path = TEXT,
    minutes: float = 6.0,
    sounds_minutes: float = 10.0,
    seed: int = 1,
    tell: Callable[[str], None] = print,
) -> list[Path]:
    """Make a corpus in a new or empty folder; give the recordings' paths.

    Each half has about `minutes` of speech in kinds of SPEECH, and `sounds_minutes` of each of SOUNDS (0: none).
    More minutes are more rounds of the kinds, the voices changing places. The sentences are those of the file `text`
    that RECORDINGS does not have; when they are used up or the file is absent, made-up ones.
    `tell` is given a line about each voice that is left out and each recording that is made.
    Raises UsageError where the folder has something in it, or no voice can be used, and OSError.
    """
    if not (0 < minutes <= MOST_MINUTES and 0 <= sounds_minutes <= MOST_MINUTES):
        raise UsageError(f"a corpus has more than 0 and at most {MOST_MINUTES:.0f} minutes of each; ask for as many")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} has something in it; a corpus needs a folder of its own: delete it or name another")
    voices = _open(VOICES, tell)
    if not voices:
        raise UsageError("no voice can be used; install flite, festival (with festvox-us-slt-hts) or espeak-ng")
    folder.mkdir(parents=True, exist_ok=True)
    unsaid = _read_sentences(text)
    random.Random(seed).shuffle(unsaid)
    said: set[str] = set()
    paths = []
    try:
        for number, half in enumerate(HALVES):
            supply = _Supply(unsaid[number :: len(HALVES)], random.Random(f"{seed} {half}"), said)
            for recording in chain(_speech(half, minutes, seed, voices, supply), _sounds(half, sounds_minutes, seed)):
                paths.append(_write(folder, recording))
                tell(f"{recording.name}: {recording.audio_s:.0f} s, {len(recording.words)} words")
    except SynthesisError as error:
        raise UsageError(str(error)) from None
    return paths


def _open(names: Sequence[str], tell: Callable[[str], None]) -> dict[str, Voice]:
    voices = {}
    for name in names:
        try:
            voices[name] = open_voice(name)
        except SynthesisError as error:
            tell(f"left out: {error}")
    return voices


def _read_sentences(text: Path) -> list[str]:
    """Every sentence of the file that no recording of RECORDINGS has, once."""
    if not text.is_file():
        return []
    recorded = {
        sentences.normalise(sentence["text"])
        for path in RECORDINGS.glob("*.json")
        for sentence in json.loads(path.read_text(encoding="utf-8"))
    }
    return [sentence for sentence in dict.fromkeys(sentences.read(text)) if sentence not in recorded]


def _seed(seed: int, name: str) -> int:
    """Of one recording."""
    return zlib.crc32(f"{seed} {name}".encode())


class _Supply:
    """Sentences for one half that have not been said in either."""

    def __init__(self, read: list[str], chance: random.Random, said: set[str]) -> None:
        self._read = iter(read)
        self._chance = chance
        self._said = said  # shared by both halves

    def sentences(self) -> Iterator[str]:
        """Those that are read, then made-up ones, without end."""
        while True:
            sentence = next(self._read, None) or sentences.made(self._chance)
            if self._is_new(sentence):
                yield sentence

    def with_numbers(self) -> Iterator[str]:
        """Made-up ones with three words of numbers or more, without end."""
        while True:
            sentence = sentences.made(self._chance)
            numbers = sum(word.strip(",.?!").lower() in _NUMBER_WORDS for word in sentence.split())
            if numbers >= 3 and self._is_new(sentence):
                yield sentence

    def _is_new(self, sentence: str) -> bool:
        new = sentence not in self._said
        self._said.add(sentence)
        return new


def _speech(half: str, minutes: float, seed: int, voices: dict[str, Voice], supply: _Supply) -> Iterator[Recording]:
    once_s = sum(kind.speech_s for kind in SPEECH.values())
    rounds = max(1, round(minutes * 60 / once_s))
    share = minutes * 60 / (rounds * once_s)
    for turn in range(rounds):
        for name, kind in SPEECH.items():
            names = _who(kind, turn, list(voices))
            recording_name = f"{half}-{name}-{turn + 1}"
            own_seed = _seed(seed, recording_name)
            chance = random.Random(own_seed)
            passage = _passage(kind, kind.speech_s * share, [voices[name] for name in names], supply, chance)
            samples = _with_background(passage.samples, kind, voices, np.random.default_rng(own_seed))
            yield Recording(
                name=recording_name,
                samples=samples,
                text=passage.text,
                words=passage.words,
                half=half,
                kind=name,
                voice=", ".join(name.partition(":")[2] for name in names),
                synthesiser=", ".join(dict.fromkeys(name.partition(":")[0] for name in names)),
                seed=own_seed,
            )


def _sounds(half: str, minutes: float, seed: int) -> Iterator[Recording]:
    n = round(minutes * 60 * SAMPLE_RATE)
    for kind, sound in SOUNDS.items() if n else ():
        name = f"{half}-{kind}"
        own_seed = _seed(seed, name)
        yield Recording(name, sound(n, np.random.default_rng(own_seed)), "", (), half, kind, "", "", own_seed)


def _who(kind: Kind, turn: int, names: list[str]) -> list[str]:
    """The voices of a recording."""
    first = (kind.voice + turn) % len(names)
    return names[first:] + names[:first] if kind.turns else [names[first]]


def _passage(kind: Kind, speech_s: float, voices: Sequence[Voice], supply: _Supply, chance: random.Random) -> Passage:
    texts = supply.with_numbers() if kind.numbers else supply.sentences()
    said: list[Passage] = []
    missing_s = speech_s
    for voice in cycle(voices):
        sentence = say_next(voice, texts, kind.rate)
        if kind.longest_pause_s is not None:
            sentence = shorten_pauses(sentence, kind.longest_pause_s)
        said.append(sentence)
        missing_s -= len(sentence.samples) / SAMPLE_RATE
        if missing_s < SPARE_S and len(said) > 1:
            break
    pauses = [chance.uniform(*LEAD_S), *(chance.uniform(*kind.pause_s) for _ in said[1:]), TAIL_S]
    if kind.long_pause_s:
        pauses[len(said) // 2] = kind.long_pause_s
    passage = join(said, pauses)
    return cut_within_words(passage) if kind.cut else passage


def _with_background(samples: Samples, kind: Kind, voices: dict[str, Voice], rng: np.random.Generator) -> Samples:
    if kind.background == "crowd":
        talkers = [voices[name] for name in CROWD if name in voices] or list(voices.values())
        samples = add_noise(samples, crowd(len(samples), talkers, rng), kind.snr_db)
    elif kind.background:
        samples = add_noise(samples, sounds.noise(kind.background, len(samples), rng), kind.snr_db)
    return np.clip(samples, -1, 1)


def _write(folder: Path, recording: Recording) -> Path:
    path = folder / f"{recording.name}.flac"
    soundfile.write(path, recording.samples, SAMPLE_RATE, subtype="PCM_16")
    about = {name: getattr(recording, name) for name in _DESCRIBED}
    about["words"] = [
        {"word": word.word, "start": round(word.start, 4), "end": round(word.end, 4)} for word in recording.words
    ]
    path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return path


def _describe(path: Path) -> dict[str, Any]:
    """The fields of a recording but its name and its samples. Raises AudioFileError."""
    try:
        about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if isinstance(about, list):
            return _describe_shared(path.stem, about)
        words = tuple(
            SpokenWord(str(word["word"]), float(word["start"]), float(word["end"])) for word in about["words"]
        )
        described = {name: about[name] for name in _DESCRIBED}
        if not all(isinstance(described[name], str) for name in ("text", "half", "kind")):
            raise TypeError(described)
        return described | {"words": words}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        raise AudioFileError(
            f"{path.with_suffix('.json')} does not say what is said when; make the corpus anew"
        ) from None
    try:
        text = path.with_suffix(".txt").read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise AudioFileError(f"{path} has no .json beside it that says what is said; make the corpus anew") from None
    return _WITHOUT_TIMES | {"text": " ".join(text.split()), "kind": "people", "half": "held"}


def _describe_shared(name: str, said: list[dict[str, Any]]) -> dict[str, Any]:
    """The same of a recording whose JSON is a list of sentences with their times and voices."""
    return _WITHOUT_TIMES | {
        "text": " ".join(sentence["text"] for sentence in said),
        "half": "held" if name in HELD_RECORDINGS else "tune",
        "kind": name if name in ("pauses", "breathless", "noisy") else "clean",
        "voice": ", ".join(dict.fromkeys(sentence["voice"] for sentence in said)),
        "synthesiser": "flite",
    }
