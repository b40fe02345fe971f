"""Words that stand twice in a transcript and were said once, and whether the model or the stream has doubled them.

Whisper stutters now and then. A stretch that it doubles as well where it hears the same audio in one piece is its own;
any other has come of how the audio was heard: of what settled too early, or of a cut in a wrong place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from whisper.normalizers import EnglishTextNormalizer

from streamer.audio.constants import N_SAMPLES, SAMPLE_RATE
from streamer.engine.settings import SessionSettings
from streamer.events import Event, Final, Word
from tools.benchmarks.corpus import Recording
from tools.benchmarks.figures import Figures, pool
from tools.benchmarks.measure import measure
from tools.benchmarks.simulate import Simulator
from tools.benchmarks.text import MAX_REPEATED_WORDS, plain

# Other figures that are shown: by heading the name, what it is multiplied with, and its digits. Delays are by the audio
# that had been heard, since a clock says nothing of audio that comes faster than it was spoken.
FIGURES = {
    "WER, %": ("wer_streamed", 100, 2),
    "stable p50, s": ("stable_unaware_p50_s", 1, 2),
    "stable p90, s": ("stable_unaware_p90_s", 1, 2),
    "taken back for each word": ("normalised_erasure", 1, 3),
    "broken promises": ("broken_promises", 1, 0),
}

# Fewer words are said twice every now and then: "and the", "of it".
MIN_DOUBLED_WORDS = 3


@dataclass(frozen=True, slots=True)
class Doubled:
    """A stretch of words that stands twice in a transcript, and not so in the reference."""

    recording: str
    pace: float

    # Of the words from the first time on to the end of the second.
    start_s: float
    end_s: float
    text: str

    # Whether a final ends between the two.
    at_cut: bool

    # Whether the model doubles something there as well where it hears the audio of these finals in one piece.
    by_model: bool


def doubled_stretches(text: Sequence[str], reference: Sequence[str]) -> list[tuple[int, int]]:
    """Find the stretches of words that stand twice, the second time within MAX_REPEATED_WORDS of the first.

    Both are words in the form in which they are compared. What the reference has twice about that near (words between
    may have been misheard) was not doubled.

    Returns for each the index of its first word, and that behind the last word of its repetition; they do not overlap.
    """
    n_least = MIN_DOUBLED_WORDS
    said_twice = {tuple(reference[i : i + n_least]) for i, _ in _repeated(reference, 2 * MAX_REPEATED_WORDS)}
    found: list[tuple[int, int]] = []
    for i, j in _repeated(text, MAX_REPEATED_WORDS):
        if tuple(text[i : i + n_least]) in said_twice or (found and i < found[-1][1] - n_least):
            continue
        n = n_least
        while i + n < j and j + n < len(text) and text[i + n] == text[j + n]:
            n += 1
        found.append((i, j + n))
    return found


def _repeated(words: Sequence[str], within: int) -> Iterable[tuple[int, int]]:
    """Yield where MIN_DOUBLED_WORDS words begin that stand once more within some words, and where they do so first."""
    n = MIN_DOUBLED_WORDS
    for i in range(len(words)):
        for j in range(i + n, min(i + within, len(words) - n) + 1):
            if words[i : i + n] == words[j : j + n]:
                yield i, j
                break


def find_doubled(
    simulator: Simulator, recording: Recording, settings: SessionSettings, pace: float
) -> tuple[Figures, list[Doubled]]:
    """Play a recording at a pace; return the figures, and what was doubled."""
    finals: list[Final] = []

    def keep(event: Event) -> None:
        if isinstance(event, Final):
            finals.append(event)

    timeline = simulator.play(recording.name, recording.samples, settings, pace=pace, on_event=keep)
    normalise, wait_s = EnglishTextNormalizer(), settings.gate.min_silence_s
    figures = measure(timeline, recording.text, recording.words, normalise, wait_s=wait_s)
    # Each word with the number of its final, less what compares as nothing.
    words = [(word, i) for i, final in enumerate(finals) for word in final.words if plain(word.word)]
    said = plain(recording.text).split()
    found = []
    for first, behind in doubled_stretches([plain(word.word) for word, _ in words], said):
        stretch = words[first:behind]
        begin, end = finals[stretch[0][1]], finals[stretch[-1][1]]
        piece = _piece(recording.samples, begin.start, end.end)
        by_model = doubled_stretches(plain(simulator.transcribe(piece, settings)).split(), said)
        found.append(
            Doubled(
                recording.name,
                pace,
                stretch[0][0].start,
                stretch[-1][0].end,
                _text(word for word, _ in stretch),
                begin is not end,
                bool(by_model),
            )
        )
    return figures, found


def _piece(samples: NDArray[np.float32], start_s: float, end_s: float) -> NDArray[np.float32]:
    """Return audio in seconds, the last of it where the model cannot hear it all."""
    end = round(end_s * SAMPLE_RATE)
    return samples[max(0, round(start_s * SAMPLE_RATE), end - N_SAMPLES) : end]


def _text(words: Iterable[Word]) -> str:
    return "".join(word.word for word in words).strip()


def measure_doubling(
    simulator: Simulator,
    recordings: Sequence[tuple[str, Recording]],
    settings: SessionSettings,
    paces: Sequence[float],
    console: Console,
) -> dict[str, Any]:
    """Play recordings, each with the name of its corpus, at each pace; print what is doubled, beside what else counts.

    Returns each stretch that was doubled, and the figures of each pace.
    """
    table = Table(title="stretches that are doubled", title_justify="left")
    for heading in ("pace", "recordings", "joins", "by the stream", "by the model", *FIGURES):
        table.add_column(heading, justify="right")
    doubled: list[dict[str, object]] = []
    summaries: dict[str, object] = {}
    for pace in paces:
        figures: list[Figures] = []
        n_by_model = n_by_stream = 0
        for corpus, recording in recordings:
            played, found = find_doubled(simulator, recording, settings, pace)
            figures.append(played)
            for one in found:
                n_by_model += one.by_model
                n_by_stream += not one.by_model
                where = "at a cut" if one.at_cut else "within a segment"
                who = "the model" if one.by_model else "the stream"
                console.print(
                    f"pace {pace:g}: {corpus}/{one.recording} {one.start_s:.1f}-{one.end_s:.1f} s, {where}, by {who}:"
                    f" {one.text}",
                    markup=False,
                    highlight=False,
                )
                doubled.append({"corpus": corpus, **asdict(one)})
        summary = pool(figures).summary()
        values = [summary[figure] for figure, _, _ in FIGURES.values()]
        table.add_row(
            f"{pace:g}",
            str(len(figures)),
            str(summary["joins"] or 0),
            str(n_by_stream),
            str(n_by_model),
            *(
                "-" if value is None else f"{value * scale:.{digits}f}"
                for value, (_, scale, digits) in zip(values, FIGURES.values(), strict=True)
            ),
        )
        summaries[f"{pace:g}"] = {"doubled_by_stream": n_by_stream, "doubled_by_model": n_by_model, **summary}
    console.print(table)
    return {"doubled": doubled, "paces": summaries}
