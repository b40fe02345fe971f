"""Encoder, cross-KV and decoder of one model, ready to compute.

Windows are encoded into rows of memory that we own, so that one can be encoded while another is being decoded, and one
that was encoded stays good when its device is lost.
"""

import copy
from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov

from streamer.arrays import FloatArray
from streamer.constants import FRAMES_PER_SECOND, HOP_LENGTH, TOKENS_PER_SECOND
from streamer.whisper.device.allocator import give_back_mapped
from streamer.whisper.device.compile import Compiled
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.sizes import Sizes
from streamer.whisper.device.stage import Stage, to_float32
from streamer.whisper.device.windows import EncodedWindow, WindowBuffers
from streamer.whisper.generation import MIN_WINDOW_S
from streamer.whisper.graphs.ports import STAGES, key_values
from streamer.whisper.result import N_BUFFERS

# Steps of the lengths that graphs for any length encode: on a CPU each takes 5 MB of base's for as long as it runs.
LENGTHS_STEP_S = 2


class Runtime:
    """Runs compiled graphs, with buffers and caches of its own.

    Encoding and decoding may each be used by one thread at a time, and the two at once.
    """

    def __init__(
        self,
        compiled: Compiled,
        *,
        n_buffers: int = N_BUFFERS,
        windows_s: Sequence[int] | None = None,
    ) -> None:
        """Make infer requests of the graphs for windows of these lengths in seconds; None: of all.

        Raises ModelError if a graph lacks a port.
        """
        self.dims = compiled.dims
        # Device of each stage, as in the `ready` event.
        self.devices = compiled.devices
        # Lengths of the windows that were asked for, in seconds, the shortest first; the last is 30.
        self.windows_s = tuple(windows_s or compiled.windows_s)
        # Empty if it is without graphs.
        self.stages = [
            Stage(sizes, graph, self.devices[sizes.stage])
            for sizes, graph in compiled.graphs.items()
            if sizes.window_s in (None, *self.windows_s)
        ]
        self._any_length = {stage.sizes.stage for stage in self.stages if stage.sizes.window_s is None} == set(STAGES)
        # Lengths that are encoded: none between the longest of the short ones and 30 s. If another device may come to
        # decode a window, it has one of the lengths that were asked for.
        self._lengths_s = self.windows_s
        if self._any_length and not compiled.others_may_come:
            *shorter_s, whole_s = self.windows_s
            steps = range(shorter_s[0], shorter_s[-1], LENGTHS_STEP_S) if shorter_s else ()
            self._lengths_s = (*steps, *shorter_s[-1:], whole_s)
        # Lengths that were encoded before.
        self._known_lengths_s: set[int] = set()
        # Its graphs, for more runtimes of them.
        self.compiled = compiled
        self._encoder = self._stage("encoder", self.windows_s[-1])
        cross_kv = self._stage("cross_kv", self.windows_s[-1])
        names = key_values(self.dims.n_text_layer, "encoder")
        self._types = {name: cross_kv.port(f"present_{name}").element_type for name in names}
        self._buffers = WindowBuffers(self.dims, self._types, n_buffers)
        decoders = [stage for stage in self.stages if stage.sizes.stage == "decoder" and not stage.sizes.logits]
        projection = next((stage for stage in self.stages if stage.sizes.logits), None)
        lookup = compiled.stages["decoder"].lookup
        tokens = None if lookup is None else Stage(Sizes("decoder", None), lookup, "CPU")
        self.decoder = Decoder(decoders, self.dims, tokens, projection)
        self.decoder.use(self.window(self.windows_s[-1]))

    def without_graphs(self) -> "Runtime":
        """Return what is known of it without graphs and buffers: dimensions, devices and lengths of windows."""
        bare = copy.copy(self)
        bare.stages = []
        # A type keeps the port that it is of alive, and that its graph.
        del bare.decoder, bare.compiled, bare._encoder, bare._buffers, bare._types
        return bare

    def another(self, windows_s: Sequence[int] | None = None, n_buffers: int = 1) -> "Runtime":
        """Return a runtime of the same graphs, with room for that many windows, of these lengths; None: of all."""
        return Runtime(self.compiled, n_buffers=n_buffers, windows_s=windows_s)

    @property
    def max_beams(self) -> int:
        """Sequences that beam search can follow at once, on any device that may come to compute."""
        return self.compiled.n_beams if self.compiled.others_may_come else self.decoder.max_beams

    @property
    def last_hidden_state(self) -> FloatArray:
        """The encoder's output for the window encoded last, shape (n_audio_ctx, n_audio_state), as a copy."""
        hidden: FloatArray = to_float32(self._encoder.output("last_hidden_state"))[0]
        return hidden

    def call_before(self, before: Callable[[], None]) -> None:
        """Have something called before each run of a graph, by its thread; what it raises ends the computation."""
        for stage in self.stages:
            stage.before = before

    def warm_up(self) -> None:
        """Have graphs for any size copy their weights: their first run does that, and the first caption would wait.

        Raises InferenceError if a device fails.
        """
        if self._any_length:
            window = self.encode(np.zeros((self.dims.n_mels, MIN_WINDOW_S * FRAMES_PER_SECOND), np.float32), 0)
            self.decoder_of(window).feed([0])

    def frames_for(self, n_samples: int) -> int:
        """Return the frames of the shortest window that this many samples fit into, of 30 s at most."""
        lengths = (window_s * FRAMES_PER_SECOND for window_s in self._lengths_s)
        whole = self._lengths_s[-1] * FRAMES_PER_SECOND
        return next((n_frames for n_frames in lengths if n_samples <= n_frames * HOP_LENGTH), whole)

    def reserve(self, n_rows: int) -> None:
        """Have this many rows at least, for windows that are decoded together."""
        if self._buffers.n_rows < n_rows:
            self._buffers = WindowBuffers(self.dims, self._types, n_rows)

    def window(self, window_s: int, row: int = 0) -> EncodedWindow:
        """Return a row as a window of a length, with whatever is in it."""
        return EncodedWindow(self._buffers, row, window_s * TOKENS_PER_SECOND)

    def decoder_of(self, *windows: EncodedWindow) -> Decoder:
        """Return the decoder, ready to decode windows, which another runtime of the model may have encoded.

        Several windows are in neighbouring rows (see `reserve`), and take a decoder that `takes_batches`.
        """
        self.decoder.use(*windows)
        return self.decoder

    def encode(self, mel: FloatArray, row: int) -> EncodedWindow:
        """Encode a window into a row.

        mel : shape = (n_mels, n_frames), as many frames as `frames_for` returns: 3000 are 30 s

        Raises InferenceError if the device fails.
        """
        window_s = mel.shape[1] // FRAMES_PER_SECOND
        if window_s not in self._known_lengths_s:
            # Runs of a new size read weights again that they have copies of.
            give_back_mapped()
            self._known_lengths_s.add(window_s)
        window = self.window(window_s, row)
        self._encoder, cross_kv = self._stage("encoder", window_s), self._stage("cross_kv", window_s)
        self._encoder.infer({"input_features": self._encoder.tensor("input_features", mel[np.newaxis])})
        hidden = self._encoder.output("last_hidden_state")
        if not cross_kv.sizes.by_second:
            kept = {f"present_{name}": tensor for name, tensor in window.tensors.items()}
            cross_kv.infer({"encoder_hidden_states": hidden}, kept)
            return window
        shape = ov.Shape([1, self.dims.n_text_head, TOKENS_PER_SECOND, self.dims.text_head_size])
        outputs = {f"present_{name}": ov.Tensor(kind, shape) for name, kind in self._types.items()}
        rows = [tensor.data for tensor in window.tensors.values()]
        for begin in range(0, window.n_audio_ctx, TOKENS_PER_SECOND):
            second = slice(begin, begin + TOKENS_PER_SECOND)
            part = cross_kv.tensor("encoder_hidden_states", hidden.data[:, second])
            cross_kv.infer({"encoder_hidden_states": part}, outputs)
            for row_values, found in zip(rows, outputs.values(), strict=True):
                row_values[:, :, second] = found.data
        return window

    def _stage(self, stage: str, window_s: int) -> Stage:
        """Return the graph for windows of a length: one for it alone, else one for any."""
        found = {other.sizes.window_s: other for other in self.stages if other.sizes.stage == stage}
        return found.get(window_s) or found[None]
