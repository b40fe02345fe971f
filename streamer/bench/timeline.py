"""What a system showed while it heard a recording, from moment to moment: all that the figures are computed from."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Self

from streamer.errors import UsageError


@dataclass(frozen=True, slots=True)
class Revision:
    """What a system shows at one moment: the whole text so far, split at white space."""

    # Seconds since the first audio was sent, by a wall clock (compute-aware).
    wall_s: float

    # Audio position that the system had heard for it (compute-unaware); None: unknown.
    audio_s: float | None

    # Everything that is shown: finals and the partial, joined.
    words: tuple[str, ...]

    # How many of its first words the system promises not to change, or by its construction does not.
    n_stable: int


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
    encoder_calls: int | None
    decoder_calls: int | None

    # Tokens of all hypotheses, the settled words that they begin with included; None: unknown.
    decoder_tokens: int | None

    # (start, end) in the audio of each segment that was made final, in seconds, where the system tells it.
    finals: list[tuple[float, float]] = field(default_factory=list)

    # How many of `decoder_tokens` are of words that were settled before: nothing was left to find there. None: unknown.
    settled_tokens: int | None = None

    def to_json(self) -> str:
        """Write it as one JSON object."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            UsageError: it is something else.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            revisions = [
                Revision(
                    wall_s=float(r["wall_s"]),
                    audio_s=None if r["audio_s"] is None else float(r["audio_s"]),
                    words=tuple(map(str, r["words"])),
                    n_stable=int(r["n_stable"]),
                )
                for r in data["revisions"]
            ]
            speech = [(float(wall_s), str(state), float(time_s)) for wall_s, state, time_s in data["speech"]]
            gaps = [(float(start), float(end)) for start, end in data["gaps"]]
            finals = [(float(start), float(end)) for start, end in data.get("finals", ())]
            return cls(**{**data, "revisions": revisions, "speech": speech, "gaps": gaps, "finals": finals})
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"not a timeline ({type(error).__name__}: {error}): expected the JSON that `tools/benchmark.py stream"
                " --timelines DIR` writes; play the recording again"
            ) from error
