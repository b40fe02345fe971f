"""The decoder over several windows at once: one call of its graph takes the next tokens of all of them.

What decodes a window alone decodes one of a batch. Each is decoded in a thread of its own, which waits at each call of
the decoder until all others have come to theirs; then one computes for all. On a CPU a call takes most of its time to
read the weights, whatever number of windows they are read for.
Source: windows that are cut at silences, and decoded in batches, are Bain et al. (2023), arXiv:2303.00747.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from streamer.arrays import Float32Array, FloatArray
from streamer.whisper.device.runtime import EncodedWindow, Stage, to_float32
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.ports import BATCH_SLOTS, BLOCK_TOKENS, beam_slots, key_values

T = TypeVar("T")


class BatchDecoder:
    """The decoder's forward pass over the sequences of several windows. One thread at a time may use it."""

    def __init__(self, stage: Stage, dims: ModelDimensions, n_windows: int, n_beams: int) -> None:
        """Take a decoder's graph for any sizes: at most `n_windows` at once, of `n_beams` sequences each."""
        self.stage = stage
        self.dims = dims
        self.n_beams = n_beams
        names = [f"past_{name}" for name in key_values(dims.n_text_layer, "encoder")]
        shape = (n_windows, dims.n_text_head, dims.n_audio_ctx, dims.text_head_size)
        # Keys and values of the windows' audio, of this shape each, by the names of the graph's inputs.
        self.cross = {name: ov.Tensor(stage.inputs[name].element_type, ov.Shape(shape)) for name in names}
        # What windows are encoded into, from the first on.
        self.rows = [
            EncodedWindow(
                i, {name.replace("past_", "present_", 1): _rows(t, i, i + 1) for name, t in self.cross.items()}
            )
            for i in range(n_windows)
        ]

    def decode(self, decode: Sequence[Callable[["WindowDecoder"], T]]) -> list[tuple[T, EncodedWindow]]:
        """Decode the windows of the first rows, each with one of the functions, which are given a decoder each.

        Returns what each gives, with its window, which may have moved to another row. Raises what the first of them
        raises, when all have ended.
        """
        run = _Run(self, len(decode))
        with ThreadPoolExecutor(len(decode), "batch") as pool:
            tasks = [pool.submit(run.follow, decoder, f) for decoder, f in zip(run.decoders, decode, strict=True)]
            try:
                results = [task.result() for task in tasks]
            except BaseException as error:
                run.abort(error)
                raise
        return [(result, self.rows[decoder.row]) for result, decoder in zip(results, run.decoders, strict=True)]


@dataclass(slots=True, kw_only=True)
class _Call:
    """Tokens of one window to be computed."""

    window: "WindowDecoder"
    tokens: Sequence[int]
    positions: Sequence[int]

    # Which slots of the cache each token sees, from the first on, and which of the call's own tokens, shape (n, n).
    cached: Float32Array
    own: Float32Array

    # Where the tokens' own keys and values are kept.
    slots: Sequence[int]

    # Shape (n, n_vocab), or why there are none.
    logits: Future[FloatArray] = field(default_factory=Future)


class _Run:
    """A batch at work: the cache of its windows' text, and the calls that wait. Windows at work have the first rows."""

    def __init__(self, batch: BatchDecoder, n_windows: int) -> None:
        self._stage = batch.stage
        self._cross = batch.cross
        self._names = key_values(batch.dims.n_text_layer, "decoder")
        self._shape = (n_windows, batch.dims.n_text_head, 0, batch.dims.text_head_size)
        # Cached keys and values, each of shape (n_windows, n_head, P, head), in the order of the names.
        self._cache: list[ov.Tensor] = []
        self._n_slots = 0
        self.decoders = [WindowDecoder(self, batch, row) for row in range(n_windows)]
        # Guards all that follows: windows that are still decoded, and those that the graph's inputs are bound for.
        self._lock = threading.Lock()
        self._n_live = n_windows
        self._n_bound = 0
        self._waiting: list[_Call] = []
        self._aborted: BaseException | None = None
        self._grow(BATCH_SLOTS)

    def follow(self, decoder: "WindowDecoder", decode: Callable[["WindowDecoder"], T]) -> T:
        try:
            return decode(decoder)
        finally:
            with self._lock:
                self._n_live -= 1
                self._swap(decoder, next(other for other in self.decoders if other.row == self._n_live))
                self._compute_if_all_wait()

    def abort(self, error: BaseException) -> None:
        with self._lock:
            self._aborted = error

    def compute(self, call: _Call) -> FloatArray:
        """Return a call's logits, shape (n, n_vocab), when all other windows have come to their calls."""
        with self._lock:
            if self._aborted is not None:
                raise self._aborted
            self._waiting.append(call)
            self._compute_if_all_wait()
        return call.logits.result()

    def _compute_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._n_live:
            return
        calls, self._waiting = self._waiting, []
        try:
            self._compute(calls)
        except BaseException as error:  # noqa: BLE001 - the threads that wait raise it
            for call in calls:
                call.logits.set_exception(error)

    def _compute(self, calls: Sequence[_Call]) -> None:
        n_windows, n_tokens = len(calls), max(len(call.tokens) for call in calls)
        if self._n_bound != n_windows:
            self._bind(n_windows)
        ids = np.zeros((n_windows, n_tokens), dtype=np.int64)
        positions = np.zeros_like(ids)
        mask = np.zeros((n_windows, n_tokens, self._n_slots + n_tokens), dtype=np.float32)
        # Each sees itself, also the padding, which has to see something.
        mask[:, :, self._n_slots :] = np.eye(n_tokens, dtype=np.float32)
        for call in calls:
            row, n = call.window.row, len(call.tokens)
            ids[row, :n], positions[row, :n] = call.tokens, call.positions
            mask[row, :n, : call.cached.shape[1]] = call.cached
            mask[row, :n, self._n_slots : self._n_slots + n] = call.own
        rows = mask.reshape(n_windows * n_tokens, -1)
        inputs: dict[str, NDArray[Any]] = {"input_ids": ids, "position_ids": positions.ravel(), "attention_mask": rows}
        for name, values in inputs.items():
            tensor = ov.Tensor(self._stage.inputs[name].element_type, ov.Shape(values.shape))
            tensor.data[:] = values
            self._stage.bind_to_input(name, tensor)
        self._stage.infer()
        needed = 1 + max(max(call.slots) for call in calls)
        if needed > self._n_slots:
            self._grow(-(-needed // BATCH_SLOTS) * BATCH_SLOTS)
        for name, cache in zip(self._names, self._cache, strict=True):
            present, slots = self._stage.output(f"present_{name}").data, cache.data
            for call in calls:
                slots[call.window.row][:, call.slots] = present[call.window.row, :, : len(call.tokens)]
        logits = to_float32(self._stage.output("logits"))
        for call in calls:
            call.logits.set_result(logits[call.window.row, : len(call.tokens)])

    def _grow(self, n_slots: int) -> None:
        shape = ov.Shape([*self._shape[:2], n_slots, self._shape[3]])
        grown = [ov.Tensor(self._stage.inputs[f"past_{name}"].element_type, shape) for name in self._names]
        for i, tensor in enumerate(grown):
            # What is hidden still meets the arithmetic: a NaN there would spread.
            tensor.data[:, :, self._n_slots :] = 0
            if self._n_slots:
                tensor.data[:, :, : self._n_slots] = self._cache[i].data
        self._cache, self._n_slots, self._n_bound = grown, n_slots, 0

    def _bind(self, n_windows: int) -> None:
        for name, tensor in self._cross.items():
            self._stage.bind_to_input(name, _rows(tensor, 0, n_windows))
        for name, tensor in zip(self._names, self._cache, strict=True):
            self._stage.bind_to_input(f"past_{name}", _rows(tensor, 0, n_windows))
        self._n_bound = n_windows

    def _swap(self, one: "WindowDecoder", other: "WindowDecoder") -> None:
        """Let two windows change places."""
        if one is other:
            return
        for tensor in (*self._cross.values(), *self._cache):
            tensor.data[[one.row, other.row]] = tensor.data[[other.row, one.row]]
        one.row, other.row = other.row, one.row


class WindowDecoder:
    """One window's part of a batch, a `search.TokenDecoder` and `BranchingDecoder`; it gives no attention."""

    def __init__(self, run: _Run, batch: BatchDecoder, row: int) -> None:
        # Of the batch's tensors; the run changes it.
        self.row = row
        self._run = run
        self.capacity = batch.dims.n_text_ctx
        self._most_slots = beam_slots(batch.dims, batch.n_beams)
        self.n_beams = batch.n_beams
        # Tokens of the sequence, each in the slot of its number.
        self.n_fed = 0
        # Of beams: which slots each sees, shape (n_sequences, n), and their tokens behind the sequence.
        self._visible: Float32Array = np.empty((0, 0), dtype=np.float32)
        self._n_behind = 0

    @property
    def beams(self) -> "WindowDecoder | None":
        return self if self.n_beams > 1 else None

    @property
    def n_free(self) -> int:
        """Tokens, of all beams together, that there is room for: as many as where a window is decoded alone."""
        return self._most_slots - int(self._visible.any(axis=0).sum())

    def begin(self) -> None:
        self.n_fed = 0

    def rewind(self, n_fed: int) -> None:
        assert n_fed <= self.n_fed
        self.n_fed = n_fed

    def feed(self, tokens: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Append tokens; return logits, shape (n, n_vocab), and the attention of no heads. Raises InferenceError."""
        assert 0 < len(tokens) <= self.capacity - self.n_fed, "the sequence does not fit the context"
        logits = []
        for first in range(0, len(tokens), BLOCK_TOKENS):
            block = tokens[first : first + BLOCK_TOKENS]
            n = len(block)
            slots = range(self.n_fed, self.n_fed + n)
            seen = np.ones((n, self.n_fed), dtype=np.float32)
            logits.append(self._compute(block, slots, seen, np.tri(n, dtype=np.float32), slots))
            self.n_fed += n
        return np.concatenate(logits), np.empty((0, len(tokens), 0), dtype=np.float32)

    def start_beams(self) -> "WindowDecoder":
        self._visible = np.ones((1, self.n_fed), dtype=np.float32)
        self._n_behind = 0
        return self

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> FloatArray:
        """Continue beams, by their numbers in the call before, by a token each; return logits, shape (n, n_vocab)."""
        n = len(tokens)
        visible = self._visible[list(parents)]
        free = np.flatnonzero(~visible.any(axis=0))[:n]
        if len(free) < n:
            free = np.append(free, np.arange(visible.shape[1], visible.shape[1] + n - len(free)))
            visible = np.pad(visible, ((0, 0), (0, int(free[-1]) + 1 - visible.shape[1])))
        positions = [self.n_fed + self._n_behind] * n
        logits = self._compute(tokens, positions, visible, np.eye(n, dtype=np.float32), free.tolist())
        visible[np.arange(n), free] = 1
        self._visible = visible
        self._n_behind += 1
        return logits

    def _compute(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        cached: Float32Array,
        own: Float32Array,
        slots: Sequence[int],
    ) -> FloatArray:
        call = _Call(window=self, tokens=tokens, positions=positions, cached=cached, own=own, slots=slots)
        return self._run.compute(call)


def _rows(tensor: ov.Tensor, first: int, end: int) -> ov.Tensor:
    """Return some rows of a tensor, as a tensor that looks at the same memory."""
    shape = list(tensor.shape)
    return ov.Tensor(tensor, ov.Coordinate([first, 0, 0, 0]), ov.Coordinate([end, *shape[1:]]))
