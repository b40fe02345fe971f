"""One recording through several models or settings: their errors, or how far they disagree, word by word."""

import csv
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from streamer.errors import UsageError
from streamer.languages import WITHOUT_SPACES

if TYPE_CHECKING:
    from rapidfuzz.distance import Editops, Opcodes

# Each character of a script without spaces counts as a word, so that the error rate is that of characters.
_LETTERS = rf"[^\W{WITHOUT_SPACES}]+"
_SIGN = rf"[^\w\s{WITHOUT_SPACES}]"
# Signs in front are looked at from the first of them only, or a million of them would be looked at from each.
_WORD = re.compile(rf"(?:(?<!{_SIGN}){_SIGN}+)?([{WITHOUT_SPACES}]|{_LETTERS}(?:['’]{_LETTERS})*){_SIGN}*")

# What is said of a candidate: a model, and behind each @ a setting.
_SETTING = re.compile(r"@(?=\w+\.\w+=)")

# Of what a candidate may have its own settings.
SECTIONS = ("model", "decoding", "speech", "stream")

REFERENCE = "reference"

# Percentiles of delays that are reported.
_DELAYS = (("first_seen", 50), ("stable", 50), ("stable", 90), ("finalisation", 50))


def parse_candidates(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read lists of candidates: `MODEL[@SECTION.KEY=VALUE]...`, separated by commas; quoted if a comma is in it.

    Returns of each, by this text, the settings by dotted name, the model's name among them. Raises UsageError if one is
    empty, is there twice, or has a setting of another section than `SECTIONS`.
    """
    candidates: dict[str, dict[str, str]] = {}
    try:
        lists = list(csv.reader(texts, skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise UsageError(f"models are not a list ({error}): expected names with commas between them") from None
    for names in lists:
        for name in map(str.strip, names):
            model, *given = _SETTING.split(name)
            if not model:
                raise UsageError(f"{name!r:.80} names no model: expected MODEL, or MODEL@SECTION.KEY=VALUE")
            settings = {"model.name": model}
            for item in given:
                setting, _, value = item.partition("=")
                if setting.partition(".")[0] not in SECTIONS or setting == "model.name":
                    raise UsageError(
                        f"{name!r:.80} sets {setting}: expected settings of {', '.join(SECTIONS)} behind the name of"
                        " the model"
                    )
                settings[setting] = value
            if settings in candidates.values():
                raise UsageError(f"{name!r:.80} is there twice: expected different models, or different settings")
            candidates[name] = settings
    if not candidates:
        raise UsageError("no models are named: expected some, such as nano.en,base.en")
    return candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a candidate made of one recording. None: not measured."""

    # Start in seconds, and text, of each segment.
    segments: Sequence[tuple[float, str]] = ()
    language: str = ""
    audio_s: float = 0.0

    # Seconds to the first text, of computing, and of all processor cores together, without loading the model.
    first_text_s: float | None = None
    wall_s: float | None = None
    cpu_s: float | None = None

    # Of live captions, as `delays.word_delays` names them.
    delays_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    # Why there is no text; empty if there is one.
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Runs:
    """What a candidate made of all recordings, in their order."""

    name: str
    runs: list[Run]
    load_s: float | None = None

    # Highest resident memory of the process while it transcribed, in units of 2**20 bytes.
    peak_rss_mb: float | None = None


class ComparedWord(NamedTuple):
    """A word as it stands in a text, with the signs at it; and as it is compared."""

    shown: str
    compared: str
    start_s: float | None = None  # start of its segment in seconds, if it is the first word of one


# A text of a recording; None if it failed.
Text = list[ComparedWord] | None

# A word of each text, None if the text has no word there.
Column = tuple[ComparedWord | None, ...]


@dataclass(frozen=True, slots=True)
class Aligned:
    """The texts of one recording beside each other."""

    recording: str

    # Whose texts they are: the reference's, if there is one, and those of candidates that did not fail.
    labels: list[str]
    columns: list[Column]

    @property
    def places(self) -> list[list[int]]:
        """The columns of each place at which the texts differ."""
        differ = [len({word and word.compared for word in column}) > 1 for column in self.columns]
        return [list(place) for differs, place in groupby(range(len(differ)), differ.__getitem__) if differs]


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of a candidate over all recordings; None: not measured."""

    name: str
    error: str
    language: str

    # By the names in `compare_table.FIGURES`, and the seconds of audio.
    figures: Mapping[str, float | None]

    # Percentiles in seconds.
    delays: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidates beside each other."""

    rows: list[Row]

    # Of each two candidates the edits from one text to the other, for each word of the longer: 0 to 1.
    disagreement: list[list[float | None]]
    recordings: list[Aligned]

    @property
    def failed(self) -> bool:
        return any(row.error for row in self.rows)

    def to_json(self, **more: object) -> str:
        """Return everything as one line of JSON; a column of the texts is a list of words, null for a missing one.

        more : what else to write beside it
        """
        everything = {
            **more,
            "models": [
                {"name": row.name, "error": row.error, "language": row.language, **row.figures, "delays": row.delays}
                for row in self.rows
            ],
            "disagreement": self.disagreement,
            "recordings": [
                {
                    "name": aligned.recording,
                    "texts": aligned.labels,
                    "columns": [[word and word.shown for word in column] for column in aligned.columns],
                    "places": aligned.places,
                }
                for aligned in self.recordings
            ],
        }
        return msgspec.json.encode(everything).decode() + "\n"


def compare(recordings: Sequence[str], references: Sequence[str], candidates: Sequence[Runs]) -> Comparison:
    """Compare the texts of candidates over recordings.

    The error rate is against the reference. Words are aligned with it too, else with the first candidate's.

    references : the text of each recording, or none
    """
    texts = [[None if run.error else words(run.segments) for run in candidate.runs] for candidate in candidates]
    said = [words([(0.0, text)]) for text in references]
    pairs = {(i, j): _disagreement(texts[i], texts[j]) for i, j in combinations(range(len(texts)), 2)}
    disagreement = [[pairs.get((min(i, j), max(i, j))) for j in range(len(texts))] for i in range(len(texts))]
    rows = [_row(*each, said) for each in zip(candidates, texts, disagreement, strict=True)]
    aligned = []
    for k, recording in enumerate(recordings):
        shown = [(REFERENCE, said[k])] if said else []
        shown += [
            (each.name, text[k] or []) for each, text in zip(candidates, texts, strict=True) if text[k] is not None
        ]
        aligned.append(Aligned(recording, [label for label, _ in shown], columns([text for _, text in shown])))
    return Comparison(rows, disagreement, aligned)


def words(segments: Sequence[tuple[float, str]]) -> list[ComparedWord]:
    """Split texts into words that compare: without case and punctuation, of `twenty-one` two."""
    found: list[ComparedWord] = []
    for start_s, text in segments:
        for k, match in enumerate(_WORD.finditer(text)):
            found.append(ComparedWord(match[0], match[1].casefold().replace("’", "'"), start_s if k == 0 else None))
    return found


def columns(texts: Sequence[Sequence[ComparedWord]]) -> list[Column]:
    """Put several texts beside each other: the second is aligned with the first, each further one with those before.

    A column in which the first text has no word is compared by the word of the first text that has one there.
    """
    joined: list[Column] = [(word,) for word in texts[0]] if texts else []
    for row, text in enumerate(texts[1:], 1):
        present = [next(word for word in column if word) for column in joined]
        merged: list[Column] = []
        for edit in _opcodes(_compared(present), _compared(text)):
            before, more = joined[edit.src_start : edit.src_end], text[edit.dest_start : edit.dest_end]
            if edit.tag == "insert":
                merged += [(*[None] * row, word) for word in more]
            elif edit.tag == "delete":
                merged += [(*column, None) for column in before]
            else:
                merged += [(*column, word) for column, word in zip(before, more, strict=True)]
        joined = merged
    return joined


def _compared(text: Iterable[ComparedWord]) -> list[str]:
    return [word.compared for word in text]


def _disagreement(a: Sequence[Text], b: Sequence[Text]) -> float | None:
    pairs = [(_compared(x), _compared(y)) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    n_words = sum(max(len(x), len(y)) for x, y in pairs)
    return sum(len(_edits(x, y)) for x, y in pairs) / n_words if n_words else None


def _edits(a: Sequence[str], b: Sequence[str]) -> "Editops":
    """Return the fewest edits that make one text of another."""
    from rapidfuzz.distance import Levenshtein  # late: of the extra `compare`

    return Levenshtein.editops(a, b)


def _opcodes(a: Sequence[str], b: Sequence[str]) -> "Opcodes":
    """Return the same edits by spans, with those that are equal."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.opcodes(a, b)


def _row(
    candidate: Runs, texts: Sequence[Text], others: Sequence[float | None], said: Sequence[list[ComparedWord]]
) -> Row:
    done = {k: _compared(text) for k, text in enumerate(texts) if text is not None}
    runs = [candidate.runs[k] for k in done]
    audio_s = sum(run.audio_s for run in runs)
    wall_s, cpu_s = _sum(run.wall_s for run in runs), _sum(run.cpu_s for run in runs)
    first_s = [run.first_text_s for run in runs if run.first_text_s is not None]
    known = [value for value in others if value is not None]
    spoken = [(_compared(said[k]), text) for k, text in done.items()] if said else []
    n_spoken = sum(len(reference) for reference, _ in spoken)
    edits = Counter(edit.tag for pair in spoken for edit in _edits(*pair))
    figures = {
        "words": sum(map(len, done.values())) if done else None,
        "wer": edits.total() / n_spoken if n_spoken else None,
        "substitutions": edits["replace"] if spoken else None,
        "deletions": edits["delete"] if spoken else None,
        "insertions": edits["insert"] if spoken else None,
        # From the other candidates, on average.
        "disagreement": statistics.mean(known) if known else None,
        "audio_s": audio_s,
        # Seconds of computing for each second of audio, and the same of processor time.
        "real_time_factor": wall_s / audio_s if wall_s is not None and audio_s else None,
        "cpu_per_audio": cpu_s / audio_s if cpu_s is not None and audio_s else None,
        "first_text_s": statistics.mean(first_s) if first_s else None,
        "wall_s": wall_s,
        "load_s": candidate.load_s,
        "peak_rss_mb": candidate.peak_rss_mb,
    }
    return Row(
        candidate.name,
        next((run.error for run in candidate.runs if run.error), ""),
        ", ".join(dict.fromkeys(run.language for run in runs if run.language)),
        figures,
        {f"{name}_p{percent}_s": _percentile(runs, name, percent) for name, percent in _DELAYS},
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return sum(value for value in known if value is not None) if known and None not in known else None


def _percentile(runs: Sequence[Run], name: str, percent: int) -> float | None:
    delays_s = [delay_s for run in runs for delay_s in run.delays_s.get(name, ())]
    return float(np.percentile(delays_s, percent)) if delays_s else None
