"""What makes events of files: the offline decoder, as openai-whisper decodes, or the streaming engine."""

import contextlib
import logging
import queue
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

from streamer.after.correct.spelling import Spelling
from streamer.after.postprocessing import open_glossary
from streamer.after.speakers.live import RecordedSpeakers, label_final
from streamer.audio.sources.file import Recording, read_audio
from streamer.daemon.sessions import SessionSource, open_session, ready_event, tell_error, write_all
from streamer.engine.decoder import make_engine
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.engine.live_session import LiveSession
from streamer.errors import InferenceError, TruncatedAudioError
from streamer.events import End, Event, Gap, seconds
from streamer.offline import transcribe
from streamer.outside import one_line
from streamer.settings.table import Settings
from streamer.setup.loading import load_chosen
from streamer.setup.progress import OnProgress
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import decode_options

MOST_NAMED_GAPS = 5  # of a recording, in its warning

logger = logging.getLogger(__name__)

# Transcribes a file: yields the events of its session, and reports progress. Raises TruncatedAudioError after the last
# event of a truncated file.
Transcriber = Callable[[Path, OnProgress], Generator[Event]]


@contextlib.contextmanager
def loaded(settings: Settings, track: int, *, streaming: bool, words: bool) -> Iterator[Transcriber]:
    """Load the model of the settings; yield what transcribes files with it. Raises StreamerError.

    track : which audio track of each file, from 1 on
    streaming : whether as live captions are made
    words : whether finals need words
    """
    settings, model = load_chosen(settings, live=streaming)
    if not streaming:
        yield Offline(settings, model, track, words=words).events
        return
    engine = make_engine(model, settings.decoding)
    engine.start()
    try:
        yield Streaming(settings, model, engine, track).events
    finally:
        engine.stop()


class Offline:
    """Transcribes files as openai-whisper does: window after window."""

    def __init__(self, settings: Settings, model: WhisperModel, track: int, *, words: bool) -> None:
        self._settings = settings
        self._model = model
        self._track = track
        self._decoding = decode_options(settings.decoding, model, settings.speech, words=words)
        self._glossary = open_glossary(settings, model)
        self._speakers = RecordedSpeakers(settings) if settings.speakers.enabled else None

    def events(self, path: Path, on_progress: OnProgress) -> Generator[Event]:
        """Transcribe a file; see `Transcriber`."""
        recording = Recording(path, self._track)
        blocks, diarization = recording.read(), None
        if self._speakers is not None:
            blocks, diarization = self._speakers.recognize(blocks)
        log = EventLog(path.name, self._settings.server.history_events)
        yield log.append(ready_event(self._model, self._settings.decoding.language))
        unclear: list[Gap] = []
        n_published = 0

        def note_unclear(start: int, end: int) -> None:
            unclear.append(Gap(start=seconds(start), end=seconds(end), reason="unclear"))

        for final in transcribe(
            self._model,
            blocks,
            self._decoding,
            on_progress=lambda position: on_progress(position, recording.n_samples),
            on_language=lambda language, probabilities: _log_language(path, language, probabilities),
            on_unclear=note_unclear,
        ):
            due = [gap for gap in unclear[n_published:] if gap.start < final.start]
            n_published += len(due)
            for gap in due:
                yield log.append(gap)
            if diarization is not None:
                final = label_final(final, diarization)
            if self._glossary is not None:
                final = self._glossary.spelled(final, self._settings.decoding.task)
            yield log.append(final)
        for gap in unclear[n_published:]:
            yield log.append(gap)
        yield log.append(End(time=seconds(recording.n_samples)))
        _warn_of_gaps(path, unclear)
        if recording.truncated is not None:
            raise recording.truncated


class Streaming:
    """Transcribes files as live captions are made, as fast as the engine takes the audio."""

    def __init__(self, settings: Settings, model: WhisperModel, engine: Engine[EncodedWindow], track: int) -> None:
        self._settings = settings
        self._model = model
        self._engine = engine
        self._track = track
        self._glossary = open_glossary(settings, model)
        self._language = model.choose_language(settings.decoding.language, settings.decoding.task)

    def events(self, path: Path, on_progress: OnProgress) -> Generator[Event]:
        """Transcribe a file; see `Transcriber`.

        Raises InferenceError after the last event of a file of which something could not be transcribed.
        """
        log = EventLog(path.name, self._settings.server.history_events)
        followers = [Spelling(self._glossary, self._language)] if self._glossary is not None else []
        source = SessionSource(kind=AudioKind.RECORDED, followers=followers)
        live = open_session(self._settings, self._model, log, source)
        gaps: list[Gap] = []
        truncated: TruncatedAudioError | None = None
        for event in self._played(live, log, path, on_progress):
            if isinstance(event, TruncatedAudioError):
                truncated = event
                continue
            if isinstance(event, Gap):
                gaps.append(event)
            yield event
        _warn_of_gaps(path, [gap for gap in gaps if gap.reason == "unclear"])
        if truncated is not None:
            raise truncated
        lost = [gap for gap in gaps if gap.reason != "unclear"]
        if lost or live.failing:
            lost_s = sum(gap.end - gap.start for gap in lost)
            raise InferenceError(
                f"{lost_s:.1f} s of {path} could not be transcribed: expected all of it; the messages above say why"
            )

    def _played(
        self, live: LiveSession, log: EventLog, path: Path, on_progress: OnProgress
    ) -> Iterator[Event | TruncatedAudioError]:
        """Play a file to a session; yield its events, and before the last of them the error of a truncated file."""
        # Events are yielded by this thread, so that an output that cannot be written to ends the command.
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        try:
            yield from log.subscribe(events.put, after=0).backlog
            self._engine.add(live)
            for block in read_audio(path, lambda error: tell_error(log, error), self._track):
                write_all(live, block)
                on_progress(live.position, None)
                while not events.empty():
                    yield events.get()
                if live.over:
                    break  # it has failed
        except TruncatedAudioError as error:
            yield error
        except BaseException:
            live.close()
            raise
        live.end()
        event: Event | None = None
        while not isinstance(event, End):
            try:
                event = events.get(timeout=0.2)  # in steps, so that Ctrl-C gets through on every system
                yield event
            except queue.Empty:
                on_progress(live.position, live.ring.head)


def _warn_of_gaps(path: Path, gaps: Sequence[Gap]) -> None:
    """Warn of speech without text, if there is any."""
    if not gaps:
        return
    named = [f"{gap.start:.1f} to {gap.end:.1f} s" for gap in gaps[:MOST_NAMED_GAPS]]
    if others := len(gaps) - len(named):
        named.append(f"and {others} more")
    logger.warning("%s: speech without text: %s", one_line(path.name), ", ".join(named))


def _log_language(path: Path, language: str, probabilities: Mapping[str, float]) -> None:
    others = sorted(probabilities, key=probabilities.__getitem__, reverse=True)[1:3]
    beside = "".join(f", {code} {probabilities[code]:.0%}" for code in others)
    logger.info("%s: language %s %.0f%%%s", one_line(path.name), language, 100 * probabilities[language], beside)
