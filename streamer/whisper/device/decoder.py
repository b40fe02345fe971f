"""The decoder's forward pass with its key-value cache, over the texts of one window or of several.

The cache has slots for the tokens of each window, and a mask says which of them a token sees. So a call takes the next
tokens of one sequence, or the next token of several that share the slots of what they have in common (beams).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from streamer.arrays import BoolArray, FloatArray
from streamer.constants import TOKENS_PER_SECOND
from streamer.whisper.device.stage import Stage, as_type, to_float32
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.dims import MAX_BEAMS, ModelDimensions
from streamer.whisper.graphs.ports import (
    EMBEDDED,
    FEW_TOKENS,
    HIDDEN,
    LOOKED_UP,
    MOST_TOKENS,
    SLOTS_STEP,
    TOKENS_STEP,
    beam_slots,
    key_values,
)

IntArray = NDArray[np.int64]


class Decoder:
    """Texts that grow token by token, each of one window; all have the same length. One thread at a time may use it."""

    def __init__(
        self,
        stages: Iterable[Stage],
        dims: ModelDimensions,
        lookup: Stage | None = None,
        projection: Stage | None = None,
    ) -> None:
        """Take the compiled graphs: one for calls of any size, or one for each size.

        lookup : what makes vectors of tokens, if the graphs take vectors
        projection : what makes logits of what the graphs give, if they give no logits
        """
        self._lookup = lookup
        self._projection = projection
        # Tokens of each sequence.
        self.n_fed = 0
        self._dims = dims
        self._stages = sorted(stages, key=lambda stage: (stage.sizes.n_slots or 0, stage.sizes.n_tokens or 0))
        self._any_size = self._stages[0].sizes.n_tokens is None
        # Ascending; of a graph for any size the least.
        self._slot_sizes = sorted({stage.sizes.n_slots or SLOTS_STEP for stage in self._stages})
        self._names = [f"past_{name}" for name in key_values(dims.n_text_layer, "decoder")]
        self._windows: list[EncodedWindow] = []
        self._cross: dict[str, ov.Tensor] = {}
        # Keys and values of the text, by name, each of shape (n_windows, n_head, P, head).
        self._cache: dict[str, ov.Tensor] = {}
        self._n_slots = 0  # P
        # Which slots each sequence sees, shape (n_windows, n_sequences, P).
        self._visible: BoolArray = np.zeros((0, 1, 0), dtype=np.bool_)

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can hold."""
        return self._dims.n_text_ctx

    @property
    def block_tokens(self) -> int:
        """Tokens of a sequence that one call takes, with as many slots as there are."""
        if self._any_size:
            return MOST_TOKENS
        return max(stage.sizes.n_tokens or 1 for stage in self._stages if stage.sizes.n_slots == self._n_slots)

    @property
    def max_beams(self) -> int:
        """Sequences of a window that there can be."""
        if self._any_size:
            return MAX_BEAMS
        most = self._slot_sizes[-1]
        return max(n for n in range(1, MAX_BEAMS + 1) if n == 1 or beam_slots(self._dims, n) <= most)

    @property
    def takes_batches(self) -> bool:
        """Whether it decodes several windows at once."""
        return self._any_size

    @property
    def n_windows(self) -> int:
        """Windows whose texts grow."""
        return len(self._windows)

    @property
    def n_calls(self) -> int:
        """Runs of the graphs so far, however many tokens each took."""
        return sum(stage.n_calls for stage in self._stages)

    def room(self, n_beams: int) -> int:
        """Return how many more tokens each of n_beams sequences of a window can get."""
        return (beam_slots(self._dims, n_beams) - self.n_fed) // n_beams

    def use(self, *windows: EncodedWindow) -> None:
        """Decode these windows from now on, which are in neighbouring rows of the same buffers, in any order."""
        self._windows = list(windows)
        # The graphs read rows in their order; `drop` has exchanged those of an earlier text.
        for window, row in zip(windows, sorted(window.row for window in windows), strict=True):
            if window.row != row:
                _exchange_rows(window, next(other for other in windows if other.row == row))
        self._see_windows()
        self.begin()

    def begin(self) -> None:
        """Forget all text."""
        self._cache = {}
        self._resize(self._slot_sizes[0])
        self.rewind(0)

    def rewind(self, n_fed: int) -> None:
        """Go on with a single sequence: the first tokens that all of them have in common."""
        self.n_fed = n_fed
        self._visible = np.zeros((len(self._windows), 1, self._n_slots), dtype=np.bool_)
        self._visible[:, :, :n_fed] = True

    def feed(self, tokens: Sequence[int], n_silent: int = 0) -> tuple[FloatArray, FloatArray]:
        """Append the same tokens to the sequence of each window.

        Returns logits, shape (n_windows, n, n_vocab), and the alignment heads' attention, shape (n_windows, n_heads, n,
        n_audio_ctx), of all but the first `n_silent` tokens, as copies in float32. Raises InferenceError if the device
        fails.
        """
        assert 0 < len(tokens) <= self.capacity - self.n_fed, "the sequence does not fit the context"
        assert self._visible.shape[1] == 1, "several sequences cannot be fed a block"
        # Of a long text they are large: computed where they stay.
        logits = np.empty((len(self._windows), max(0, len(tokens) - n_silent), self._dims.n_vocab), np.float32)
        attention = []
        for first in range(0, len(tokens), self.block_tokens):
            block = np.array(tokens[first : first + self.block_tokens], dtype=np.int64)
            n = len(block)
            slots = np.arange(self.n_fed, self.n_fed + n)
            seen = np.repeat(self._visible, n, axis=1)
            stage = self._compute(np.tile(block, (len(self._windows), 1)), slots, seen, causal=True)
            wanted = slice(max(0, n_silent - first), n)
            if wanted.start < n:
                begin = first + wanted.start - n_silent
                logits[:, begin : begin + n - wanted.start] = self._logits(stage, wanted)
                attention.append(to_float32(stage.output("cross_attention"))[:, :, wanted])
            self._keep(stage, np.tile(slots, (len(self._windows), 1)))
            self.rewind(self.n_fed + n)
        return logits, np.concatenate(attention, axis=2)

    def extend(self, parents: IntArray, tokens: IntArray) -> FloatArray:
        """Continue sequences by a token each; those that none continues are forgotten.

        parents : for each token the number of the sequence that it continues, in the order of the call before, shape
            (n_windows, n)
        tokens : of the same shape

        Returns logits, shape (n_windows, n, n_vocab), as a copy in float32. Raises InferenceError if the device fails.
        """
        n = tokens.shape[1]
        seen = np.take_along_axis(self._visible, parents[:, :, np.newaxis], axis=1)
        # Slots that there may not be yet; a slot that no sequence sees is free.
        seen = np.pad(seen, ((0, 0), (0, 0), (0, n)))
        slots = np.argsort(seen.any(axis=1), axis=1, kind="stable")[:, :n]
        positions = np.full(n, self.n_fed)
        stage = self._compute(tokens, positions, seen[:, :, : self._n_slots], causal=False)
        logits = self._logits(stage, slice(0, n))
        self._keep(stage, slots)
        n_more = max(0, self._n_slots - seen.shape[2])
        self._visible = np.pad(seen, ((0, 0), (0, 0), (0, n_more)))[:, :, : self._n_slots]
        np.put_along_axis(self._visible, slots[:, :, np.newaxis], True, axis=2)
        self.n_fed += 1
        return logits

    def drop(self, number: int) -> None:
        """Forget the window of this number; the last one takes its number, and exchanges rows with it."""
        last = self._windows.pop()
        if number < len(self._windows):
            _exchange_rows(self._windows[number], last)
            for array in (*(tensor.data for tensor in self._cache.values()), self._visible):
                array[number] = array[len(self._windows)]
            self._windows[number] = last
        n_left = len(self._windows)
        self._visible = self._visible[:n_left]
        if self._windows:
            self._cache = {name: _first_rows(tensor, n_left) for name, tensor in self._cache.items()}
            self._see_windows()

    def pollute_hidden_slots(self) -> None:
        """Fill every slot that is not in use with noise, for the check that the mask hides them."""
        noise = np.random.default_rng(0)
        for tensor in self._cache.values():
            slots = tensor.data
            # The same in every slot: attention that averages many of them would average white noise away.
            pattern = 4.0 * noise.standard_normal((1, slots.shape[1], 1, slots.shape[3]), dtype=np.float32)
            slots[:, :, self.n_fed :] = as_type(pattern, tensor.element_type)

    def _see_windows(self) -> None:
        """Let the graphs see the keys and values of the present windows."""
        first = self._windows[0]
        n_windows = len(self._windows)
        row = min(window.row for window in self._windows)
        found = first.buffers.tensors(row, n_windows, first.n_audio_ctx)
        self._cross = {f"past_{name}": tensor for name, tensor in found.items()}

    def _resize(self, n_slots: int) -> None:
        """Have a cache of this many slots, which keeps what was in it."""
        before, self._cache, n_before = self._cache, {}, self._n_slots
        self._n_slots = n_slots
        dims, n_windows = self._dims, len(self._windows)
        shape = ov.Shape([n_windows, dims.n_text_head, n_slots, dims.text_head_size])
        for name in self._names:
            self._cache[name] = ov.Tensor(self._stages[0].port(name).element_type, shape)
            slots = self._cache[name].data
            # A hidden slot still meets the arithmetic: a NaN in it would spread.
            slots[...] = 0
            if before:
                slots[:, :, :n_before] = before[name].data

    def _compute(self, tokens: IntArray, positions: IntArray, seen: BoolArray, *, causal: bool) -> Stage:
        """Run the smallest graph that takes these tokens, and return it.

        tokens : shape = (n_windows, n)
        positions : in their sequences, shape (n,)
        seen : slots that each token sees, shape (n_windows, n, P)
        causal : whether each token also sees those of the call before it, and not itself alone
        """
        n_windows, n = tokens.shape
        stage = self._stage_for(n)
        # Tokens behind the last are padding: they only have to be valid.
        size = stage.sizes.n_tokens or _rounded(n)
        ids = np.zeros((n_windows, size), dtype=np.int64)
        ids[:, :n] = tokens
        places = np.zeros((n_windows, size), dtype=np.int64)
        places[:, :n] = positions
        mask = np.zeros((n_windows, size, self._n_slots + size), dtype=np.float32)
        mask[:, :n, : self._n_slots][seen] = 1
        own = np.tri(size, dtype=np.bool_) if causal else np.eye(size, dtype=np.bool_)
        mask[:, :, self._n_slots :][:, own] = 1
        tensors = self._tokens(stage, ids, places.ravel())
        tensors["attention_mask"] = stage.tensor("attention_mask", mask.reshape(n_windows * size, -1))
        stage.infer({**tensors, **self._cache, **self._cross})
        return stage

    def _tokens(self, stage: Stage, ids: IntArray, positions: IntArray) -> dict[str, ov.Tensor]:
        """Return tokens as a graph takes them: ids, shape (n_windows, n), and positions, or vectors made of both."""
        takes = self._lookup or stage
        tensors = {name: takes.tensor(name, values) for name, values in zip(LOOKED_UP, (ids, positions), strict=True)}
        if self._lookup is None:
            return tensors
        self._lookup.infer(tensors)
        return {EMBEDDED: stage.tensor(EMBEDDED, self._lookup.output(EMBEDDED).data)}

    def _logits(self, stage: Stage, tokens: slice) -> FloatArray:
        """Return the logits of some of a call's tokens, shape (n_windows, n, n_vocab), as a copy in float32."""
        if self._projection is None:
            return to_float32(stage.output("logits"))[:, tokens]
        hidden = stage.output(HIDDEN).data[:, tokens]
        n_windows, n, width = hidden.shape
        rows = hidden.reshape(n_windows * n, width)
        found = np.empty((len(rows), self._dims.n_vocab), np.float32)
        # A few at a time, since what they are computed into is kept; not of many windows, where time counts.
        step = TOKENS_STEP if n_windows == 1 else MOST_TOKENS
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            padded = np.zeros((_rounded(len(part)), width), np.float32)
            padded[: len(part)] = part
            self._projection.infer({HIDDEN: ov.Tensor(padded)})
            found[first : first + step] = self._projection.output("logits").data[: len(part)]
        return found.reshape(n_windows, n, -1)

    def _stage_for(self, n_tokens: int) -> Stage:
        n_audio_ctx = self._windows[0].n_audio_ctx
        for stage in self._stages:
            sizes = stage.sizes
            fits = sizes.window_s is None or sizes.window_s * TOKENS_PER_SECOND == n_audio_ctx
            if fits and sizes.n_slots in (None, self._n_slots) and n_tokens <= (sizes.n_tokens or n_tokens):
                return stage
        raise AssertionError(f"no graph takes {n_tokens} tokens at once")

    def _keep(self, stage: Stage, slots: IntArray) -> None:
        """Put the keys and values of a call's tokens into slots, shape (n_windows, n)."""
        needed = int(slots.max()) + 1
        if needed > self._n_slots and (larger := self._larger(needed)):
            self._resize(larger)
        # The very last position has no slot: nothing comes after it.
        n = slots.shape[1] - (needed > self._n_slots)
        for name, tensor in self._cache.items():
            kept, present = tensor.data, stage.output(name.replace("past_", "present_", 1)).data
            for i, places in enumerate(slots):
                kept[i][:, places[:n]] = present[i, :, :n]

    def _larger(self, n_slots: int) -> int | None:
        """Return the smallest cache size of at least this many slots, or None."""
        if self._any_size:
            return -(-n_slots // SLOTS_STEP) * SLOTS_STEP
        return next((size for size in self._slot_sizes if size >= n_slots), None)


def _rounded(n_tokens: int) -> int:
    """Return for how many tokens a graph for any number is used: each new number costs time and memory."""
    return n_tokens if n_tokens <= FEW_TOKENS else -(-n_tokens // TOKENS_STEP) * TOKENS_STEP


def _exchange_rows(one: EncodedWindow, other: EncodedWindow) -> None:
    one.buffers.swap(one.row, other.row)
    one.row, other.row = other.row, one.row


def _first_rows(tensor: ov.Tensor, n_rows: int) -> ov.Tensor:
    """Return the first rows of a tensor, in the same memory."""
    _, *others = tensor.shape
    return ov.Tensor(tensor, ov.Coordinate([0, 0, 0, 0]), ov.Coordinate([n_rows, *others]))
