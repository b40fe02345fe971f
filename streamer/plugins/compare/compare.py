"""Texts of several models beside each other: their errors, or how far they disagree, word by word."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import msgspec
from rapidfuzz.distance import Levenshtein

from streamer.commands.figures import FIGURES, Figure, Figures, figures, languages
from streamer.commands.words import ComparedWord, compared, words
from streamer.plugins.compare.runs import Runs

REFERENCE = "reference"

ROWS = (
    *FIGURES,
    Figure("First text, s", "first_text_s", 2),
    Figure("Differs from the others, %", "disagreement", 1, 100),
)

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

    # By the names in `ROWS`, and the seconds of audio.
    figures: Figures


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidates beside each other."""

    rows: list[Row]

    # Of each two candidates the edits from one text to the other, for each word of the longer: 0 to 1.
    disagreement: list[list[float | None]]
    recordings: list[Aligned]

    def to_json(self) -> str:
        """Return everything as one line of JSON; a column of the texts is a list of words, null for a missing one."""
        everything = {
            "models": [
                {"name": row.name, "error": row.error, "language": row.language, **row.figures} for row in self.rows
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


def compare(recordings: Sequence[str], references: Sequence[str], candidates: Mapping[str, Runs]) -> Comparison:
    """Compare the texts of candidates over recordings.

    The error rate is against the reference. Words are aligned with it too, else with the first candidate's.

    references : the text of each recording, or none
    """
    texts = [[None if run is None else words(run.segments) for run in each.recordings] for each in candidates.values()]
    said = [words([(0.0, text)]) for text in references]
    pairs = {(i, j): _disagreement(texts[i], texts[j]) for i, j in combinations(range(len(texts)), 2)}
    disagreement = [[pairs.get((min(i, j), max(i, j))) for j in range(len(texts))] for i in range(len(texts))]
    rows = [_row(*each, edits, references) for each, edits in zip(candidates.items(), disagreement, strict=True)]
    aligned = []
    for k, recording in enumerate(recordings):
        shown = [(REFERENCE, said[k])] if said else []
        beside = [(name, text[k]) for name, text in zip(candidates, texts, strict=True)]
        shown += [(name, text) for name, text in beside if text is not None]
        aligned.append(Aligned(recording, [label for label, _ in shown], columns([text for _, text in shown])))
    return Comparison(rows, disagreement, aligned)


def columns(texts: Sequence[Sequence[ComparedWord]]) -> list[Column]:
    """Put several texts beside each other: the second is aligned with the first, each further one with those before.

    A column in which the first text has no word is compared by the word of the first text that has one there.
    """
    joined: list[Column] = []
    for row, text in enumerate(texts):
        present = [next(word for word in column if word) for column in joined]
        merged: list[Column] = []
        for edit in Levenshtein.opcodes(compared(present), compared(text)):
            before, more = joined[edit.src_start : edit.src_end], text[edit.dest_start : edit.dest_end]
            if edit.tag == "insert":
                merged += [(*[None] * row, word) for word in more]
            elif edit.tag == "delete":
                merged += [(*column, None) for column in before]
            else:
                merged += [(*column, word) for column, word in zip(before, more, strict=True)]
        joined = merged
    return joined


def _disagreement(a: Sequence[Text], b: Sequence[Text]) -> float | None:
    pairs = [(compared(x), compared(y)) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    n_words = sum(max(len(x), len(y)) for x, y in pairs)
    return sum(Levenshtein.distance(x, y) for x, y in pairs) / n_words if n_words else None


def _row(name: str, found: Runs, others: Sequence[float | None], references: Sequence[str]) -> Row:
    done = [k for k, run in enumerate(found.recordings) if run is not None]
    runs = [run for run in found.recordings if run is not None]
    known = [value for value in others if value is not None]
    measured = {
        "load_s": found.load_s,
        "peak_rss_mb": found.peak_rss_mb,
        "first_text_s": found.first_text_s,
        # From the other candidates, on average.
        "disagreement": statistics.mean(known) if known else None,
    }
    empty = dict.fromkeys(row.name for row in ROWS)
    of_runs = figures(runs, [references[k] for k in done] if references else []) if runs else {}
    return Row(name, found.error, languages(runs), {**empty, **of_runs, **measured})
