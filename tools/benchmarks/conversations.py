"""Conversations of people, with who speaks when: recorded ones, and ones made from recordings of one person each."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import butter, sosfilt

from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.engine.gate import SpeechEnd, SpeechGate, SpeechStart
from streamer.errors import UsageError
from streamer.settings.apply import gate_settings
from streamer.settings.table import SpeechSettings
from tools.benchmarks.synthetic.acoustics import active_level, reverberate
from tools.benchmarks.synthetic.sounds import Samples

# Who speaks, from when to when, in seconds.
Turn = tuple[str, float, float]

N_PEOPLE = (2, 3, 4)
LEVEL_DBFS = -26.0  # of everybody: a difference in level would tell them apart
MINUTES = 1.5


@dataclass(frozen=True)
class Kind:
    """What is hard about a conversation."""

    # Seconds of a turn, and from the end of one to the beginning of the next; negative: they overlap.
    turn_s: tuple[float, float] = (0.7, 8.0)
    pause_s: tuple[float, float] = (0.0, 0.6)
    telephone: bool = False
    rt60_s: float | None = None


KINDS: Mapping[str, Kind] = {
    "turns": Kind(),
    "short turns": Kind((0.8, 3.0)),
    "room": Kind(rt60_s=0.5),
    "telephone": Kind((0.8, 3.0), telephone=True),
    "interruptions": Kind((0.8, 3.0), (-0.6, 0.3), telephone=True),
}


@dataclass(frozen=True, slots=True)
class Conversation:
    kind: str
    samples: Samples
    turns: tuple[Turn, ...]


def conversations(folder: Path, half: str, n_each: int, seed: int) -> Iterator[Conversation]:
    """Read the recorded conversations of a folder, and make `n_each` of each kind and number of people.

    folder : with 16 kHz mono NAME.flac, and NAME.rttm beside those in which several people speak; the others are of one
    person each, the same in no two
    half : "tune" or "held"; each has every second name. Raises UsageError if there are too few people.
    """
    paths = sorted(folder.rglob("*.flac"))
    recorded = [path for path in paths if path.with_suffix(".rttm").exists()]
    alone = [path for path in paths if path not in recorded]
    first = ("tune", "held").index(half)
    for path in recorded[first::2]:
        yield Conversation("recorded", _read(path), read_rttm(path.with_suffix(".rttm")))
    people = {path.stem: _utterances(_read(path)) for path in alone[first::2]}
    if len(people) < max(N_PEOPLE):
        raise UsageError(
            f"{folder} has recordings of {len(people)} people for {half}: expected {max(N_PEOPLE)}, each alone"
        )
    for kind in KINDS:
        for n_people in N_PEOPLE:
            for number in range(n_each):
                chance = random.Random(f"{seed} {half} {kind} {n_people} {number}")
                yield make(people, kind, n_people, chance)


def make(people: Mapping[str, Sequence[Samples]], kind: str, n_people: int, chance: random.Random) -> Conversation:
    """Make a conversation of so many of the people, whose utterances are given."""
    about = KINDS[kind]
    rng = np.random.default_rng(chance.getrandbits(32))
    names = chance.sample(sorted(people), n_people)
    following = {name: chance.randrange(len(people[name])) for name in names}
    samples = rng.normal(0, 1e-4, round(MINUTES * 60 * SAMPLE_RATE)).astype(np.float32)
    turns: list[Turn] = []
    at_s = 0.5
    while True:
        name = chance.choice([name for name in names if not turns or name != turns[-1][0]])
        utterance = people[name][following[name] % len(people[name])]
        following[name] += 1
        utterance = utterance[: round(chance.uniform(*about.turn_s) * SAMPLE_RATE)]
        begin = round(at_s * SAMPLE_RATE)
        end = begin + len(utterance)
        if end > len(samples):
            break
        samples[begin:end] += utterance
        turns.append((name, begin / SAMPLE_RATE, end / SAMPLE_RATE))
        at_s = max(0.0, turns[-1][2] + chance.uniform(*about.pause_s))
    if about.rt60_s is not None:
        samples = reverberate(samples, about.rt60_s, rng)
    if about.telephone:
        samples = _telephone(samples)
    return Conversation(kind, np.clip(samples, -1, 1), tuple(turns))


def read_rttm(path: Path) -> tuple[Turn, ...]:
    """Read a file of NIST's Rich Transcription Time Marked format."""
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    turns = ((words[7], float(words[3]), float(words[3]) + float(words[4])) for words in lines if "SPEAKER" in words)
    return tuple(sorted(turns, key=lambda turn: turn[1]))


def regions(samples: Samples) -> list[tuple[int, int]]:
    """Return where speech is, as a session finds it."""
    detector, gate = SpeechDetector(), SpeechGate(gate_settings(SpeechSettings()))
    probabilities = detector.process(samples)
    borders = [gate.feed(n * CHUNK_SAMPLES, (n + 1) * CHUNK_SAMPLES, p) for n, p in enumerate(probabilities)]
    borders.append(gate.close(len(samples)))
    starts = [border.position for border in borders if isinstance(border, SpeechStart)]
    ends = [border.position for border in borders if isinstance(border, SpeechEnd)]
    return list(zip(starts, ends, strict=True))


def _read(path: Path) -> Samples:
    samples: Samples = soundfile.read(path, dtype="float32")[0]
    return samples


def _utterances(samples: Samples) -> list[Samples]:
    samples = samples * np.float32(10 ** (LEVEL_DBFS / 20) / active_level(samples))
    longest = 8 * SAMPLE_RATE
    pieces = [
        samples[at : min(at + longest, end)] for begin, end in regions(samples) for at in range(begin, end, longest)
    ]
    return [piece for piece in pieces if len(piece) > 0.7 * SAMPLE_RATE]


def _telephone(samples: Samples) -> Samples:
    """Return what a telephone leaves: 300 to 3400 Hz, in 8 bits of mu-law (ITU-T G.711)."""
    narrow = sosfilt(butter(4, (300, 3400), "bandpass", fs=SAMPLE_RATE, output="sos"), samples)
    steps = np.round(np.sign(narrow) * np.log1p(255 * np.minimum(np.abs(narrow), 1)) / np.log(256) * 127) / 127
    result: Samples = (np.sign(steps) * np.expm1(np.abs(steps) * np.log(256)) / 255).astype(np.float32)
    return result
