"""What a system showed while it heard a recording, from moment to moment: all that the figures are computed from."""

from dataclasses import dataclass, field
from typing import Self

import msgspec

from streamer.errors import UsageError
from streamer.outside import one_line


@dataclass(frozen=True, slots=True)
class Revision:
    """What a system shows at one moment: the whole text so far, split at white space."""

    wall_s: float  # seconds since the first audio was sent, by a wall clock (compute-aware)
    audio_s: float | None  # audio position that the system had heard for it (compute-unaware); None: unknown
    words: tuple[str, ...]  # everything that is shown: finals and the partial, joined
    n_stable: int  # how many of its first words the system promises not to change, or by its construction does not


@dataclass(slots=True)
class Timeline:
    """One system over one recording."""

    system: str
    recording: str
    audio_s: float
    revisions: list[Revision]

    # (wall_s, "start"|"end", time in the audio) where the system tells where it hears speech; may be empty.
    speech: list[tuple[float, str, float]]

    # (start, end) of audio that was announced as lost, in seconds.
    gaps: list[tuple[float, float]]

    # Processor seconds of all the system's processes while the audio was played and finished, and their peak memory.
    cpu_s: float
    peak_rss_mb: float

    # Forward calls of the encoder and of the decoder network, whatever number of tokens each takes; None: unknown.
    encoder_calls: int | None = None
    decoder_calls: int | None = None

    # Tokens of all hypotheses, the settled words that they begin with included; None: unknown.
    decoder_tokens: int | None = None

    # Text of all finals with the corrections that came later (`revision` events); None: unknown.
    corrected: str | None = None

    # (start, end) in the audio of each segment that was made final, in seconds, where the system tells it.
    finals: list[tuple[float, float]] = field(default_factory=list)

    # How many of `decoder_tokens` are of words that were settled before: nothing was left to find there. None: unknown.
    settled_tokens: int | None = None

    def to_json(self) -> str:
        """Write it as one JSON object."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Raises UsageError where it is something else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"not a timeline ({type(error).__name__}: {one_line(error):.200}): expected the JSON that"
                " `tools/benchmark.py stream --timelines DIR` writes; play the recording again"
            ) from error
