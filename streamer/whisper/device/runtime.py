"""Whisper's compiled graphs with long-lived infer requests and tensors that we own.

Every input of every request is bound before its first run, and no tensor aliases another window's: cross-attention keys
and values are double-buffered, so that one window can be encoded while another is being decoded. Names and shapes are
those of the table of ports, types those of the compiled graphs: exports and accelerators may compute in half precision.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from streamer.arrays import Float32Array, FloatArray
from streamer.audio.constants import FRAMES_PER_SECOND, HOP_LENGTH, TOKENS_PER_SECOND
from streamer.errors import InferenceError, ModelError
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.masks import OURS, MaskConvention
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.generation import MIN_WINDOW_S
from streamer.whisper.graphs.ports import STAGES, GraphId, Ports, Shape, beam_slots, key_values
from streamer.whisper.ir import first_line
from streamer.whisper.result import N_BUFFERS

# An accelerator that computes for longer has hung: the largest encoder takes a few seconds.
HANGS_AFTER_S = 30.0

# Of tensors in memory, in bytes: a line of a processor's cache.
ALIGNMENT = 64

# Slots of a cache that can grow, to begin with; those of most passes.
MIN_SLOTS = 64

# Requests that never came back. To destroy one would wait for it.
_hung: list[ov.InferRequest] = []


@dataclass(slots=True)
class EncodedWindow:
    """One window's cross-attention keys and values, in one of the runtime's buffers."""

    index: int
    tensors: Mapping[str, ov.Tensor]

    @property
    def n_audio_ctx(self) -> int:
        """Encoder positions of the window, 20 ms each."""
        return int(next(iter(self.tensors.values())).shape[2])


class Runtime:
    """Encoder, cross-KV and decoder of one model, ready to compute.

    Encoding and decoding may each be used by one thread at a time, and the two at once; a buffer belongs to whoever
    encoded into it until it is encoded into again, in whatever length. Runtimes of one compilation share nothing but
    its compiled graphs.
    """

    def __init__(
        self,
        compilation: Compilation,
        mask: MaskConvention = OURS,
        *,
        n_buffers: int = N_BUFFERS,
        windows_s: Sequence[int] | None = None,
        n_beams: int | None = None,
    ) -> None:
        """Take the graphs for windows of all lengths, or of some, and for the beams of captions, or for others.

        Raises ModelError where a graph lacks a port, or the ports of two graphs do not fit together.
        """
        self.dims = compilation.graphs.dims
        self._compilation = compilation
        # Device of each stage, as the `ready` event tells it.
        self.devices = compilation.devices
        # Lengths of the windows that were asked for, in seconds, the shortest first; the last is 30.
        self.windows_s = tuple(windows_s or compilation.windows_s)
        self._stages = {
            graph: Stage(graph, compiled, self.devices[graph.stage])
            for graph, compiled in compilation.compiled.items()
            if graph.bounded or graph.window_s in self.windows_s
        }
        # Lengths that are encoded. Between the longest of the short ones and 30 s lies what nobody asked for.
        self._lengths_s = self.windows_s
        if self._takes_all_sizes:
            self._lengths_s = (*range(self.windows_s[0], self.windows_s[-2:][0] + 1), self.windows_s[-1])
        self._workspace = Memory()
        self._buffers = [Memory() for _ in range(n_buffers)]
        # By frames of the spectrogram.
        self._encoders: dict[int, WindowEncoder] = {}
        # That of the window encoded last. The longest is made first.
        self._encoder = self._encoder_for(self.windows_s[-1] * FRAMES_PER_SECOND)
        for window_s in self.windows_s:
            self._encoder_for(window_s * FRAMES_PER_SECOND)
        decoders = [stage for stage in self._stages.values() if stage.graph.stage == "decoder"]
        window = self.buffer(self.windows_s[-1])
        self.decoder = DecoderRuntime(decoders, window, self.dims, mask, n_beams=n_beams or compilation.n_beams)

    @property
    def last_hidden_state(self) -> FloatArray:
        """The encoder's output for the window encoded last, shape (n_audio_ctx, n_audio_state), as a copy."""
        return self._encoder.last_hidden_state

    def call_before(self, before: Callable[[], None]) -> None:
        """Have something called before each call of a graph, by its thread; what it raises ends the computation."""
        for stage in self._stages.values():
            stage.before = before

    def warm_up(self) -> None:
        """Have graphs that take all sizes copy their weights: the first call does that, and the first caption waits.

        Raises InferenceError where a device fails.
        """
        if self._takes_all_sizes:
            self.decoder.use(self.encode(np.zeros((self.dims.n_mels, MIN_WINDOW_S * FRAMES_PER_SECOND), np.float32), 0))
            self.decoder.feed([0])
            self.decoder.begin()

    @property
    def _takes_all_sizes(self) -> bool:
        return {graph.stage for graph in self._stages if graph.bounded} == set(STAGES)

    def frames_for(self, n_samples: int) -> int:
        """Return the frames of the shortest window that this many samples fit into, of 30 s at most."""
        lengths = (window_s * FRAMES_PER_SECOND for window_s in self._lengths_s)
        whole = self._lengths_s[-1] * FRAMES_PER_SECOND
        return next((n_frames for n_frames in lengths if n_samples <= n_frames * HOP_LENGTH), whole)

    def buffer(self, window_s: int) -> EncodedWindow:
        """Return the first buffer as one for windows of a length, with whatever is in it."""
        return self._encoder_for(window_s * FRAMES_PER_SECOND).buffers[0]

    def decoder_of(self, window: EncodedWindow) -> "DecoderRuntime":
        """Return the decoder, ready to decode a window, which another runtime of the model may have encoded."""
        self.decoder.use(window)
        return self.decoder

    def batch_stage(self) -> "Stage | None":
        """Return a new decoder for any number of windows, compiled the first time; None where there can be none."""
        compiled = self._compilation.batch_decoder()
        if compiled is None:
            return None
        stage = Stage(GraphId("decoder", bounded=True), compiled, self.devices["decoder"])
        stage.before = next(iter(self._stages.values())).before
        return stage

    def encode(self, mel: FloatArray, buffer: int | EncodedWindow) -> EncodedWindow:
        """Encode a window into a buffer, or into one of a batch.

        mel : shape = (n_mels, n_frames), as many frames as `frames_for` returns: 3000 are 30 s

        Raises InferenceError where the device fails.
        """
        self._encoder = self._encoder_for(mel.shape[1])
        return self._encoder.encode(mel, buffer)

    def _encoder_for(self, n_frames: int) -> "WindowEncoder":
        if n_frames not in self._encoders:
            # Calls of sizes that are new read weights again that they have copies of.
            self._compilation.give_back()
            graphs = [GraphId(stage, n_frames // FRAMES_PER_SECOND) for stage in ("encoder", "cross_kv")]
            encoder, cross_kv = (stage_for(graph, self._stages.values()) for graph in graphs)
            ports = [graph.ports(self.dims, 0) for graph in graphs]
            self._encoders[n_frames] = WindowEncoder(encoder, cross_kv, ports, self._workspace, self._buffers)
        return self._encoders[n_frames]


class WindowEncoder:
    """Encoder and cross-KV for windows of one length, with the buffers that they are encoded into."""

    def __init__(
        self,
        encoder: "Stage",
        cross_kv: "Stage",
        ports: Sequence[Ports],
        workspace: "Memory",
        buffers: Sequence["Memory"],
    ) -> None:
        """Lay tensors out.

        ports : of the two stages, for the windows' length
        workspace : holds features and hidden states
        buffers : hold keys and values
        """
        self.encoder = encoder
        self.cross_kv = cross_kv
        # The encoder's output is the cross-KV's input: one tensor, no copy.
        self._tensors = workspace.lay_out(
            encoder.typed_inputs(ports[0].inputs) | encoder.typed_outputs(ports[0].outputs)
        )
        kept = cross_kv.typed_outputs(ports[1].outputs)
        self.buffers = [EncodedWindow(i, buffer.lay_out(kept)) for i, buffer in enumerate(buffers)]
        self._bind()

    @property
    def last_hidden_state(self) -> FloatArray:
        hidden: FloatArray = self._tensors["last_hidden_state"].data[0].copy()
        return hidden

    def encode(self, mel: FloatArray, buffer: int | EncodedWindow) -> EncodedWindow:
        window = self.buffers[buffer] if isinstance(buffer, int) else buffer
        self._bind()
        np.copyto(self._tensors["input_features"].data[0], mel, casting="same_kind")
        self.encoder.infer()
        for name, tensor in window.tensors.items():
            self.cross_kv.bind_to_output(name, tensor)
        self.cross_kv.infer()
        return window

    def _bind(self) -> None:
        self.encoder.bind_to_input("input_features", self._tensors["input_features"])
        self.encoder.bind_to_output("last_hidden_state", self._tensors["last_hidden_state"])
        self.cross_kv.bind_to_input("encoder_hidden_states", self._tensors["last_hidden_state"])


class DecoderRuntime:
    """The decoder's forward pass over one growing sequence, with its key-value cache.

    Tokens go through in blocks where there is a graph for several at once, a single one through the one-token graph; a
    bounded graph takes as many as there are. All share the cache, and so do windows of different lengths.
    """

    def __init__(
        self,
        stages: Iterable["Stage"],
        window: EncodedWindow,
        dims: ModelDimensions,
        mask: MaskConvention = OURS,
        *,
        n_beams: int = 1,
    ) -> None:
        """Decode `window` first.

        stages : all of the decoder's graphs
        n_beams : sequences at once that there is a graph for
        """
        # How the graphs want to be told which slots are filled.
        self.mask = mask
        # Tokens in the cache.
        self._n_cached = 0
        self._dims = dims
        self._stages = list(stages)
        # Tokens that a call can take, ascending.
        graphs = [stage.graph for stage in self._stages]
        self._sizes = sorted({n for graph in graphs if not graph.beams for n in graph.token_sizes})
        self._n_beams = n_beams
        self._cache = _Cache(self._stages[0], dims, dims.cache_size)
        self._beam_cache = _Cache(self._stages[0], dims, beam_slots(dims, n_beams)) if n_beams > 1 else None
        # Tensors of one call at a time: each writes all its inputs, and its outputs are read before the next.
        self._workspace = Memory()
        # For windows of the present length, made when they are needed.
        self._calls: dict[tuple[int, int, bool], _Call] = {}
        self._window_s = 0
        self.use(window)

    @property
    def capacity(self) -> int:
        return self._dims.n_text_ctx

    @property
    def open_step(self) -> "OpenStep":
        """The one-token graph with its tensors, to find out how its mask is meant (see `masks`)."""
        return OpenStep(self._call(1), self._cache.slots)

    def use(self, window: EncodedWindow) -> None:
        """Decode this window from now on."""
        window_s = window.n_audio_ctx // TOKENS_PER_SECOND
        if window_s != self._window_s:
            self._window_s = window_s
            self._calls.clear()
        for stage in self._stages:
            if stage.graph.bounded or stage.graph.window_s == window_s:
                for name, tensor in window.tensors.items():
                    stage.bind_to_input(name.replace("present_", "past_", 1), tensor)
        self.begin()

    @property
    def block_tokens(self) -> int:
        """Tokens that one call can take."""
        return self._sizes[-1]

    @property
    def n_calls(self) -> int:
        """Calls of the graphs so far, whatever number of tokens each took."""
        return sum(stage.n_calls for stage in self._stages)

    @property
    def n_fed(self) -> int:
        return self._n_cached

    @property
    def beams(self) -> "BeamDecoder | None":
        """The same decoder for several sequences at once, where it was compiled for them."""
        if self._beam_cache is None:
            return None
        cache = self._beam_cache
        return BeamDecoder(lambda: self._call_for(self._n_beams, cache, beams=True), self._n_beams, cache)

    def rewind(self, n_fed: int) -> None:
        assert n_fed <= self._n_cached
        self._n_cached = n_fed

    def begin(self) -> None:
        self._cache.clear()
        self._n_cached = 0

    def pollute_hidden_slots(self) -> None:
        """Fill every cache slot that is not in use with noise, for the check that the mask hides them."""
        noise = np.random.default_rng(0)
        for slots in self._cache.slots:
            # The same in every slot: attention that averages many of them would average white noise away.
            pattern = 4.0 * noise.standard_normal((1, slots.shape[1], 1, slots.shape[3]), dtype=np.float32)
            slots[:, :, self._n_cached :] = as_type(pattern, self._cache.element_type)
        self._cache.n_dirty = self._cache.n_slots

    def feed(self, tokens: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Append tokens to the sequence.

        Returns logits, shape (n, n_vocab), and the alignment heads' attention, shape (n_heads, n, n_audio_ctx), as
        copies in float32. Raises InferenceError where the device fails.
        """
        assert 0 < len(tokens) <= self.capacity - self._n_cached, "the sequence does not fit the context"
        logits: list[FloatArray] = []
        attention: list[FloatArray] = []
        position = 0
        while position < len(tokens):
            n = min(len(tokens) - position, self.block_tokens)
            self._cache.make_room(self._n_cached + n)
            call = self._call(n)
            self._forward(call, tokens[position : position + n])
            logits.append(call.read_logits(n))
            attention.append(call.read_attention(n))
            position += n
        if len(logits) == 1:
            return logits[0], attention[0]
        return np.concatenate(logits), np.concatenate(attention, axis=1)

    def start_beams(self) -> "BeamDecoder":
        """Let several sequences continue the one that was fed; only where there are `beams`."""
        beams = self.beams
        assert beams is not None
        beams.begin(self._cache.slots, self._n_cached)
        return beams

    def _call(self, n_tokens: int) -> "_Call":
        """Return the smallest call that takes this many tokens."""
        return self._call_for(next(size for size in self._sizes if n_tokens <= size), self._cache)

    def _call_for(self, n_tokens: int, cache: "_Cache", *, beams: bool = False) -> "_Call":
        sizes = n_tokens, cache.n_slots, beams
        if sizes not in self._calls:
            graph = GraphId("decoder", self._window_s, n_tokens, beams)
            self._calls[sizes] = _Call(stage_for(graph, self._stages), graph, self._dims, cache, self._workspace)
        return self._calls[sizes]

    def _forward(self, call: "_Call", tokens: Sequence[int]) -> None:
        n, n_cached = len(tokens), self._n_cached
        call.ids[:n] = tokens
        # Padding behind the tokens is hidden from them; it only has to be valid.
        call.ids[n:] = 0
        np.minimum(call.offsets + n_cached, self._dims.n_text_ctx - 1, out=call.positions, casting="same_kind")
        for i, row in enumerate(call.mask):
            self.mask.write(row, n_cached, i + 1, self._cache.n_slots)
        call.infer()
        # The very last position has no slot: nothing comes after it.
        n_kept = min(n, self._cache.n_slots - n_cached)
        self._cache.write(slice(n_cached, n_cached + n_kept), call.present)
        self._n_cached += n


class _Cache:
    """Cached keys and values of the text.

    A bounded graph takes any number of slots: few are soon looked through, and those that were never needed take no
    memory.
    """

    def __init__(self, stage: "Stage", dims: ModelDimensions, most: int) -> None:
        """Take the least slots there can be.

        most : slots that there can be
        """
        names = [f"past_{name}" for name in key_values(dims.n_text_layer, "decoder")]
        self._shape = (1, dims.n_text_head, dims.text_head_size)
        self._types = {name: kind for name, (_, kind) in stage.typed_inputs(dict.fromkeys(names, ())).items()}
        self._memory = Memory()
        self._most = most
        self._least = MIN_SLOTS if stage.graph.bounded else most
        # Slots that may hold something else than zeros, from the first on.
        self.n_dirty = 0
        self._lay_out(most)
        self._lay_out(self._least)

    @property
    def element_type(self) -> ov.Type:
        return next(iter(self._types.values()))

    @property
    def n_left(self) -> int:
        """Slots that can still be added."""
        return self._most - self.n_slots

    def clear(self) -> None:
        """Begin anew with the least slots."""
        # Hidden slots are masked, but what they hold still meets the arithmetic: a NaN left there would spread.
        for slots in self.slots:
            slots[:, :, : self.n_dirty] = 0
        self.n_dirty = 0
        if self.n_slots > self._least:
            self._lay_out(self._least)

    def make_room(self, n_slots: int) -> None:
        """Have this many slots at least, or all that there can be; those that there are keep what they hold."""
        n_slots = min(n_slots, self._most)
        if n_slots <= self.n_slots:
            return
        kept, n_dirty = [slots.copy() for slots in self.slots], self.n_dirty
        self.clear()
        # Twice as many each time, since each number of slots takes time to get used to.
        self._lay_out(min(self._most, self._least * 2 ** math.ceil(math.log2(n_slots / self._least))))
        self.write(slice(n_dirty), kept)

    def write(self, where: "slice | NDArray[np.intp]", values: Sequence[FloatArray]) -> None:
        """Put keys and values, each of shape (1, n_head, n, head), the first of them, into slots."""
        numbers = np.arange(self.n_slots)[where]
        for slots, value in zip(self.slots, values, strict=True):
            slots[:, :, where] = value[:, :, : len(numbers)]
        self.n_dirty = max(self.n_dirty, int(numbers.max(initial=-1)) + 1)

    def _lay_out(self, n_slots: int) -> None:
        n_batch, n_head, head_size = self._shape
        shape = (n_batch, n_head, n_slots, head_size)
        # By the names of the graph's inputs, and the same as arrays.
        self.tensors = self._memory.lay_out({name: (shape, kind) for name, kind in self._types.items()})
        self.slots = [tensor.data for tensor in self.tensors.values()]
        self.n_slots = n_slots


class _Call:
    """A decoder graph with the tensors of one number of tokens; arrays are looked up once, since steps are short."""

    def __init__(
        self, stage: "Stage", graph: GraphId, dims: ModelDimensions, cache: _Cache, workspace: "Memory"
    ) -> None:
        """Lay tensors out.

        graph : the sizes of the call, which the stage's own may exceed
        cache : with as many slots as the call is to have
        """
        self.stage = stage
        ports = graph.ports(dims, stage.n_heads, cache.n_slots)
        own = {name: shape for name, shape in ports.inputs.items() if "key_values." not in name}
        tensors = workspace.lay_out(stage.typed_inputs(own) | stage.typed_outputs(ports.outputs))
        self._inputs = {**{name: tensors[name] for name in own}, **cache.tensors}
        self._outputs = {name: tensors[name] for name in ports.outputs}
        # Shape (T,), (T,) and (T, P + T).
        self.ids = tensors["input_ids"].data[0]
        self.positions = tensors["position_ids"].data
        self.n_tokens = len(self.ids)
        self.mask = tensors["attention_mask"].data
        # Position of each token of the call after its first.
        self.offsets = np.arange(self.n_tokens)
        self._logits = tensors["logits"].data
        # Keys and values of the call's own tokens, in the order of the cache.
        self.present = [tensors[name.replace("past_", "present_", 1)].data for name in cache.tensors]
        # Attention of the alignment heads, shape (n_heads, T, n_audio_ctx).
        self._attention = tensors["cross_attention"].data[0]

    def infer(self) -> None:
        if self.stage.holds is not self:
            for name, tensor in self._inputs.items():
                self.stage.bind_to_input(name, tensor)
            for name, tensor in self._outputs.items():
                self.stage.bind_to_output(name, tensor)
            self.stage.holds = self
        self.stage.infer()

    def read_logits(self, n: int) -> FloatArray:
        logits: FloatArray = self._logits[0, :n].astype(np.float32)
        return logits

    def read_attention(self, n: int) -> FloatArray:
        attention: FloatArray = self._attention[:, :n].astype(np.float32)
        return attention


class BeamDecoder:
    """The decoder's forward pass over several sequences at once, which share the slots of what they have in common.

    A slot belongs to every sequence whose row of the mask shows it: giving one up frees what was its alone.
    """

    def __init__(self, call_now: Callable[[], _Call], n_beams: int, cache: _Cache) -> None:
        self._call_now = call_now
        # Most sequences at once.
        self.n_beams = n_beams
        self._cache = cache
        # Which slots each sequence sees, shape (n_sequences, P).
        self._visible = np.zeros((1, cache.n_slots), dtype=np.float32)
        # Length of all sequences.
        self._n_fed = 0

    @property
    def n_free(self) -> int:
        """Tokens, of all sequences together, that there is room for."""
        return int((~self._visible.any(axis=0)).sum()) + self._cache.n_left

    def begin(self, cache: Sequence[FloatArray], n_fed: int) -> None:
        """Start from one sequence whose first `n_fed` slots are given, each of shape (1, n_head, P, head)."""
        self._cache.clear()
        self._cache.make_room(n_fed)
        # The very last position has no slot: nothing comes after it.
        self._cache.write(slice(min(n_fed, cache[0].shape[2])), cache)
        self._visible = np.zeros((1, self._cache.n_slots), dtype=np.float32)
        self._visible[0, :n_fed] = 1
        self._n_fed = n_fed

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> FloatArray:
        """Continue sequences by a token each; those that nobody continues are forgotten.

        parents : for each token the number of the sequence that it continues, in the order of the call before

        Returns logits, shape (n, n_vocab), as a copy in float32. Raises InferenceError where the device fails.
        """
        n = len(tokens)
        visible = self._visible[list(parents)]
        free = np.flatnonzero(~visible.any(axis=0))[:n]
        if len(free) < n:
            self._cache.make_room(self._cache.n_slots + 1)
            visible = np.pad(visible, ((0, 0), (0, self._cache.n_slots - visible.shape[1])))
            free = np.flatnonzero(~visible.any(axis=0))[:n]
        assert len(free) == n, "more text than beam_slots() has room for"
        call, n_slots = self._call_now(), self._cache.n_slots
        call.ids[:n], call.ids[n:] = tokens, 0
        call.positions[:] = self._n_fed
        # Each sees itself, also the padding, which has to see something.
        call.mask[:, n_slots:] = np.eye(call.n_tokens, dtype=np.float32)
        call.mask[:n, :n_slots], call.mask[n:, :n_slots] = visible, 0
        call.infer()
        self._cache.write(free, call.present)
        visible[np.arange(n), free] = 1
        self._visible = visible
        self._n_fed += 1
        return call.read_logits(n)


class OpenStep:
    """A one-token decoder graph with its tensors open to experiments: a `masks.MaskedDecoder`."""

    def __init__(self, call: _Call, cache: Sequence[FloatArray]) -> None:
        self._call = call
        self.mask = call.mask[0]
        self.cache = cache
        self.present = call.present
        self.cross = [tensor.data for name, tensor in call.stage.tensors.items() if ".encoder." in name]

    def compute(self, token: int, position: int) -> FloatArray:
        """Return the logits after a token at a position, shape (n_vocab,), as a copy."""
        self._call.ids[:] = token
        self._call.positions[:] = position
        self._call.infer()
        logits: FloatArray = self._call.read_logits(1)[0]
        return logits


class Memory:
    """Zeroed memory, in which tensors lie one behind the other from its beginning on.

    What nothing was written to takes none: so short windows take less than long ones, in the same place.
    """

    def __init__(self) -> None:
        self._bytes = np.zeros(0, np.uint8)

    def lay_out(self, wanted: Mapping[str, tuple[Shape, ov.Type]]) -> dict[str, ov.Tensor]:
        """Return tensors of these shapes and types, over those that were laid out before where they fit there."""
        ends = list(itertools.accumulate(_aligned(math.prod(shape) * kind.size) for shape, kind in wanted.values()))
        if ends[-1] > len(self._bytes):
            memory = np.zeros(_aligned(ends[-1]) + ALIGNMENT, np.uint8)
            self._bytes = memory[-memory.ctypes.data % ALIGNMENT :]
        tensors = {}
        for (name, (shape, kind)), begin in zip(wanted.items(), (0, *ends), strict=False):
            part = self._bytes[begin : begin + math.prod(shape) * kind.size]
            tensors[name] = ov.Tensor(part, list(shape), kind)
        return tensors


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def stage_for(graph: GraphId, stages: Iterable["Stage"]) -> "Stage":
    """Return the stage that computes calls of these sizes."""
    return next(stage for stage in stages if stage.graph.takes(graph))


class Stage:
    """One infer request of a compiled graph, with its ports by name and the tensors bound to them.

    A tensor is bound to a port and not to a name: a graph may give an input and an output the same one.
    """

    def __init__(self, graph: GraphId, compiled: ov.CompiledModel, device: str) -> None:
        self.graph = graph
        self.device = device
        # A processor does not hang, and a step on it is short enough to count what watching costs.
        self._watched = device != "CPU"
        self.inputs: dict[str, ov.ConstOutput] = {name: port for port in compiled.inputs for name in port.names}
        self.outputs: dict[str, ov.ConstOutput] = {name: port for port in compiled.outputs for name in port.names}
        self.tensors: dict[str, ov.Tensor] = {}
        # Whose tensors are bound, where a graph serves several calls.
        self.holds: object = None
        self.n_calls = 0
        # Called before it computes.
        self.before: Callable[[], None] = at_once
        self._request = compiled.create_infer_request()

    @property
    def n_heads(self) -> int:
        """Alignment heads whose attention it gives. Raises ModelError where it gives none."""
        return int(self._port(self.outputs, "output", "cross_attention").partial_shape[1].get_length())

    def typed_inputs(self, shapes: Mapping[str, Shape]) -> dict[str, tuple[Shape, ov.Type]]:
        """Return shapes and types of inputs; raises ModelError where one is missing."""
        return {name: (shape, self._port(self.inputs, "input", name).element_type) for name, shape in shapes.items()}

    def typed_outputs(self, shapes: Mapping[str, Shape]) -> dict[str, tuple[Shape, ov.Type]]:
        """Return shapes and types of outputs; raises ModelError where one is missing."""
        return {name: (shape, self._port(self.outputs, "output", name).element_type) for name, shape in shapes.items()}

    def bind_to_input(self, name: str, tensor: ov.Tensor) -> None:
        port = self._port(self.inputs, "input", name)
        self._check(port, name, tensor)
        self._request.set_tensor(port, tensor)
        self.tensors[name] = tensor

    def bind_to_output(self, name: str, tensor: ov.Tensor) -> None:
        self._request.set_tensor(self._port(self.outputs, "output", name), tensor)
        self.tensors[name] = tensor

    def output(self, name: str) -> ov.Tensor:
        """Return what was computed for an output of any size, until the next time."""
        return self._request.get_tensor(self._port(self.outputs, "output", name))

    def infer(self) -> None:
        """Compute. Raises InferenceError where the device fails, or gives no answer for `HANGS_AFTER_S`."""
        self.before()
        try:
            if self._watched:
                self._request.start_async()
                answered = self._request.wait_for(round(HANGS_AFTER_S * 1000))
            else:
                # Its answer is a copy of all outputs, unless they are shared.
                self._request.infer(share_outputs=True)
                answered = True
        except RuntimeError as error:
            raise self._failure(first_line(error)) from error
        if not answered:
            _hung.append(self._request)
            raise self._failure(f"no answer within {HANGS_AFTER_S:.0f} s")
        self.n_calls += 1

    def _failure(self, reason: str) -> InferenceError:
        return InferenceError(
            f"{self.device} failed while it computed the {self.graph} ({reason}): see `streamer doctor`, update the"
            " driver, or choose another device with --device CPU",
            self.graph.stage,
        )

    def _port(self, ports: Mapping[str, ov.ConstOutput], kind: str, name: str) -> ov.ConstOutput:
        if name not in ports:
            raise ModelError(
                f"the {self.graph} graph has no {kind} {name}, it has {', '.join(sorted(ports))!r:.300}: expected a"
                " Whisper graph as `streamer docs design` says; convert the model again with `streamer models convert`"
            )
        return ports[name]

    def _check(self, port: ov.ConstOutput, name: str, tensor: ov.Tensor) -> None:
        """Raise ModelError where one graph's output is no input for another."""
        fits = port.partial_shape.compatible(ov.PartialShape(list(tensor.shape)))
        if not fits or port.element_type != tensor.element_type:
            raise ModelError(
                f"the {self.graph} graph takes {name} as {describe(port)}, it would be given {describe(tensor)}: the"
                " graphs are from different models; fetch or convert all of them again"
            )


def at_once() -> None:
    """Let a graph compute at once."""


def describe(port: ov.ConstOutput | ov.Tensor) -> str:
    """Return shape and type of a port or a tensor, such as `[1, 80, 3000] f32`."""
    shape = list(port.shape) if isinstance(port, ov.Tensor) or port.partial_shape.is_static else port.partial_shape
    return f"{shape} {port.element_type.get_type_name()}"


def to_float32(tensor: ov.Tensor) -> FloatArray:
    """Return a tensor's values as a copy; NumPy has no bfloat16, and takes such bits for float16."""
    if tensor.element_type != ov.Type.bf16:
        return np.array(tensor.data, dtype=np.float32)
    # The upper half of a float32's bits.
    bits: NDArray[np.uint32] = tensor.data.view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32)


def as_type(values: Float32Array, element_type: ov.Type) -> FloatArray:
    """Return values as NumPy sees them in a tensor of a type; for bfloat16 what is behind its bits is cut off."""
    if element_type != ov.Type.bf16:
        return values
    bits: NDArray[np.uint16] = (values.view(np.uint32) >> 16).astype(np.uint16)
    return bits.view(np.float16)
