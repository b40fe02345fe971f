"""Speaks the sentences: python -m tools.train_nano.synthesise --text DIR --corpus DIR --hours H

The corpus is made of shards of a hundred sentences, each spoken by one voice at a rate and a pitch of its own. A shard
is a `.pcm` file (int16, mono, 16 kHz, one sentence after the other) and a `.jsonl` file that says what was said where
(corpus.py reads them). Both are complete once the second is there, so the work can be stopped and taken up again, and
training can begin while shards are still being made. Shard k of a voice has the same sentences, rates and pitches on
every run; the sound itself has some chance in it (espeak-ng and Flite's statistical voices are excited by noise).
"""

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import numpy as np

from streamer.audio.constants import SAMPLE_RATE
from tools.train_nano import sentences
from tools.train_nano.corpus import shard_voice
from tools.train_nano.speech import SynthesisError, Voice
from tools.train_nano.voices import VOICES, open_voice

SENTENCES_PER_SHARD = 100
SHARE_MADE = 0.25  # of the sentences: made up, the others read
SHARE_PHRASES = 0.3  # of the sentences that are read: cut to a phrase
SHARE_VARIED = 0.4  # of the sentences that are read: with words of a list
WORDS = Path("/usr/share/dict/american-english")
SENTENCES_BEFORE = 6  # that are kept with each, to prompt with
RATES = (0.8, 1.3)
PITCHES = (0.8, 1.25)
QUIET = 0.003  # of full scale: silence at the ends of a sentence, which is cut away
MARGIN_S = 0.05  # what is left of it


def shard_name(voice: str, number: int) -> str:
    return f"{shard_voice(voice)}-{number:04d}"


def plan(voices: dict[str, float], hours: float, first: int = 0) -> Iterator[tuple[str, int]]:
    """Every shard for about `hours` of speech, numbered from `first` on, the voices taking turns by their shares."""
    total = sum(voices.values())
    shards = max(1, round(hours * 3600 / (SENTENCES_PER_SHARD * 6.0)))  # a sentence is about six seconds
    made = dict.fromkeys(voices, 0)
    for turn in range(1, shards + 1):
        voice = max(voices, key=lambda name: voices[name] / total * turn - made[name])
        yield voice, first + made[voice]
        made[voice] += 1


def speak_shard(text: Path, words: Path, corpus: Path, voice: str, number: int) -> float:
    """Make one shard, unless it is there, and return its length in seconds. Raises SynthesisError."""
    target = corpus / f"{shard_name(voice, number)}.jsonl"
    if target.exists():
        return target.with_suffix(".pcm").stat().st_size / 2 / SAMPLE_RATE
    rng = random.Random(f"{voice} {number}")
    entries = []
    pieces = []
    position = 0
    for sentence, before in _choose(_read(text), _replacements(words), voice, number, rng):
        rate, pitch = rng.uniform(*RATES), rng.choice((1.0, rng.uniform(*PITCHES)))
        try:
            speech = _voice(voice).say(sentence, rate, pitch)
        except SynthesisError:
            continue  # a sentence whose words cannot be found again teaches nothing
        loud = np.flatnonzero(np.abs(speech.samples) > QUIET * 32768)
        if len(loud) == 0:
            continue
        margin = round(MARGIN_S * SAMPLE_RATE)
        begin, end = max(0, int(loud[0]) - margin), min(len(speech.samples), int(loud[-1]) + margin)
        samples = speech.samples[begin:end]
        length, offset = len(samples) / SAMPLE_RATE, begin / SAMPLE_RATE

        def placed(seconds: float, offset: float = offset, length: float = length) -> float:
            return round(min(max(seconds - offset, 0.0), length), 3)

        entries.append(
            {
                "start": position,
                "samples": len(samples),
                "text": sentence,
                "before": before,
                "words": [[placed(start), placed(end)] for start, end in speech.words],
                "phones": [[name, placed(end)] for name, end in speech.phones],
            }
        )
        pieces.append(samples)
        position += len(samples)
    if not pieces:
        raise SynthesisError(f"the voice {voice} spoke none of the sentences of shard {number}")
    corpus.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".pcm").write_bytes(np.concatenate(pieces).astype("<i2").tobytes())
    unfinished = target.with_suffix(".part")
    unfinished.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    unfinished.replace(target)
    return position / SAMPLE_RATE


def _choose(
    read: list[str], replacements: dict[str, tuple[str, ...]], voice: str, number: int, rng: random.Random
) -> Iterator[tuple[str, str]]:
    """The sentences of a shard, and the text before each; a voice reads all that are read once before one again."""
    share = round(SENTENCES_PER_SHARD * (1 - SHARE_MADE))
    for position in range(number * share, (number + 1) * share):
        chosen = _order(len(read), f"{voice} {position // len(read)}")[position % len(read)]
        sentence = read[chosen]
        if rng.random() < SHARE_VARIED:
            sentence = sentences.varied(sentence, replacements, rng)
        if rng.random() < SHARE_PHRASES:
            sentence = sentences.phrases(sentence, rng)
        yield sentence, " ".join(read[max(0, chosen - SENTENCES_BEFORE) : chosen])
    for _ in range(SENTENCES_PER_SHARD - share):
        yield sentences.made(rng), " ".join(sentences.made(rng) for _ in range(SENTENCES_BEFORE))


@cache
def _order(count: int, seed: str) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@cache
def _read(text: Path) -> list[str]:
    return sentences.read(text / "train.txt")


@cache
def _replacements(words: Path) -> dict[str, tuple[str, ...]]:
    return sentences.read_replacements(words)


@cache
def _voice(name: str) -> Voice:
    return open_voice(name)


def _niced() -> None:
    if hasattr(os, "nice"):
        os.nice(10)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speak the sentences that the model is trained on.")
    parser.add_argument("--text", type=Path, required=True, help="the folder with train.txt")
    parser.add_argument("--words", type=Path, default=WORDS, help=f"a list of words, one a line (default: {WORDS})")
    parser.add_argument("--corpus", type=Path, required=True, help="the folder for the speech; what is there is kept")
    parser.add_argument("--hours", type=float, default=60.0, help="how much speech (default: 60)")
    parser.add_argument("--first", type=int, default=0, help="the first shard of each voice: other ones, other speech")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time (default: one per core)")
    parser.add_argument("--voices", nargs="*", default=list(VOICES), help="only these (default: all)")
    options = parser.parse_args()
    if not (options.text / "train.txt").is_file():
        raise SystemExit(f"{options.text / 'train.txt'} is missing; it holds the sentences, one a line (README.md)")
    if not options.words.is_file():
        raise SystemExit(f"{options.words} is missing; it holds words, one a line (Debian's package wamerican)")
    voices = {}
    for name in options.voices:
        try:
            open_voice(name)
            voices[name] = VOICES.get(name, 1.0)
        except SynthesisError as error:
            print(f"left out: {error}")
    if not _read(options.text):
        raise SystemExit(f"{options.text / 'train.txt'} has no sentence; it holds one a line (README.md)")
    if not voices:
        raise SystemExit("no voice can be used; install flite, espeak-ng or festival")
    started, done = time.monotonic(), 0.0
    with ProcessPoolExecutor(options.jobs, initializer=_niced) as pool:
        shards = [
            pool.submit(speak_shard, options.text, options.words, options.corpus, voice, number)
            for voice, number in plan(voices, options.hours, options.first)
        ]
        for count, shard in enumerate(as_completed(shards), 1):
            try:
                done += shard.result()
            except SynthesisError as error:
                raise SystemExit(str(error)) from None
            elapsed = time.monotonic() - started
            print(f"\r{count}/{len(shards)} shards, {done / 3600:.1f} h of speech, {elapsed:.0f} s", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
