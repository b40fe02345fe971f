"""A decoder that says a script, in nano.en's vocabulary."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from streamer.arrays import FloatArray
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.window import DecodedWindow, decode_window
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
SPECIAL = TOKENIZER.special
N_VOCAB = TOKENIZER.n_vocab
BEGIN = SPECIAL.timestamp_begin
EOT = SPECIAL.end_of_text

CONFIG = GenerationConfig(
    suppress_tokens=(),
    begin_suppress_tokens=(EOT,),
    max_initial_timestamp_index=50,
    alignment_heads=((0, 0),),
    multilingual=True,
)
LIVE = DecodeOptions(generation=CONFIG, live=True)
ENGLISH = WindowTask(language="en")


class ScriptedDecoder:
    """A decoder that wants to say a script, whatever it is fed; after it, the end of the text."""

    def __init__(self, script: Sequence[int], capacity: int = 448) -> None:
        self.script = list(script)
        self.capacity = capacity
        self.n_windows = 1
        # All tokens since the start of the sequence, and how many came in each call.
        self.fed: list[int] = []
        self.calls: list[int] = []

    @property
    def n_fed(self) -> int:
        return len(self.fed)

    def begin(self) -> None:
        self.fed, self.calls = [], []

    def rewind(self, n_fed: int) -> None:
        del self.fed[n_fed:]

    def room(self, *_: object) -> NoReturn:
        raise AssertionError("not made for beams")

    extend = drop = room

    def feed(self, tokens: Sequence[int], n_silent: int = 0) -> tuple[FloatArray, FloatArray]:
        assert len(self.fed) + len(tokens) <= self.capacity
        self.fed += tokens
        self.calls.append(len(tokens))
        n_said = sum(self.calls[1:])
        logits = np.zeros((len(tokens), N_VOCAB), dtype=np.float32)
        logits[-1, self.script[n_said] if n_said < len(self.script) else EOT] = 20.0
        return logits[np.newaxis, n_silent:], np.ones((1, 1, len(tokens) - n_silent, 1500), dtype=np.float32)


def say(
    script: Sequence[int], *, options: DecodeOptions = LIVE, **task: object
) -> tuple[DecodedWindow, ScriptedDecoder]:
    """Decode a window in English of somebody who says the script; `task` are fields of WindowTask."""
    decoder = ScriptedDecoder(script)
    return decode_window(decoder, TOKENIZER, options, WindowTask(language="en", **task)), decoder  # type: ignore[arg-type]
