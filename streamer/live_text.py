"""Live text in a program of one's own, without a daemon: `streamer.LiveText`."""

import asyncio
import contextlib
import secrets
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import Any, Self

from numpy.typing import NDArray

from streamer.audio.pcm import BLOCK_FRAMES, PcmDecoder
from streamer.audio.sources.base import Source, SourceCallbacks
from streamer.audio.sources.microphone import Microphone
from streamer.check import check_options
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import SessionSource, open_session, tell_error, write_all
from streamer.engine.decoder import make_engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.engine.live_session import LiveSession
from streamer.errors import AudioFileError, ConfigError, StreamerError, UsageError
from streamer.events import End, Error, Event, Final, Partial
from streamer.library import as_frames, option
from streamer.settings.options import SessionOptions, with_options
from streamer.settings.registry import SETTINGS
from streamer.settings.table import AUTO, ModelSettings, Settings
from streamer.setup.loading import load_chosen
from streamer.setup.models import in_thread
from streamer.whisper.model import WhisperModel
from streamer.whisper.result import N_BUFFERS

WAKE_S = 0.2  # how often a wait of the main thread looks up, so that Ctrl-C gets through on every system


class LiveEvents:
    """The events of a `LiveText`: `for event in events`, or `async for`, in any number of threads and tasks at once.

    Each loop begins with the session's first event and ends after `end`. A slow loop misses only partials that have
    newer ones. A loop that begins late is given what is kept: all other events, up to 10,000.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def __iter__(self) -> Generator[Event, None, None]:
        arrived = threading.Event()
        for event in _follow(self._log, arrived.set):
            if event is not None:
                yield event
            else:
                arrived.wait(WAKE_S)
                arrived.clear()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        arrived, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(arrived.set)

        for event in _follow(self._log, wake):
            if event is not None:
                yield event
            else:
                await arrived.wait()
                arrived.clear()


def _follow(log: EventLog, wake: Callable[[], object]) -> Generator[Event | None, None, None]:
    """Yield the events of a log, and None if the next comes after `wake` is called, by any thread."""
    waiting: deque[Event] = deque()
    lock = threading.Lock()

    def put(event: Event) -> None:
        with lock:
            if waiting and isinstance(event, Partial) and isinstance(waiting[-1], Partial):
                waiting.pop()
            waiting.append(event)
        wake()

    subscription = log.subscribe(put, after=0)
    event: Event | None = None
    try:
        for event in subscription.backlog:
            yield event
        while not isinstance(event, End):
            with lock:
                event = waiting.popleft() if waiting else None
            yield event
    finally:
        subscription.cancel()


# The options, which are those of a client that need no daemon, by name, and the setting that says what each may be.
_OPTIONS = {
    "language": "decoding.language",
    "task": "decoding.task",
    "beam_size": "decoding.beam_size",
    "initial_prompt": "decoding.initial_prompt",
    "hotwords": "decoding.hotwords",
    "vad_threshold": "speech.threshold",
    "min_silence_s": "speech.min_silence_s",
    "pace_s": "stream.pace_s",
}


class LiveText:
    """Text of live audio, in this process: audio is written, and events are read, while people speak.

        with LiveText("base", language="en") as live:
            live.listen()
            for event in live.events():
                if event.type == "final":
                    print(event.text)

    In an asynchronous program: `async with LiveText() as live`, `async for event in live.events()`, and in a thread
    what may wait: `await asyncio.to_thread(live.write, samples)`, `await asyncio.to_thread(live.end)`.

    Leaving the block ends all at once; what is not final by then is dropped. `text` and `events` remain.
    """

    def __init__(
        self,
        model: str | WhisperModel = AUTO,
        *,
        device: str = "AUTO",
        sample_rate: int = SAMPLE_RATE,
        **options: object,
    ) -> None:
        """Check the options. The model is loaded when the block is entered, which may take minutes the first time.

        model : name, path or auto, as for `load_model`; or what `load_model(..., live=True)` returns, which several
            may share
        device : AUTO, NPU, GPU, CPU or a device's full name; of a loaded model its own
        sample_rate : of what is written, in Hz
        options : as `stream` takes them: language, task, beam_size, initial_prompt, hotwords, vad_threshold,
            min_silence_s, pace_s

        Raises ConfigError for an invalid option, ProtocolError for an invalid sample rate.
        """
        known = {name: SETTINGS[setting] for name, setting in _OPTIONS.items()}
        given = {name: value for name, value in options.items() if value is not None}
        chosen: dict[str, Any] = {name: option(known.get(name), name, value) for name, value in given.items()}
        if chosen.get("task") == "both":
            raise ConfigError("task is both, which needs a daemon: expected transcribe or translate")
        name = model if isinstance(model, str) else model.name
        settings = Settings(model=ModelSettings(name=name, device=device))
        self._options = SessionOptions(**chosen)
        self._settings = with_options(settings, self._options)
        check_options(self._settings, streaming=True)
        self._model = model
        self._log = EventLog(secrets.token_urlsafe(12), settings.server.history_events)
        # What is final, and the newest partial of the open segment.
        self._text, self._draft = "", ""
        # Set after `end`.
        self._over = threading.Event()
        # Held while audio is written, so that it stays in order.
        self._writing = threading.Lock()
        self._pcm = PcmDecoder("f32le", sample_rate, 1)
        # Whether audio is no longer taken; what is listened to.
        self._ended = False
        self._source: Source | None = None
        # None before the block is entered; what is to be done when it is left.
        self._session: LiveSession | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Load the model, and begin.

        Raises what `load_model` raises, and ConfigError if the model cannot do what the options ask for.
        """
        if self._session is not None or self._ended:
            raise UsageError("a LiveText was entered a second time: make another for other audio")
        with contextlib.ExitStack() as stack:
            settings, model = self._settings, self._model
            if isinstance(model, str):
                settings, model = load_chosen(settings, at_once=True)
            else:
                model = model.fork(model.runtime.windows_s, n_buffers=N_BUFFERS)
                model.n_beams = settings.decoding.beam_size or min(model.n_beams, model.generation.stream_beams)
            stack.callback(model.unload)
            engine = make_engine(model, settings.decoding)
            stack.callback(engine.stop)
            engine.start()
            source = SessionSource(kind=AudioKind.EITHER, options=self._options)
            self._session = open_session(settings, model, self._log, source)
            self._log.subscribe(self._see)
            engine.add(self._session)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End at once. What is not final is dropped."""
        session, self._session, self._ended = self._session, None, True
        assert session is not None, "it was entered"
        session.close()  # first: whoever waits for room goes on
        self._log.close()
        self._stack.close()

    async def __aenter__(self) -> Self:
        opening = in_thread("load", self.__enter__)
        try:
            return await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda opened: opened.exception() or self.__exit__())
            raise

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)

    @property
    def text(self) -> str:
        """All that is final so far, in one line."""
        return self._text

    @property
    def draft(self) -> str:
        """What is being said, and not final yet: the newest partial's text. Its end may still change."""
        return self._draft

    def events(self) -> LiveEvents:
        """Return the events of the session, from the first to `end`, to be read with `for` or `async for`.

        They are those of docs/protocol.md: ready, speech, partial, final, gap, error and end.
        """
        return LiveEvents(self._log)

    def write(self, samples: NDArray[Any]) -> None:
        """Write the next audio, of any length, from any thread.

        samples : shape (n,) or (n, channels), at the `sample_rate`: 16-bit integers, or floats from -1 to 1

        Audio that comes faster than it can be spoken is a recording: this waits while more than a minute of it is not
        transcribed yet. Of audio at the pace of speech, what the machine is too slow for becomes a gap.

        Raises AudioFileError if the samples are something else, or their channels are not those of before; UsageError
        before the block was entered, after `end`, or after `listen`.
        """
        frames = as_frames(samples)
        with self._writing:
            session = self._open()
            channels = frames.shape[1]
            if channels != self._pcm.channels:
                if self._pcm.frames_decoded:
                    raise AudioFileError(
                        f"samples have {channels} channels and had {self._pcm.channels} before: expected as many"
                    )
                self._pcm = PcmDecoder("f32le", self._pcm.sample_rate, channels)
            for first in range(0, len(frames), BLOCK_FRAMES):
                if session.over:
                    break
                write_all(session, self._pcm.decode(frames[first : first + BLOCK_FRAMES].tobytes()))
            for code, message in self._pcm.take_problems():
                self._log.append(Error(code=code, message=message, fatal=False))

    def listen(self, source: str | Source = "") -> None:
        """Write what a microphone records, from now on, in a thread, until `end` or the end of the block.

        source : number or part of the name of a microphone; empty: the system's default; or another source of
            `streamer.audio.sources`, such as `SystemSound()`

        Raises AudioDeviceError if there is no such microphone; UsageError as `write` does.
        """
        source = Microphone(source) if isinstance(source, str) else source
        with self._writing:
            session = self._open()
            keep_up = session.write if source.realtime else partial(write_all, session, cancelled=lambda: self._ended)
            source.start(
                SourceCallbacks(
                    on_audio=keep_up,
                    on_gap=session.write_gap,
                    on_error=partial(tell_error, self._log),
                    on_end=partial(self._source_ended, session),
                )
            )
            self._source = source
            self._stack.callback(source.stop)

    def end(self) -> None:
        """End the audio, and wait until all of it is final; `events` ends. Harmless the second time.

        Raises UsageError before the block was entered.
        """
        with self._writing:
            source, self._source = self._source, None
            if not self._ended:
                session = self._open()
                self._ended = True
                if source is not None:
                    source.stop()
                write_all(session, self._pcm.finish())
                session.end()
        while not self._over.wait(WAKE_S):
            pass

    def _open(self) -> LiveSession:
        """Return the session, if it takes audio by `write` or `listen`. Raises UsageError if not."""
        session = self._session
        if self._ended or (session is not None and session.over):
            raise UsageError("this LiveText has ended: expected no more audio; make another one")
        if session is None:
            raise UsageError("a LiveText takes audio within its block only: expected `with LiveText(...) as live:`")
        if self._source is not None:
            raise UsageError(f"this LiveText listens to {self._source.name}: expected no other audio; make another one")
        return session

    def _source_ended(self, session: LiveSession, error: StreamerError | None) -> None:
        if error is not None:
            self._log.append(Error(code=error.code, message=str(error), fatal=True))
        self._ended = True
        session.end()

    def _see(self, event: Event) -> None:
        match event:
            case Partial():
                self._draft = event.text
            case Final():
                self._text = (self._text + "".join(word.word for word in event.words)).lstrip()
                self._draft = ""
            case End():
                self._over.set()
