"""Measures the model as the daemon uses it: python -m tools.train_nano.evaluate --text DIR

Held-out sentences, spoken by each voice as it comes, and by a few under each condition, one in a window of 30 s whose
rest is silence; decoded by streamer itself without timestamps, greedily and along the beams that live captions follow.
Full windows also offline with timestamps, and streamed. Then speech that is cut off, what is not speech, and where
words are said to be. The table that is printed is the one in the model's card.

Nothing here is drawn at random without a seed. (eSpeak alone speaks a little differently each time.)
"""

import argparse
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from pathlib import Path

import jiwer
import numpy as np
import soundfile
from numpy.typing import NDArray
from whisper.normalizers import EnglishTextNormalizer

from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.mel import log_mel
from streamer.live.decoder import WhisperDecoder
from streamer.live.sessions import session_settings
from streamer.settings.apply import resolve_decoding
from streamer.settings.load import load_settings
from streamer.settings.table import DecodingSettings
from streamer.stream.window import Request
from streamer.transcribe import transcribe
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.result import Hypothesis
from tools.benchmarks.simulate import Simulator
from tools.train_nano import degrade, sentences, sounds
from tools.train_nano.speech import Speech, SynthesisError, Voice
from tools.train_nano.voices import VOICES, open_voice

Samples = NDArray[np.float32]

SPEAKERS = ("flite:slt", "flite:rms", "flite:awb", "flite:kal16", "espeak:en-gb", "festival:ked_diphone")
EVERY_SENTENCE = "flite:"  # voices that speak them all; the others and the conditions have every third
WINDOW_S = 30.0
NOISE_WINDOWS = 20  # of each kind of sound: ten minutes
PROMPT_CHARACTERS = 600  # the end of what was read before, about 200 tokens of nano.en's

_normalise = EnglishTextNormalizer()


@dataclass
class Row:
    """One line of the table."""

    name: str
    references: list[str] = field(default_factory=list)
    hypotheses: list[list[str]] = field(default_factory=list)  # of each: greedily and as captions, or these alone

    def add(self, reference: str, hypotheses: Sequence[str]) -> None:
        reference = _normalise(reference)
        if reference:
            self.references.append(reference)
            self.hypotheses.append([_normalise(hypothesis) for hypothesis in hypotheses])

    @property
    def measures(self) -> list[jiwer.WordOutput]:
        """Greedily and as captions, or as captions alone."""
        return [jiwer.process_words(self.references, list(column)) for column in zip(*self.hypotheses, strict=True)]

    @property
    def words(self) -> int:
        return sum(len(reference.split()) for reference in self.references)

    @property
    def wers(self) -> list[float]:
        return [100 * float(measures.wer) for measures in self.measures]

    def __str__(self) -> str:
        rates = [f"{wer:.1f}" for wer in self.wers]
        captions = self.measures[-1]
        for part in (captions.substitutions, captions.deletions, captions.insertions):
            rates.append(f"{100 * part / self.words:.1f}")
        return f"| {self.name} | {self.words} | {' | '.join(['-'] * (5 - len(rates)) + rates)} |"


def means(rows: Sequence[Row]) -> str:
    """The mean WER of rows, greedily and as captions, as cells of the table."""
    greedily = [row.wers[0] for row in rows if len(row.wers) > 1]
    return " | ".join(f"**{statistics.mean(wers):.1f}**" for wers in (greedily, [row.wers[-1] for row in rows]))


# The default settings' own.
NO_SPEECH_THRESHOLD = 0.6
LOGPROB_THRESHOLD = -1.0


class Listener:
    """Decodes windows of up to 30 s as a live session does: greedily, and with the default settings."""

    def __init__(self, model: WhisperModel) -> None:
        self.model = model
        self._decoders = [
            WhisperDecoder(model, settings) for settings in (DecodingSettings(beam_size=1), DecodingSettings())
        ]

    def hear(self, samples: Samples, prompt: str = "") -> list[Hypothesis]:
        encoded = self.model.runtime.encode(log_mel(samples, self.model.dims.n_mels), 0)
        request = Request(n_samples=len(samples), prompt=prompt, prefix=(), language="en", task="transcribe")
        return [decoder.decode(encoded, request) for decoder in self._decoders]

    def texts(self, samples: Samples, prompt: str = "") -> list[str]:
        """What is heard; nothing where the default thresholds say that nobody spoke."""

        def text(heard: Hypothesis) -> str:
            silent = heard.is_silence(NO_SPEECH_THRESHOLD, LOGPROB_THRESHOLD)
            return "" if silent else "".join(word.text for word in heard.words)

        return [text(heard) for heard in self.hear(samples, prompt)]


def floats(speech: Speech) -> Samples:
    return speech.samples.astype(np.float32) / np.float32(32768)


def conditions() -> dict[str, Callable[[Samples, np.random.Generator], Samples]]:
    """What is done to the speech, by name."""

    def noisy(kinds: tuple[str, ...], snr_db: float) -> Callable[[Samples, np.random.Generator], Samples]:
        def spoil(x: Samples, rng: np.random.Generator) -> Samples:
            return degrade.add_noise(x, sounds.noise(kinds[rng.integers(len(kinds))], len(x), rng), snr_db)

        return spoil

    noises = ("white", "pink", "brown", "fan", "traffic", "hum")
    return {
        "noise at 20 dB": noisy(noises, 20.0),
        "noise at 10 dB": noisy(noises, 10.0),
        "music at 10 dB": noisy(("music",), 10.0),
        "keyboard at 10 dB": noisy(("keyboard",), 10.0),
        "room, RT60 0.4 s": lambda x, rng: degrade.reverberate(x, 0.4, rng),
        "telephone": lambda x, rng: degrade.telephone(x, mu_law=True),
        "30 dB quieter": lambda x, rng: degrade.scale(x, -30.0),
    }


def spoken(texts: Iterable[str], speakers: Sequence[Voice], rate: float = 1.0) -> Iterator[tuple[str, Speech]]:
    """The texts, the speakers taking turns; those that cannot be spoken are left out."""
    for text, speaker in zip(texts, cycle(speakers)):
        with suppress(SynthesisError):
            yield text, speaker.say(text, rate)


def voice_rows(listener: Listener, held_out: list[str], voices: dict[str, Voice]) -> Iterator[Row]:
    for name, voice in voices.items():
        row = Row(name)
        for text, speech in spoken(held_out if name.startswith(EVERY_SENTENCE) else held_out[::3], [voice]):
            row.add(text, listener.texts(floats(speech)))
        yield row


def prompts(held_out: list[str]) -> Iterator[tuple[str, Callable[[str], str]]]:
    """What is shown of the text before a held-out sentence, by name."""

    def before(text: str) -> list[str]:
        return held_out[: held_out.index(text)]

    yield "nothing done to it, without a prompt", lambda text: ""
    yield "with the sentence before as prompt", lambda text: " ".join(before(text)[-1:])
    yield "with 200 tokens before as prompt", lambda text: " ".join(before(text))[-PROMPT_CHARACTERS:]


def condition_rows(listener: Listener, held_out: list[str], speakers: list[Voice]) -> Iterator[Row]:
    texts = held_out[1::3]
    for name, spoil in conditions().items():
        row, rng = Row(name), np.random.default_rng(1)
        for text, speech in spoken(texts, speakers):
            row.add(text, listener.texts(spoil(floats(speech), rng)))
        yield row
    for name, rate in (("a quarter faster", 1.25), ("a fifth slower", 0.8)):
        row = Row(name)
        for text, speech in spoken(texts, speakers, rate):
            row.add(text, listener.texts(floats(speech)))
        yield row
    for name, prompt_of in prompts(held_out):
        row = Row(name)
        for text, speech in spoken(texts, speakers):
            row.add(text, listener.texts(floats(speech), prompt=prompt_of(text)))
        yield row
    made = random.Random("held out")
    row = Row("made-up questions, names and numbers")
    for text, speech in spoken((sentences.made(made) for _ in texts), speakers):
        row.add(text, listener.texts(floats(speech)))
    yield row


def full_windows(held_out: list[str], speakers: list[Voice]) -> Iterator[tuple[str, Samples]]:
    """Thirty seconds full of speech each, and what is said."""
    rng = random.Random(2)
    texts = iter(held_out[2::3])
    for speaker in islice(cycle(speakers), 20):
        audio: list[Samples] = []
        said: list[str] = []
        for text, speech in spoken(texts, [speaker]):
            samples = floats(speech)
            if sum(map(len, audio)) + len(samples) > WINDOW_S * SAMPLE_RATE:
                break
            audio += [samples, np.zeros(round(rng.uniform(0.1, 1.0) * SAMPLE_RATE), dtype=np.float32)]
            said.append(text)
        if audio:
            yield " ".join(said), np.concatenate(audio)[: round(WINDOW_S * SAMPLE_RATE)]


def offline(model: WhisperModel, windows: Sequence[tuple[str, Samples]]) -> Row:
    """Full windows through the offline transcriber, with timestamps and without fallback."""
    row = Row("full windows, with timestamps")
    decodings = [
        resolve_decoding(
            DecodingSettings(language="en", beam_size=beams, temperature_increment_on_fallback=None), model
        )
        for beams in (None, model.n_beams)
    ]
    for said, audio in windows:
        row.add(said, [" ".join(final.text for final in transcribe(model, audio, each)) for each in decodings])
    return row


def streamed(model: WhisperModel, windows: Sequence[tuple[str, Samples]]) -> Row:
    """The same windows as live captions with the default settings, in simulated time."""
    row = Row("the same windows, streamed")
    settings = load_settings(None, {}, {})
    simulator = Simulator(model, settings.decoding)
    for said, audio in windows:
        timeline = simulator.play(row.name, audio, session_settings(settings, model))
        row.add(said, [" ".join(timeline.revisions[-1].words) if timeline.revisions else ""])
    return row


def cut_off(listener: Listener, held_out: list[str], speakers: list[Voice]) -> Row:
    """Sentences that end in the middle: the reference is what was said in full."""
    row, rng = Row("cut off somewhere"), random.Random(3)
    for text, speech in spoken(held_out, speakers):
        begin, end = speech.words[0][0], speech.words[-1][1]
        cut = rng.uniform(begin + 0.3 * (end - begin), end)
        words = [w for w, (_, word_end) in zip(text.split(), speech.words, strict=True) if word_end <= cut]
        row.add(" ".join(words), listener.texts(floats(speech)[: round(cut * SAMPLE_RATE)]))
    return row


def word_errors(listener: Listener, held_out: list[str], speakers: list[Voice]) -> list[float]:
    """How far the beginnings of captions' words are from where they were said, in seconds, where all were heard."""
    errors: list[float] = []
    for text, speech in spoken(held_out[::3], speakers):
        words = listener.hear(floats(speech))[-1].words
        if [word.text.strip() for word in words] == text.split():
            found = [word.start_samples / SAMPLE_RATE for word in words]
            errors += [abs(a - b) for a, (b, _) in zip(found, speech.words, strict=True)]
    return errors


def invented(listener: Listener) -> dict[str, list[int]]:
    """Words that are heard in what is not speech, greedily and as captions, by the kind of sound."""
    words = {}
    for kind in ("digital silence", *sounds.KINDS):
        rng = np.random.default_rng(4)
        counts = []
        for _ in range(1 if kind == "digital silence" else NOISE_WINDOWS):
            n = round(WINDOW_S * SAMPLE_RATE)
            sound = np.zeros(n, dtype=np.float32) if kind == "digital silence" else sounds.noise(kind, n, rng)
            texts = listener.texts(sound * np.float32(10 ** rng.uniform(-2, 0.3)))
            counts.append([len(text.split()) for text in texts])
        words[kind] = [sum(column) for column in zip(*counts, strict=True)]
    return words


def people(listener: Listener, folder: Path) -> Row:
    row = Row("people (not trained for)")
    for path in sorted(folder.glob("*.flac")):
        samples, _ = soundfile.read(path, dtype="float32")
        row.add(path.with_suffix(".txt").read_text(encoding="utf-8"), listener.texts(samples))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure nano.en on held-out sentences.")
    parser.add_argument("--text", type=Path, required=True, help="the folder with heldout.txt")
    parser.add_argument("--model", default="models/nano.en", help="the model's folder (default: the one shipped)")
    parser.add_argument("--people", type=Path, help="a folder with recordings of people, *.flac and *.txt")
    parser.add_argument("--voices", nargs="*", default=list(VOICES), help="only these (default: all)")
    options = parser.parse_args()
    path = options.text / "heldout.txt"
    if not path.is_file():
        raise SystemExit(f"{path} is missing; it holds the held-out sentences, one a line (README.md)")
    train = options.text / "train.txt"
    trained = set(sentences.read(train)) if train.is_file() else set()
    held_out = [sentence for sentence in sentences.read(path) if sentence not in trained]
    voices: dict[str, Voice] = {}
    for name in options.voices:
        try:
            voices[name] = open_voice(name)
        except SynthesisError as error:
            print(f"left out: {error}")
    if not voices:
        raise SystemExit("no voice can be used; install flite, espeak-ng or festival")
    speakers = [voices[name] for name in SPEAKERS if name in voices] or list(voices.values())
    listener = Listener(load_model(options.model, DeviceSettings("CPU"), n_beams=None))
    print("| Voice, or what was done | Words | Greedily, WER % | Captions | Substituted % | Left out % | Put in % |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows: list[Row] = []
    live = load_model(options.model, DeviceSettings("CPU"), n_beams=None, windows_s=None)
    full = list(full_windows(held_out, speakers))
    for row in chain(
        voice_rows(listener, held_out, voices),
        condition_rows(listener, held_out, speakers),
        (measure(model, full) for measure, model in ((offline, listener.model), (streamed, live))),
    ):
        print(row, flush=True)
        rows.append(row)
    if flite := [row for row in rows if row.name.startswith("flite:")]:
        print(f"| **mean of flite's voices** | | {means(flite)} | | | |")
    print(f"| **mean of all of the above** | | {means(rows)} | | | |")
    print(cut_off(listener, held_out, speakers), flush=True)
    if options.people:
        print(people(listener, options.people))
    print()
    heard = invented(listener)
    print(
        "Words invented, greedily and as captions: " + ", ".join(f"{kind} {a}, {b}" for kind, (a, b) in heard.items())
    )
    if errors := word_errors(listener, held_out, speakers):
        quantiles = statistics.quantiles(errors, n=10)
        print(
            f"Words begin where they are said to: median error {statistics.median(errors) * 1000:.0f} ms, "
            f"nine in ten within {quantiles[8] * 1000:.0f} ms."
        )


if __name__ == "__main__":
    main()
