"""What a microphone hears when nobody speaks to it: silence, noise, music, typing; a crowd.

All are mono, 16 kHz, float32 in [-1, 1]; the same `rng` gives the same samples.
"""

import random
from collections.abc import Callable, Sequence

import numpy as np

from streamer.audio.constants import SAMPLE_RATE
from tools.benchmarks.passages import fade, join, say_next
from tools.benchmarks.synthetic import sentences, sounds
from tools.benchmarks.synthetic.acoustics import active_level, add_noise
from tools.benchmarks.synthetic.sounds import Samples
from tools.benchmarks.synthetic.speech import Voice

ROOM_TONE_DBFS = -60.0
FADE_S = 0.02  # at both ends of a stretch of sound
TALKERS = 6  # in a babble


def silence(n: int, rng: np.random.Generator) -> Samples:
    """`n` samples: zeros first, from the middle on the tone of a quiet room."""
    samples = room_tone(n, rng)
    samples[: n // 2] = 0.0
    return samples


def noise(n: int, rng: np.random.Generator) -> Samples:
    """`n` samples of white noise, louder or softer (-50 to -20 dBFS) every 10 to 40 seconds."""
    return _stretches("white", n, rng, level_db=(-30, 0), pause_s=(0.0, 0.0))


def music(n: int, rng: np.random.Generator) -> Samples:
    """`n` samples of music: one piece after the other, at -40 to -20 dBFS."""
    return _stretches("music", n, rng, level_db=(-20, 0), pause_s=(0.0, 3.0))


def keyboard(n: int, rng: np.random.Generator) -> Samples:
    """`n` samples of somebody typing, now and then, in a quiet room."""
    return room_tone(n, rng) + _stretches("keyboard", n, rng, level_db=(-20, -3), pause_s=(0.5, 8.0))


# The recordings without speech, by kind.
SOUNDS: dict[str, Callable[[int, np.random.Generator], Samples]] = {
    "silence": silence,
    "noise": noise,
    "music": music,
    "keyboard": keyboard,
}


def room_tone(n: int, rng: np.random.Generator) -> Samples:
    """`n` samples of pink noise and some hum, at ROOM_TONE_DBFS."""
    tone = sounds.noise("pink", n, rng) + np.float32(0.3) * sounds.noise("hum", n, rng)
    return tone * np.float32(10 ** (ROOM_TONE_DBFS / 20) / (active_level(tone) or 1.0))


def crowd(n: int, voices: Sequence[Voice], rng: np.random.Generator) -> Samples:
    """`n` samples of a full room: a babble of TALKERS, who say what is made up, and as much pink noise.

    Raises SynthesisError.
    """
    babble = np.zeros(n, np.float32)
    chance = random.Random(int(rng.integers(2**32)))
    for number in range(TALKERS):
        babble += _talker(n, voices[number % len(voices)], chance)
    return add_noise(babble, sounds.noise("pink", n, rng), 0.0)


def _talker(n: int, voice: Voice, chance: random.Random) -> Samples:
    """`n` samples of one who talks without end, entered anywhere in the first sentence."""
    rate = chance.uniform(0.9, 1.2)
    made = iter(lambda: sentences.made(chance), "")
    said = [say_next(voice, made, rate)]
    missing = n
    while missing > 0:
        said.append(say_next(voice, made, rate))
        missing -= len(said[-1].samples)
    talk = join(said, [0.0, *(chance.uniform(0.1, 0.5) for _ in said)]).samples
    entry = chance.randrange(len(said[0].samples))
    return talk[entry : entry + n]


def _stretches(
    kind: str, n: int, rng: np.random.Generator, *, level_db: tuple[float, float], pause_s: tuple[float, float]
) -> Samples:
    """`n` samples in stretches of 10 to 40 s of a kind of sounds.KINDS, each made anew, pauses between them."""
    out = np.zeros(n, np.float32)
    at = 0
    while at < n:
        length = min(round(rng.uniform(10.0, 40.0) * SAMPLE_RATE), n - at)
        stretch = sounds.noise(kind, length, rng) * np.float32(10 ** (rng.uniform(*level_db) / 20))
        out[at : at + length] = fade(stretch, FADE_S)
        at += length + round(rng.uniform(*pause_s) * SAMPLE_RATE)
    return np.clip(out, -1, 1)
