"""One recording through several models or settings: their errors, or how far they disagree, word by word."""

import csv
import dataclasses
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import msgspec

from streamer.bench.text import Alignment, Errors, align, errors, runs
from streamer.errors import UsageError

# Scripts that are written without spaces (Thai, Lao, Burmese, Japanese, Chinese): each of their characters counts as a
# word, so that the error rate is that of characters.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_LETTERS = rf"[^\W{_NO_SPACES}]+"
_SIGN = rf"[^\w\s{_NO_SPACES}]"
# Signs in front are looked at from the first of them only, or a million of them would be looked at from each.
_WORD = re.compile(rf"(?:(?<!{_SIGN}){_SIGN}+)?([{_NO_SPACES}]|{_LETTERS}(?:['’]{_LETTERS})*){_SIGN}*")

# What is said of a candidate: a model, and behind each @ a setting.
_SETTING = re.compile(r"@(?=\w+\.\w+=)")

# Of what a candidate may have its own settings.
SECTIONS = ("model", "decoding", "speech", "stream")

REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model with some settings of its own."""

    name: str  # as it was asked for, such as `base.en@decoding.beam_size=5`
    settings: Mapping[str, str]  # settings by dotted name, as text; the model's name is one of them


def parse_candidates(texts: Sequence[str]) -> list[Candidate]:
    """Read lists of candidates: `MODEL[@SECTION.KEY=VALUE]...`, separated by commas; quoted where a comma is in it.

    Raises UsageError where one is empty, is there twice, or has a setting of something else than models and decoding.
    """
    candidates: list[Candidate] = []
    try:
        lists = list(csv.reader(texts, skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise UsageError(f"models are not a list ({error}): expected names with commas between them") from None
    for names in lists:
        for name in map(str.strip, names):
            model, *given = _SETTING.split(name)
            if not model:
                raise UsageError(f"{name!r:.80} names no model: expected MODEL, or MODEL@SECTION.KEY=VALUE")
            settings = dict(item.partition("=")[::2] for item in given)
            for setting in settings:
                if setting.partition(".")[0] not in SECTIONS or setting == "model.name":
                    raise UsageError(
                        f"{name!r:.80} sets {setting}: expected settings of {', '.join(SECTIONS)} behind the name of"
                        " the model"
                    )
            candidate = Candidate(name, {"model.name": model, **settings})
            if any(candidate.settings == other.settings for other in candidates):
                raise UsageError(f"{name!r:.80} is there twice: expected different models, or different settings")
            candidates.append(candidate)
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

    # Seconds to the first text, to the end, and of all processor cores together, without loading the model.
    first_text_s: float | None = None
    wall_s: float | None = None
    cpu_s: float | None = None

    # Why there is no text; empty where there is one.
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Runs:
    """What a candidate made of all recordings, in their order."""

    name: str
    runs: list[Run]
    load_s: float | None = None

    # Most memory that the process had while it transcribed, which had this model alone, all of the program included.
    peak_rss_mb: float | None = None

    # Delays of live captions by their names in `Figures.summary()`.
    delays: Mapping[str, float | None] = field(default_factory=dict)


class Word(NamedTuple):
    """A word as it stands in a text, with the signs at it; and as it is compared."""

    shown: str
    compared: str
    start_s: float | None = None  # where its segment begins, in seconds; only of the first word of one


# A word of each text, None where it has none there.
Column = tuple[Word | None, ...]


@dataclass(frozen=True, slots=True)
class Aligned:
    """The texts of one recording beside each other."""

    recording: str

    # Whose texts they are: the reference, where there is one, and the candidates that have one.
    labels: list[str]
    columns: list[Column]

    @property
    def places(self) -> list[list[int]]:
        """Where the texts differ: the columns of each place."""
        differ = [len({word and word.compared for word in column}) > 1 for column in self.columns]
        return runs([k for k, differs in enumerate(differ) if differs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of a candidate over all recordings; None: not known."""

    name: str
    error: str
    language: str
    words: int | None
    wer: float | None
    substitutions: int | None
    deletions: int | None
    insertions: int | None

    # From the other candidates, on average: see `Comparison.disagreement`.
    disagreement: float | None
    audio_s: float

    # Seconds of computing for each second of audio: below 1 is faster than speech. Then the same of processor time.
    real_time_factor: float | None
    cpu_per_audio: float | None

    # Mean over the recordings, and the sum.
    first_text_s: float | None
    wall_s: float | None
    load_s: float | None
    peak_rss_mb: float | None
    delays: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is told of candidates."""

    rows: list[Row]

    # Of each two candidates the edits from one text to the other, for each word of the longer: 0 to 1.
    disagreement: list[list[float | None]]
    recordings: list[Aligned]

    @property
    def failed(self) -> bool:
        return any(row.error for row in self.rows)

    def to_json(self) -> str:
        """Return everything as one line of JSON; a column of the texts is a list of words, null where one has none."""
        told = {
            "models": [dataclasses.asdict(row) for row in self.rows],
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
        return msgspec.json.encode(told).decode() + "\n"


def compare(recordings: Sequence[str], references: Sequence[str], candidates: Sequence[Runs]) -> Comparison:
    """Compare what candidates made of recordings, of which `references` are the texts where they are known.

    The error rate is against the reference. Words are aligned with it too, else with the first candidate's.
    """
    texts = [[words(run.segments) for run in candidate.runs] for candidate in candidates]
    said = [words([(0.0, text)]) for text in references]
    n = len(candidates)
    disagreement: list[list[float | None]] = [[None] * n for _ in range(n)]
    for a, b in combinations(range(n), 2):
        disagreement[a][b] = disagreement[b][a] = _disagreement(
            [
                (texts[a][k], texts[b][k])
                for k in range(len(recordings))
                if not candidates[a].runs[k].error and not candidates[b].runs[k].error
            ]
        )
    rows = [
        _row(candidate, spoken, said, others)
        for candidate, spoken, others in zip(candidates, texts, disagreement, strict=True)
    ]
    aligned = []
    for k, recording in enumerate(recordings):
        present = [i for i in range(n) if not candidates[i].runs[k].error]
        labels = [*([REFERENCE] if said else []), *(candidates[i].name for i in present)]
        aligned.append(Aligned(recording, labels, columns([*said[k : k + 1], *(texts[i][k] for i in present)])))
    return Comparison(rows, disagreement, aligned)


def check_reference(text: str, name: str) -> str:
    """Return the text of a recording. Raises UsageError where it has no words."""
    if not words([(0.0, text)]):
        raise UsageError(f"{name} has no words: expected what is said in the recording, as plain text")
    return text


def words(segments: Sequence[tuple[float, str]]) -> list[Word]:
    """Split texts into words that compare: without case and punctuation, of `twenty-one` two."""
    found: list[Word] = []
    for start_s, text in segments:
        for k, match in enumerate(_WORD.finditer(text)):
            found.append(Word(match[0], match[1].casefold().replace("’", "'"), start_s if k == 0 else None))
    return found


def columns(texts: Sequence[Sequence[Word]]) -> list[Column]:
    """Put several texts beside each other. Each is aligned with the first; what the first lacks, with each other."""
    if not texts:
        return []
    first, *others = texts
    n_rows = len(texts)
    standing: list[list[Word | None]] = [[word, *[None] * len(others)] for word in first]
    # Columns in front of each word of the first text, and behind the last.
    between: list[list[list[Word | None]]] = [[] for _ in range(len(first) + 1)]
    for row, text in enumerate(others, 1):
        more: list[Word] = []
        for i, j in _in_order(_aligned(first, text), len(first), len(text)):
            if i is None:
                assert j is not None
                more.append(text[j])
                continue
            between[i] = _put_in(between[i], more, row, n_rows)
            more = []
            standing[i][row] = None if j is None else text[j]
        between[-1] = _put_in(between[-1], more, row, n_rows)
    joined = [column for i, word in enumerate(standing) for column in (*between[i], word)]
    return [tuple(column) for column in (*joined, *between[-1])]


def _put_in(present: list[list[Word | None]], more: Sequence[Word], row: int, n_rows: int) -> list[list[Word | None]]:
    """Put words of a text into columns that others have there."""
    if not more:
        return present
    there = [next(word for word in column if word) for column in present]
    merged = []
    empty: list[Word | None] = [None] * n_rows
    for i, j in _in_order(_aligned(there, more), len(there), len(more)):
        column = empty.copy() if i is None else present[i]
        column[row] = None if j is None else more[j]
        merged.append(column)
    return merged


def _aligned(a: Sequence[Word], b: Sequence[Word]) -> Alignment:
    return align([word.compared for word in a], [word.compared for word in b])


def _in_order(alignment: Alignment, n_reference: int, n_text: int) -> Iterator[tuple[int | None, int | None]]:
    """Yield each index of both once, in order: in pairs, or alone."""
    i = j = 0
    for pair in (*alignment.pairs, (n_reference, n_text)):
        yield from ((k, None) for k in range(i, pair[0]))
        yield from ((None, k) for k in range(j, pair[1]))
        if pair[0] < n_reference:
            yield pair
        i, j = pair[0] + 1, pair[1] + 1


def _errors(a: Sequence[Word], b: Sequence[Word]) -> Errors:
    return errors([word.compared for word in a], [word.compared for word in b])


def _disagreement(pairs: Sequence[tuple[list[Word], list[Word]]]) -> float | None:
    n_words = sum(max(len(a), len(b)) for a, b in pairs)
    if not n_words:
        return None
    found = sum((_errors(a, b) for a, b in pairs), Errors())
    return (found.substitutions + found.deletions + found.insertions) / n_words


def _row(candidate: Runs, texts: list[list[Word]], said: list[list[Word]], others: Sequence[float | None]) -> Row:
    done = [(run, text) for run, text in zip(candidate.runs, texts, strict=True) if not run.error]
    heard = [run for run, _ in done]
    audio_s = sum(run.audio_s for run in heard)
    wall_s, cpu_s = _sum(run.wall_s for run in heard), _sum(run.cpu_s for run in heard)
    first_s = [run.first_text_s for run in heard if run.first_text_s is not None]
    known = [value for value in others if value is not None]
    spoken = [(k, text) for k, text in enumerate(texts) if said and not candidate.runs[k].error]
    wrong = sum((_errors(said[k], text) for k, text in spoken), Errors()) if spoken else None
    return Row(
        name=candidate.name,
        error=next((run.error for run in candidate.runs if run.error), ""),
        language=", ".join(dict.fromkeys(run.language for run in heard if run.language)),
        words=sum(len(text) for _, text in done) if done else None,
        wer=wrong.rate if wrong else None,
        substitutions=wrong.substitutions if wrong else None,
        deletions=wrong.deletions if wrong else None,
        insertions=wrong.insertions if wrong else None,
        disagreement=statistics.mean(known) if known else None,
        audio_s=audio_s,
        real_time_factor=wall_s / audio_s if wall_s is not None and audio_s else None,
        cpu_per_audio=cpu_s / audio_s if cpu_s is not None and audio_s else None,
        first_text_s=statistics.mean(first_s) if first_s else None,
        wall_s=wall_s,
        load_s=candidate.load_s,
        peak_rss_mb=candidate.peak_rss_mb,
        delays=candidate.delays,
    )


def _sum(values: Iterator[float | None]) -> float | None:
    known = list(values)
    return sum(value for value in known if value is not None) if known and None not in known else None
