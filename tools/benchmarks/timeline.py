"""What a system displayed while it received a recording, from moment to moment: the source of all figures."""

from dataclasses import dataclass, field
from typing import Self

import msgspec

from streamer.errors import UsageError
from streamer.outside import one_line


@dataclass(frozen=True, slots=True)
class Revision:
    """What a system displays at one moment: the whole text so far, split at white space."""

    wall_s: float  # seconds since the first audio was sent
    words: tuple[str, ...]  # all finals and the current partial
    n_stable: int  # the system promises not to change this many of the first words


@dataclass(slots=True)
class Timeline:
    """One system over one recording."""

    system: str
    recording: str
    audio_s: float
    revisions: list[Revision]

    # Processor seconds of all the system's processes while the audio was played and finished, and their peak memory.
    cpu_s: float
    peak_rss_mb: float

    # Joules that the machine's processors used in that time; None if it reports none.
    energy_j: float | None = None

    # Calls of the encoder and the decoder network; None if the system does not report them.
    encoder_calls: int | None = None
    decoder_calls: int | None = None

    # Text of all finals with later corrections (`revision` events); None if the system makes none.
    corrected: str | None = None

    # (start, end) of audio that was announced as lost, in seconds.
    gaps: list[tuple[float, float]] = field(default_factory=list)

    # (start, end) of each word of the finals, in seconds; None if they are unknown.
    words: list[tuple[float, float]] | None = None

    def to_json(self) -> str:
        """Write it as one JSON object."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Raises UsageError if it is something else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"not a timeline ({type(error).__name__}: {one_line(error):.200}): expected the JSON that"
                " `tools/benchmark.py stream --timelines DIR` writes; play the recording again"
            ) from error
