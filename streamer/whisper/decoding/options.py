"""What each session may choose for itself about how its windows are decoded."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """A session's own choice. Hashable: what is made of it is kept for the windows that follow."""

    # Text that the model sees before the first window, as if it had been said.
    initial_prompt: str = ""

    # Words and phrases that are made likelier while they are being spelled.
    hotwords: tuple[str, ...] = ()

    # Beams that are followed at temperature 0; 1: the likeliest token is taken.
    beam_size: int = 1
