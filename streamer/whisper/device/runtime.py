"""Whisper's compiled graphs with long-lived infer requests and tensors that we own.

Every input of every request is bound before its first run, and no tensor aliases another window's: cross-attention keys
and values are double-buffered, so that one window can be encoded while another is being decoded. Names and shapes are
those of the table of ports, types those of the compiled graphs: exports and accelerators may compute in half precision.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from streamer.whisper.graphs.ir import first_line
from streamer.whisper.graphs.ports import GraphId, key_values
from streamer.whisper.result import N_BUFFERS

# An accelerator that computes for longer has hung: the largest encoder takes a few seconds.
HANGS_AFTER_S = 30.0

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
    encoded into it until it is encoded into again. Runtimes of one compilation share nothing but its compiled graphs.
    """

    def __init__(self, compilation: Compilation, mask: MaskConvention = OURS, *, n_buffers: int = N_BUFFERS) -> None:
        """Raise ModelError where a graph lacks a port, or the ports of two graphs do not fit together."""
        self.dims = compilation.graphs.dims
        # Device of each stage, as the `ready` event tells it.
        self.devices = compilation.devices
        # Lengths of the windows that there are graphs for, in seconds, the shortest first; the last is 30.
        self.windows_s = tuple(compilation.windows_s)
        stages = {
            graph: Stage(graph, compiled, self.devices[graph.stage]) for graph, compiled in compilation.compiled.items()
        }
        # By frames of the spectrogram.
        self._encoders = {
            window_s * FRAMES_PER_SECOND: WindowEncoder(
                stages[GraphId("encoder", window_s)], stages[GraphId("cross_kv", window_s)], n_buffers
            )
            for window_s in self.windows_s
        }
        # That of the window encoded last.
        self._encoder = self._encoders[max(self._encoders)]
        decoders = [
            [stage for graph, stage in stages.items() if graph.stage == "decoder" and graph.window_s == window_s]
            for window_s in self.windows_s
        ]
        self.decoder = DecoderRuntime(decoders, self.buffer(self.windows_s[-1]), self.dims, mask)

    @property
    def last_hidden_state(self) -> FloatArray:
        """The encoder's output for the window encoded last, shape (n_audio_ctx, n_audio_state), as a copy."""
        return self._encoder.last_hidden_state

    def frames_for(self, n_samples: int) -> int:
        """Return the frames of the shortest window that this many samples fit into, of 30 s at most."""
        return next(
            (n_frames for n_frames in self._encoders if n_samples <= n_frames * HOP_LENGTH), max(self._encoders)
        )

    def buffer(self, window_s: int) -> EncodedWindow:
        """Return the first buffer for windows of a length, with whatever is in it."""
        return self._encoders[window_s * FRAMES_PER_SECOND].buffers[0]

    def decoder_of(self, window: EncodedWindow) -> "DecoderRuntime":
        """Return the decoder, ready to decode a window, which another runtime of the model may have encoded."""
        self.decoder.use(window)
        return self.decoder

    def encode(self, mel: FloatArray, buffer: int) -> EncodedWindow:
        """Encode a window into a buffer.

        mel : shape = (n_mels, n_frames), with the frames of one of `windows_s`: 3000 are 30 s

        Raises InferenceError where the device fails.
        """
        self._encoder = self._encoders[mel.shape[1]]
        return self._encoder.encode(mel, buffer)


class WindowEncoder:
    """Encoder and cross-KV for windows of one length, with the buffers that they are encoded into."""

    def __init__(self, encoder: "Stage", cross_kv: "Stage", n_buffers: int) -> None:
        self.encoder = encoder
        self.cross_kv = cross_kv
        # The encoder's output is the cross-KV's input: one tensor, no copy.
        hidden = encoder.bind_output("last_hidden_state")
        cross_kv.bind_to_input("encoder_hidden_states", hidden)
        self._features = encoder.bind_input("input_features")
        self.buffers = [
            EncodedWindow(
                i,
                {
                    name: new_tensor(port)
                    for name, port in cross_kv.outputs.items()
                    if name.startswith("present_key_values.")
                },
            )
            for i in range(n_buffers)
        ]

    @property
    def last_hidden_state(self) -> FloatArray:
        """See `Runtime`."""
        hidden: FloatArray = self.encoder.tensors["last_hidden_state"].data[0].copy()
        return hidden

    def encode(self, mel: FloatArray, buffer: int) -> EncodedWindow:
        """See `Runtime`."""
        window = self.buffers[buffer]
        np.copyto(self._features.data[0], mel, casting="same_kind")
        self.encoder.infer()
        for name, tensor in window.tensors.items():
            self.cross_kv.bind_to_output(name, tensor)
        self.cross_kv.infer()
        return window


class DecoderRuntime:
    """The decoder's forward pass over one growing sequence, with its key-value cache.

    Tokens go through in blocks where there is a graph for several at once, a single one through the one-token graph;
    the two share the cache, and so do those of windows of different lengths.
    """

    def __init__(
        self,
        windows: Iterable[Sequence["Stage"]],
        window: EncodedWindow,
        dims: ModelDimensions,
        mask: MaskConvention = OURS,
    ) -> None:
        """Decode `window` first.

        windows : the graphs for each length of windows: of one token a call, and of others where there are any
        """
        # How the graphs want to be told which slots are filled.
        self.mask = mask
        # Tokens in the cache.
        self._n_cached = 0
        # Cache slots that may hold something else than zeros, from the first on.
        self._n_dirty = 0
        names = key_values(dims.n_text_layer, "decoder")
        # Cached keys and values, each of shape (1, n_head, P, head), and those of beams, by name.
        cache: dict[str, ov.Tensor] = {}
        beam_cache: dict[str, ov.Tensor] = {}
        # By the encoder positions of the window.
        self._graphs: dict[int, _DecoderGraphs] = {}
        for stages in windows:
            graphs = _DecoderGraphs(stages, names, cache, beam_cache)
            self._graphs[graphs.n_audio_ctx] = graphs
        self._cache = [tensor.data for tensor in cache.values()]
        self._cache_type = next(iter(cache.values())).element_type
        self._n_slots = int(self._cache[0].shape[2])
        self._n_text_ctx = dims.n_text_ctx
        self.use(window)

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can hold."""
        return self._n_text_ctx

    @property
    def open_step(self) -> "OpenStep":
        """The one-token graph with its tensors, to find out how its mask is meant (see `masks`)."""
        return OpenStep(self._now.step, self._cache)

    def use(self, window: EncodedWindow) -> None:
        """Decode this window from now on."""
        # The graphs for windows of its length.
        self._now = self._graphs[window.n_audio_ctx]
        for name, tensor in window.tensors.items():
            for stage in self._now.stages:
                stage.bind_to_input(name.replace("present_", "past_", 1), tensor)
        self.begin()

    @property
    def block_tokens(self) -> int:
        """Tokens that one call can take."""
        return self._now.block.n_tokens

    @property
    def n_calls(self) -> int:
        """Calls of the graphs so far, whatever number of tokens each took."""
        return sum(stage.n_calls for graphs in self._graphs.values() for stage in graphs.stages)

    @property
    def n_fed(self) -> int:
        """Tokens of the sequence so far."""
        return self._n_cached

    @property
    def beams(self) -> "BeamDecoder | None":
        """The same decoder for several sequences at once, where it was compiled for them."""
        return self._now.beams

    def rewind(self, n_fed: int) -> None:
        """Forget the tokens behind the first `n_fed`, to continue those otherwise."""
        assert n_fed <= self._n_cached
        self._n_cached = n_fed

    def begin(self) -> None:
        """Forget the sequence and start a new one."""
        # Hidden slots are masked, but what they hold still meets the arithmetic: a NaN left there would spread.
        for slots in self._cache:
            slots[:, :, : self._n_dirty] = 0
        self._n_cached = self._n_dirty = 0

    def pollute_hidden_slots(self) -> None:
        """Fill every cache slot that is not in use with noise, for the check that the mask hides them."""
        noise = np.random.default_rng(0)
        for slots in self._cache:
            # The same in every slot: attention that averages many of them would average white noise away.
            pattern = 4.0 * noise.standard_normal((1, slots.shape[1], 1, slots.shape[3]), dtype=np.float32)
            slots[:, :, self._n_cached :] = as_type(pattern, self._cache_type)
        self._n_dirty = self._n_slots

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
            left = len(tokens) - position
            call = self._now.step if left == 1 else self._now.block
            n = min(left, call.n_tokens)
            self._forward(call, tokens[position : position + n])
            logits.append(call.read_logits(n))
            attention.append(call.read_attention(n))
            position += n
        if len(logits) == 1:
            return logits[0], attention[0]
        return np.concatenate(logits), np.concatenate(attention, axis=1)

    def start_beams(self) -> "BeamDecoder":
        """Let several sequences continue the one that was fed; only where there are `beams`."""
        beams = self._now.beams
        assert beams is not None
        beams.begin(self._cache, self._n_cached)
        return beams

    def _forward(self, call: "_Call", tokens: Sequence[int]) -> None:
        n, n_cached = len(tokens), self._n_cached
        call.ids[:n] = tokens
        # Padding behind the tokens is hidden from them; it only has to be valid.
        call.ids[n:] = 0
        np.minimum(call.offsets + n_cached, self._n_text_ctx - 1, out=call.positions, casting="same_kind")
        for i, row in enumerate(call.mask):
            self.mask.write(row, n_cached, i + 1, self._n_slots)
        call.stage.infer()
        # The very last position has no slot: nothing comes after it.
        n_kept = min(n, self._n_slots - n_cached)
        for slots, present in zip(self._cache, call.present, strict=True):
            slots[:, :, n_cached : n_cached + n_kept] = present[:, :, :n_kept]
        self._n_cached += n
        self._n_dirty = max(self._n_dirty, n_cached + n_kept)


class _DecoderGraphs:
    """The decoder's graphs for windows of one length; the caches are made by the first and shared by the others."""

    def __init__(
        self,
        stages: Sequence["Stage"],
        names: Sequence[str],
        cache: dict[str, ov.Tensor],
        beam_cache: dict[str, ov.Tensor],
    ) -> None:
        self.stages = stages
        for stage in stages:
            _bind_cache(stage, names, beam_cache if stage.graph.beams else cache)
        calls = [_Call(stage, names) for stage in stages if not stage.graph.beams]
        self.step = min(calls, key=lambda call: call.n_tokens)
        # What several tokens go through: one by one where there is no graph for them.
        self.block = max(calls, key=lambda call: call.n_tokens)
        slots = [tensor.data for tensor in beam_cache.values()]
        self.beams = next((BeamDecoder(_Call(stage, names), slots) for stage in stages if stage.graph.beams), None)
        self.n_audio_ctx = self.step.stage.graph.window_s * TOKENS_PER_SECOND


def _bind_cache(stage: "Stage", names: Sequence[str], cache: dict[str, ov.Tensor]) -> None:
    """Bind cached keys and values; those that are not there yet are made."""
    for name in names:
        if name in cache:
            stage.bind_to_input(f"past_{name}", cache[name])
        else:
            cache[name] = stage.bind_input(f"past_{name}")


class _Call:
    """A decoder graph with its tensors as arrays; looked up once, since a step takes less time than a few look-ups."""

    def __init__(self, stage: "Stage", names: Sequence[str]) -> None:
        self.stage = stage
        # Shape (T,), (T,) and (T, P + T).
        self.ids = stage.bind_input("input_ids").data[0]
        self.positions = stage.bind_input("position_ids").data
        self.n_tokens = len(self.ids)
        self.mask = stage.bind_input("attention_mask").data
        # Position of each token of the call after its first.
        self.offsets = np.arange(self.n_tokens)
        self._logits = stage.bind_output("logits").data
        # Keys and values of the call's own tokens, in the order of `names`.
        self.present = [stage.bind_output(f"present_{name}").data for name in names]
        # Attention of the alignment heads, shape (n_heads, T, n_audio_ctx).
        self._attention = stage.bind_output("cross_attention").data[0]

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

    def __init__(self, call: _Call, cache: Sequence[FloatArray]) -> None:
        self.stage = call.stage
        self._call = call
        # Cached keys and values, each of shape (1, n_head, P, head).
        self._cache = cache
        self._n_slots = int(self._cache[0].shape[2])
        # Which slots each sequence sees, shape (n_sequences, P).
        self._visible = np.zeros((1, self._n_slots), dtype=np.float32)
        # Length of all sequences.
        self._n_fed = 0

    @property
    def n_beams(self) -> int:
        """Most sequences at once."""
        return self._call.n_tokens

    @property
    def n_free(self) -> int:
        """Tokens, of all sequences together, that there is room for."""
        return int((~self._visible.any(axis=0)).sum())

    def begin(self, cache: Sequence[FloatArray], n_fed: int) -> None:
        """Start from one sequence whose first `n_fed` slots are given, each of shape (1, n_head, P, head)."""
        for mine, slots in zip(self._cache, cache, strict=True):
            # The very last position has no slot: nothing comes after it.
            n_kept = min(n_fed, slots.shape[2])
            mine[:, :, :n_kept] = slots[:, :, :n_kept]
            # What other sequences left is hidden, but a NaN there would spread.
            mine[:, :, n_kept:] = 0
        self._visible = np.zeros((1, self._n_slots), dtype=np.float32)
        self._visible[0, :n_fed] = 1
        self._n_fed = n_fed

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> FloatArray:
        """Continue sequences by a token each; those that nobody continues are forgotten.

        parents : for each token the number of the sequence that it continues, in the order of the call before

        Returns logits, shape (n, n_vocab), as a copy in float32. Raises InferenceError where the device fails.
        """
        call, n = self._call, len(tokens)
        visible = self._visible[list(parents)]
        call.ids[:n], call.ids[n:] = tokens, 0
        call.positions[:] = self._n_fed
        # Each sees itself, also the padding, which has to see something.
        call.mask[:, self._n_slots :] = np.eye(call.n_tokens, dtype=np.float32)
        call.mask[:n, : self._n_slots], call.mask[n:, : self._n_slots] = visible, 0
        self.stage.infer()
        free = np.flatnonzero(~visible.any(axis=0))[:n]
        assert len(free) == n, "more text than beam_slots() has room for"
        for slots, present in zip(self._cache, call.present, strict=True):
            slots[:, :, free] = present[:, :, :n]
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
        self._call.stage.infer()
        logits: FloatArray = self._call.read_logits(1)[0]
        return logits


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
        self.n_calls = 0
        self._request = compiled.create_infer_request()

    def bind_input(self, name: str) -> ov.Tensor:
        """Make a zeroed tensor for an input and bind it. Raises ModelError where there is no such input."""
        tensor = new_tensor(self._port(self.inputs, "input", name))
        self.bind_to_input(name, tensor)
        return tensor

    def bind_output(self, name: str) -> ov.Tensor:
        """Make a zeroed tensor for an output and bind it. Raises ModelError where there is no such output."""
        tensor = new_tensor(self._port(self.outputs, "output", name))
        self.bind_to_output(name, tensor)
        return tensor

    def bind_to_input(self, name: str, tensor: ov.Tensor) -> None:
        port = self._port(self.inputs, "input", name)
        self._check(port, name, tensor)
        self._request.set_tensor(port, tensor)
        self.tensors[name] = tensor

    def bind_to_output(self, name: str, tensor: ov.Tensor) -> None:
        self._request.set_tensor(self._port(self.outputs, "output", name), tensor)
        self.tensors[name] = tensor

    def infer(self) -> None:
        """Compute. Raises InferenceError where the device fails, or gives no answer for `HANGS_AFTER_S`."""
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
                " Whisper graph as docs/design.md has it; convert the model again with `streamer models convert`"
            )
        return ports[name]

    def _check(self, port: ov.ConstOutput, name: str, tensor: ov.Tensor) -> None:
        """Raise ModelError where one graph's output is no input for another."""
        if list(port.shape) != list(tensor.shape) or port.element_type != tensor.element_type:
            raise ModelError(
                f"the {self.graph} graph takes {name} as {describe(port)}, it would be given {describe(tensor)}: the"
                " graphs are from different models; fetch or convert all of them again"
            )


def describe(port: ov.ConstOutput | ov.Tensor) -> str:
    """Return shape and type of a port or a tensor, such as `[1, 80, 3000] f32`."""
    return f"{list(port.shape)} {port.element_type.get_type_name()}"


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


def new_tensor(port: ov.ConstOutput) -> ov.Tensor:
    """Make a zeroed tensor for a port."""
    tensor = ov.Tensor(port.element_type, port.shape)
    tensor.data[:] = 0
    return tensor
