"""What was said before a window, as its prompt.

Source: openai-whisper's `transcribe.py`.
"""

from collections.abc import Iterable, Sequence

# Above this temperature a text was drawn too wildly to be continued.
MAX_TEMPERATURE = 0.5


class History:
    """The tokens of all windows so far."""

    def __init__(self, initial: Sequence[int], n_text_ctx: int, *, carried: bool, conditioned: bool) -> None:
        """Start with those of the initial prompt.

        carried : whether the initial prompt is in each prompt
        conditioned : whether the text of the window before is in a prompt
        """
        self._carried = carried
        self._conditioned = conditioned
        self._n_initial = len(initial)
        self._tokens = list(initial)
        # Number of the first token that may be in a prompt.
        self._begin = 0
        # Tokens in a prompt behind an initial one.
        self._room = n_text_ctx // 2 - 1 - len(initial)

    def prompt(self) -> tuple[int, ...]:
        """Return the tokens before the next window; the window keeps the newest that it has room for."""
        if not self._carried:
            return tuple(self._tokens[self._begin :])
        # An initial prompt that leaves no room is no reason to forget everything, says openai-whisper.
        newest = self._tokens[max(self._n_initial, self._begin) :][-self._room :]
        return (*self._tokens[: self._n_initial], *newest)

    def add(self, tokens: Iterable[int], temperature: float) -> None:
        """Add what was said in a window that was decoded at a temperature."""
        self._tokens.extend(tokens)
        if not self._conditioned or temperature > MAX_TEMPERATURE:
            self._begin = len(self._tokens)
