"""Conversations of synthetic people, made from a seed: sound, and who says which word when.

The people of one half are not those of the other: settings are chosen on `tune`, and what is reported is measured on
`held`. More people than there are voices come of voices whose every frequency is moved, as by a longer or shorter
vocal tract.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streamer.audio.constants import SAMPLE_RATE
from streamer.bench.measure import SpokenWord
from tools.benchmarks.passages import Passage, say_next
from tools.benchmarks.sounds_of_rooms import crowd
from tools.benchmarks.synthetic import sentences
from tools.benchmarks.synthetic.acoustics import add_noise, reverberate, stretch_formants
from tools.benchmarks.synthetic.sounds import Samples
from tools.benchmarks.synthetic.speech import Voice
from tools.benchmarks.synthetic.voices import open_voice

# Voices, and by how much their frequencies are moved.
PEOPLE: Mapping[str, Sequence[tuple[str, float]]] = {
    "tune": (
        ("flite:slt", 1.0),
        ("flite:slt", 0.8),
        ("flite:awb", 1.0),
        ("festival:ked_diphone", 0.95),
        ("espeak:en-us", 1.0),
        ("espeak:en-029+f4", 1.1),
    ),
    "held": (
        ("flite:rms", 1.0),
        ("flite:rms", 1.25),
        ("flite:kal16", 1.0),
        ("espeak:en-gb-x-rp+m7", 0.9),
        ("espeak:en-gb+f5", 1.15),
        ("espeak:en-gb+klatt2", 1.0),
    ),
}


@dataclass(frozen=True)
class Kind:
    """What is hard about a conversation."""

    n_people: int
    # Seconds from the end of one turn to the beginning of the next; where it is negative they overlap.
    pause_s: tuple[float, float] = (0.2, 0.9)
    # Words of a turn.
    n_words: tuple[int, int] = (6, 24)
    snr_db: float | None = None
    rt60_s: float | None = None


KINDS: Mapping[str, Kind] = {
    "two": Kind(2),
    "three": Kind(3),
    "four": Kind(4),
    "five": Kind(5),
    "overlap": Kind(3, pause_s=(-1.5, 0.3)),
    "noise": Kind(3, snr_db=10.0),
    "room": Kind(3, rt60_s=0.5),
    "short turns": Kind(3, n_words=(2, 6)),
    "hard": Kind(4, pause_s=(-0.5, 0.5), n_words=(3, 12), snr_db=10.0, rt60_s=0.5),
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Sound, and each turn: who, and the words with their times."""

    kind: str
    samples: Samples
    turns: tuple[tuple[str, tuple[SpokenWord, ...]], ...]


def make(half: str, kind: str, number: int, minutes: float, seed: int) -> Conversation:
    """Make one of the conversations of a kind. Raises SynthesisError where a voice is not installed."""
    about, name = KINDS[kind], f"{seed} {half} {kind} {number}"
    chance = random.Random(name)
    people = chance.sample(PEOPLE[half], about.n_people)
    voices = {voice: open_voice(voice) for voice, _ in people}
    n = round(minutes * 60 * SAMPLE_RATE)
    samples = np.zeros(n, np.float32)
    turns: list[tuple[str, tuple[SpokenWord, ...]]] = []
    end_s, before = 0.5, -1
    while True:
        who = chance.choice([index for index in range(len(people)) if index != before])
        voice, factor = people[who]
        said = _turn(voices[voice], factor, chance.randint(*about.n_words), chance)
        pause_s = chance.uniform(*about.pause_s) if turns else 0.0
        first = max(0, round((end_s + pause_s) * SAMPLE_RATE))
        if first + len(said.samples) > n:
            break
        samples[first : first + len(said.samples)] += said.samples
        words = (SpokenWord(w.word, w.start + first / SAMPLE_RATE, w.end + first / SAMPLE_RATE) for w in said.words)
        turns.append((f"{voice} {factor}", tuple(words)))
        end_s, before = turns[-1][1][-1].end, who
    rng = np.random.default_rng(random.Random(name).getrandbits(32))
    if about.rt60_s is not None:
        samples = reverberate(samples, about.rt60_s, rng)
    if about.snr_db is not None:
        samples = add_noise(samples, crowd(n, list(voices.values()), rng), about.snr_db)
    return Conversation(kind, np.clip(samples, -1, 1), tuple(turns))


def _turn(voice: Voice, factor: float, n_words: int, chance: random.Random) -> Passage:
    """Say so many words: sentences, the last of them cut."""
    texts = (sentence for sentence in iter(lambda: sentences.made(chance), ""))
    pieces: list[Passage] = []
    missing = n_words
    while missing > 0:
        passage = say_next(
            voice, (" ".join(text.split()[:missing]).rstrip(",;:") for text in texts), chance.uniform(0.9, 1.1)
        )
        pieces.append(passage)
        missing -= len(passage.words)
    samples = np.concatenate([piece.samples for piece in pieces])
    words, offset = [], 0.0
    for piece in pieces:
        words += [SpokenWord(w.word, (w.start + offset) / factor, (w.end + offset) / factor) for w in piece.words]
        offset += len(piece.samples) / SAMPLE_RATE
    return Passage(stretch_formants(samples, factor), tuple(words))
