"""A Whisper ready for use: a handle on its compiled graphs, which run, leave memory, come back and move."""

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import ReferenceType, ref

from streamer.errors import ConfigError, InferenceError
from streamer.outside import one_line
from streamer.whisper.device.compile import OnCompiled
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.sizes import WHOLE_WINDOW
from streamer.whisper.device.stage import no_op
from streamer.whisper.heads import are_known
from streamer.whisper.hub.progress import OnProgress
from streamer.whisper.loading import LoadOptions, load, where
from streamer.whisper.shared import GraphUser, SharedGraphs
from streamer.whisper.trust import Trial

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How often a watched model is tried out: it takes the time of one window.
WATCH_EVERY_S = 60.0

# Seconds of silence behind the sound of windows of less than 30 s, without an adapter and with one (docs/streaming.md).
SILENCE_S, ADAPTED_SILENCE_S = 2.0, 1.0


def load_model(
    name: str,
    options: LoadOptions | None = None,
    *,
    on_download: OnProgress = lambda progress: None,
    on_compiled: OnCompiled = lambda done, total: None,
) -> "WhisperModel":
    """Find a model or fetch it, check that its parts belong together, compile it, and try it out.

    name : a path, the name of a model that is here, or one of the Hub's

    Raises what `loading.load` raises.
    """
    options, begin = options or LoadOptions(), time.monotonic()
    loaded, later = load(name, options, on_download, on_compiled)
    graphs = SharedGraphs(name, options, loaded)
    model = WhisperModel(graphs)
    runtime = model.runtime
    logger.info(
        "model %s on %s, weights %s, windows of %s s%s, ready in %.1f s",
        model.name,
        where(loaded),
        model.weights,
        ", ".join(map(str, runtime.windows_s)),
        " with an adapter" if model.adapter else "",
        time.monotonic() - begin,
    )
    if later is not None:
        graphs.move_to(later)
    return model


class WhisperModel(GraphUser):
    """What decoding needs: a model that was loaded, or a fork of one, with caches and buffers of its own."""

    def __init__(self, graphs: SharedGraphs, windows_s: Sequence[int] = (), n_buffers: int = 0) -> None:
        """Take what was read of a model, and its graphs (see `GraphUser`)."""
        super().__init__(graphs, windows_s, n_buffers)
        source = graphs.prepared.source
        self.name = source.name
        # What it is published as, such as openai/whisper-base.en; empty if that is not known.
        self.origin = source.origin
        self.dims = source.graphs.dims
        self.tokenizer = source.tokenizer
        self.generation = source.generation
        self.n_beams = graphs.prepared.n_beams
        self.weights = graphs.prepared.weights
        # The adapter of windows of less than 30 s.
        self.adapter = source.adapter.path if source.adapter else None
        # Whether all graphs were found compiled.
        self.from_cache = self.runtime.compiled.from_cache
        # What tries its devices out.
        self._trial: Trial | None = None

    @property
    def silence_s(self) -> float:
        """Seconds of silence behind the sound of a short window, without which the model does not end its text."""
        if self.adapter is not None:
            return ADAPTED_SILENCE_S
        return 0.0 if self.generation.windows_s else SILENCE_S  # it may have been trained without

    @property
    def knows_heads(self) -> bool:
        """Whether it is known which attention heads follow the audio; if not, many are averaged."""
        return are_known(self.generation.alignment_heads, self.dims)

    @property
    def state(self) -> str:
        """Whether it is loaded, unloaded or loading, in a word."""
        return "loaded" if self.loaded else "loading" if self.recovering else "unloaded"

    def free(self) -> None:
        """Let go of the graphs, see `GraphUser`."""
        self._trial = None
        super().free()

    def run(self, compute: Callable[[Runtime], T]) -> T:
        """Compute with the present runtime, and if its device fails, once more with a new one.

        `compute` has to begin anew when it is called again: of the failed runtime only windows that it has encoded are
        good. Raises InferenceError if the device fails again, or no other is left, and what `wake` raises.
        """
        runtime = self.wake()
        try:
            return compute(runtime)
        except InferenceError as error:
            self.recover(runtime, error)
            return compute(self.wake())

    def fork(self, windows_s: Sequence[int] = WHOLE_WINDOW, n_beams: int = 1, n_buffers: int = 1) -> "WhisperModel":
        """Return the model once more, for another thread: compiled graphs are shared, caches and buffers are not.

        n_beams : that it may follow, if the graphs can
        n_buffers : windows that it has room for; an engine needs `N_BUFFERS`
        """
        fork = WhisperModel(self._graphs, windows_s, n_buffers)
        fork.n_beams = min(max(n_beams, self.n_beams), fork.runtime.max_beams)
        return fork

    def watch(self, before: Callable[[], None] = no_op) -> None:
        """Try accelerators out in a thread from now on: one that begins to compute nonsense or to hang is given up.

        before : called before each run of a graph for that; it may wait
        """
        if self.runtime.compiled.others_may_come:
            threading.Thread(target=_watch, args=(ref(self), before), name="watch", daemon=True).start()

    def try_out(self, before: Callable[[], None] = no_op) -> None:
        """Give up a device that computes something else from speech than when it was first tried out, or hangs."""
        runtime = self.runtime
        if {stage.device for stage in runtime.stages} <= {"CPU"}:
            return
        if self._trial is None or self._trial.of is not runtime:
            self._trial = Trial(runtime, self.tokenizer.special.start_of_transcript, before)
        if (problem := self._trial.problem()) is not None:
            self.recover(runtime, problem)

    def choose_language(self, wanted: str, task: str, languages: Sequence[str] = ()) -> str:
        """Return the language to decode in (see `Tokenizer.choose_language`); warn of a task it was not trained for.

        languages : that `auto` may find; empty: all

        Raises ConfigError if the model does not know the language, or cannot translate.
        """
        if task == "both" and self.tokenizer.known_languages == ["en"]:
            raise ConfigError(f"task is both, and {self.name} knows English only: choose a multilingual model")
        known_task = "translate" if task == "both" else task
        for code in languages:
            self.tokenizer.start_sequence(code, known_task)
        only = wanted == "auto" and len(languages) == 1
        language = self.tokenizer.choose_language(languages[0] if only else wanted, known_task)
        dims = self.dims
        # large-v3-turbo, distil-whisper. A warning: what they were fine-tuned for since, no file says.
        if task != "transcribe" and dims.n_text_layer < dims.n_audio_layer // 2:
            warn_of_translation(self.name, dims.n_text_layer, dims.n_audio_layer)
        return language


@functools.cache  # said once, however many sessions and recordings ask for it
def warn_of_translation(name: str, n_text_layer: int, n_audio_layer: int) -> None:
    logger.warning(
        "%s has %d layers in its decoder, %d in its encoder, as turbo has, which was not trained to translate:"
        " the text may be in the language that is spoken; choose medium or large-v3 for English",
        name,
        n_text_layer,
        n_audio_layer,
    )


def _watch(watched: ReferenceType[WhisperModel], before: Callable[[], None]) -> None:
    while (model := watched()) is not None:
        try:
            model.try_out(before)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything, and may work again later
            logger.warning("the devices of %s could not be tried out: %s", model.name, one_line(error))
        del model
        time.sleep(WATCH_EVERY_S)
