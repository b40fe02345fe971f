"""What a session may choose about how its windows are decoded."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """A session's own choices; the daemon's settings stand where its client made none."""

    # Text that the model is shown before the first window.
    initial_prompt: str = ""

    # Phrases that are made likelier.
    hotwords: tuple[str, ...] = ()

    # Beams that are followed; 1 is greedy decoding.
    beam_size: int = 1
