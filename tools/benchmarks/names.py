"""Names that no model has learnt: how many a glossary sets right, and what it harms in ordinary speech."""

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import numpy as np
from rapidfuzz.distance import Levenshtein
from rich.console import Console
from rich.table import Table

from streamer.audio.constants import SAMPLE_RATE
from streamer.correct.corrector import text_of
from streamer.correct.glossary import Term
from streamer.correct.terms import TermIndex, rewritten, usual_words
from streamer.events import Word
from streamer.library import transcribe
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import WhisperModel, load_model
from tools.benchmarks.corpus import HALVES, TEXT, Recording
from tools.benchmarks.synthetic.speech import Voice
from tools.benchmarks.synthetic.voices import open_voice

VOICES = ("flite:slt", "flite:rms", "espeak:en-us")

# People, places, products; half of them made up. Settings are chosen on `tune`, and `held` is reported.
NAMES = {
    "tune": (
        *("Kowalczyk", "Okonkwo", "Lindqvist", "Takahashi", "Delacroix", "Iturralde", "Venkatesan", "Halvorsen"),
        *("Quintanilla", "Volkonsky", "Achterberg", "Abernathy", "Nakagawa", "Papadakis", "Mbeki", "Grunewald"),
        *("Ljubljana", "Timisoara", "Bujumbura", "Aberystwyth", "Zaporizhia", "Antananarivo"),
        *("Kubernetes", "Grafana", "Terraform", "Postgres", "OpenVINO", "Zookeeper"),
        *("Veltrazine", "Quorbix", "Harrowmere", "Kestriva", "Lumivance", "Brindlecroft"),
        *("Mireille Fontaine", "Anders Thorvaldsen", "Priya Ramaswamy", "Tobias Eklund"),
        *("Port Dravenholt", "Radio Meridiana"),
    ),
    "held": (
        *("Szymanski", "Adebayo", "Eriksdottir", "Yamamoto", "Beauchamp", "Etxeberria", "Chatterjee", "Solheim"),
        *("Castellanos", "Bogdanov", "Rosenqvist", "Featherstone", "Kurosawa", "Stavropoulos", "Nkrumah", "Oberlander"),
        *("Reykjavik", "Constanta", "Kinshasa", "Llandudno", "Vladivostok", "Ouagadougou"),
        *("Prometheus", "Cassandra", "Elasticsearch", "Ansible", "PyTorch", "Clickhouse"),
        *("Mirabexol", "Zanthorel", "Pellingford", "Orvantis", "Synthexa", "Aldenshaw"),
        *("Leila Farahani", "Mateo Zubizarreta", "Ingrid Solvang", "Yusuf Karahan"),
        *("Lake Corvalith", "Villa Rosamunda"),
    ),
}

SENTENCES = (
    "The report was signed by {} in the afternoon.",
    "Yesterday we spoke about {} for almost an hour.",
    "Nobody at the meeting had heard of {} before.",
    "It was {} that caused most of the trouble.",
    "They will send the papers to {} on Monday.",
)

# Sentences without any of these names that each voice reads, and how sure a model is taken to be of written ones.
N_ORDINARY = 40
WRITTEN_PROBABILITY = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What was said, and what was heard."""

    kind: str  # a half of NAMES, or where the text has none of them
    name: str  # empty where there is none in it
    text: str
    words: tuple[Word, ...]


@dataclasses.dataclass(slots=True)
class Count:
    """What came of all that was said of a kind."""

    texts: int = 0
    words: int = 0
    # Texts with their name spelled right.
    right: int = 0
    right_with: int = 0
    # Terms put in that were not said, and words that were right before.
    wrong: int = 0
    harmed: int = 0
    # Words that are wrong, left out or put in.
    errors: int = 0
    errors_with: int = 0
    spent_s: float = 0.0


def measure_names(recordings: Sequence[Recording], console: Console) -> dict[str, dict[str, float]]:
    """Hear names and ordinary speech with nano.en, without and with a glossary of all names; print what it changed."""
    model = load_model("nano.en", DeviceSettings("CPU"))
    terms = [Term(name, (name,)) for half in HALVES for name in NAMES[half]]
    index = TermIndex(terms, usual_words(model.tokenizer.encode))
    counts: dict[str, Count] = defaultdict(Count)
    for said in _all_said(model, recordings, console):
        count = counts[said.kind]
        begin = time.perf_counter()
        replaced = index.replacements(said.words)
        count.spent_s += time.perf_counter() - begin
        spoken, heard = _plain(said.text), _plain(text_of(said.words))
        spelled = _plain(text_of(rewritten(said.words, replaced)))
        right, right_with = Counter(spoken) & Counter(heard), Counter(spoken) & Counter(spelled)
        count.texts += 1
        count.words += len(spoken)
        count.right += bool(said.name) and " ".join(_plain(said.name)) in " ".join(heard)
        count.right_with += bool(said.name) and " ".join(_plain(said.name)) in " ".join(spelled)
        count.wrong += sum(_plain(said.name) != _plain("".join(each.pieces)) for each in replaced)
        count.harmed += (right - right_with).total()
        count.errors += Levenshtein.distance(spoken, heard)
        count.errors_with += Levenshtein.distance(spoken, spelled)
    _show(counts, console)
    return {kind: dataclasses.asdict(count) for kind, count in counts.items()}


def _all_said(model: WhisperModel, recordings: Sequence[Recording], console: Console) -> Iterator[Said]:
    sentences = TEXT.read_text(encoding="utf-8").splitlines() if TEXT.is_file() else []
    for voice_name in VOICES:
        console.print(f"listening to {voice_name}")
        voice = open_voice(voice_name)
        for half in HALVES:
            for name, sentence in zip(NAMES[half], cycle(SENTENCES), strict=False):
                text = sentence.format(name)
                yield Said(half, name, text, _heard(model, voice, text))
        for text in sentences[:N_ORDINARY]:
            yield Said("ordinary, spoken", "", text, _heard(model, voice, text))
    for recording in recordings:
        heard = transcribe(recording.samples, model, language="en", word_timestamps=True)
        yield Said("ordinary, recorded", "", recording.text, heard.words)
    for text in sentences:
        words = (
            Word(word=f" {word}", start=i, end=i + 1, probability=WRITTEN_PROBABILITY, stable=True)
            for i, word in enumerate(text.split())
        )
        yield Said("ordinary, written", "", text, tuple(words))


def _heard(model: WhisperModel, voice: Voice, text: str) -> tuple[Word, ...]:
    samples = voice.say(text).samples.astype(np.float32) / 32768
    return transcribe(np.pad(samples, SAMPLE_RATE // 4), model, language="en", word_timestamps=True).words


def _plain(text: str) -> list[str]:
    return [word for piece in text.lower().split() if (word := piece.strip(".,;:!?\"'"))]


def _show(counts: Mapping[str, Count], console: Console) -> None:
    table = Table("kind", "texts", "names right", "with glossary", "wrong terms", "words harmed", "WER %", "with", "ms")
    for kind, count in counts.items():
        rates = (f"{100 * errors / max(1, count.words):.1f}" for errors in (count.errors, count.errors_with))
        named = (str(count.right), str(count.right_with)) if kind in HALVES else ("", "")
        spent = f"{1000 * count.spent_s / count.texts:.1f}"
        table.add_row(kind, str(count.texts), *named, str(count.wrong), str(count.harmed), *rates, spent)
    console.print(table)
