"""OpenAI's Realtime transcription (`/v1/realtime`): JSON in text frames both ways, audio as base64 in it.

A client changes the configuration, appends audio to the *buffer*, and reads *items*, each the text of a span of audio.
With turn detection an item is an utterance, committed at its end. Without, it is the audio between two commits of the
client. Its text is sent as deltas of stable words, which join to the transcript that completes the item. An invalid
message is answered by an `error`, and the session continues.
"""

import itertools
import math
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from streamer.audio.pcm import BYTES_PER_SAMPLE
from streamer.errors import StreamerError, UsageError
from streamer.events import End, Error, Event, Final, Flushed, Gap, Partial, Ready, Speech
from streamer.protocols import adapter, openai_messages
from streamer.protocols.adapter import Action, Change, Do, Hangup, Open, Say, Write, say_json
from streamer.protocols.native import StreamStart
from streamer.protocols.openai_messages import Append, Clear, Commit, InvalidRequestError, SessionConfig, Update
from streamer.protocols.text import OPENAI_MODELS, note_model

MIN_COMMIT_S = 0.1

# Speech may be reported to begin this much before the audio in which it was detected.
LOOKBACK_S = 0.5

# A probability below this is rounded to 0, which has no logarithm.
LEAST_PROBABILITY = 0.0005


def make(query: adapter.Query, headers: Mapping[str, str]) -> "Realtime":
    """Make the adapter of a connection. Raises UsageError for an intent other than transcription."""
    intent = query.get("intent", "transcription")
    if intent != "transcription":
        raise UsageError(f"intent is {intent!r:.40}: expected transcription, as this daemon only transcribes")
    return Realtime()


@dataclass(slots=True)
class _Item:
    """A span of audio and its text."""

    id: str
    start_s: float

    # Infinite until it is committed or cleared.
    end_s: float = math.inf

    # Whether detected speech began it, not the client's audio.
    spoken: bool = False

    # Whether the client has cleared it: later messages do not mention it.
    cleared: bool = False

    # The item that was committed before it.
    previous: str | None = None

    # The words of its deltas, each with its log probability (natural logarithm).
    words: list[tuple[str, float]] = field(default_factory=list)

    # Why some of its audio was not transcribed; empty if all was.
    lost: str = ""


class Realtime(adapter.Adapter):
    """One client's connection."""

    def __init__(self) -> None:
        self._id = secrets.token_hex(8)
        self._n_events = 0
        self._session = SessionConfig()
        # The configuration before the newest update, and the id of that message.
        self._before = self._session
        self._update_id: str | None = None
        # Whether a session of ours was requested; whether it was refused and another update is needed.
        self._opened = self._refused = False
        # The daemon's model, once known.
        self._model = ""
        # Positions in the audio: its end, the start of the buffer, the end of the client's last commit or clear.
        self._sent_s = self._buffer_s = self._ended_s = 0.0
        # The open item; items that are committed or cleared, and not complete.
        self._item: _Item | None = None
        self._waiting: list[_Item] = []
        # Number of committed items, and the id of the last one.
        self._n_committed = 0
        self._previous: str | None = None
        # Commits of a client with turn detection: start and end of its buffer, and the number of items at that time.
        self._commits: deque[tuple[float, float, int]] = deque()
        # The newest segment, and how many characters of it were sent as deltas.
        self._segment = self._n_sent_chars = 0

    def begin(self) -> Sequence[Action]:
        return [self._show("created")]

    def receive(self, message: str | bytes) -> Sequence[Action]:
        event_id = None
        try:
            said = openai_messages.read_message(message)
            event_id = said.event_id
            match said:
                case Update(session=patch):
                    return self._update(patch, event_id)
                case Append(audio=audio):
                    return self._append(audio)
                case Commit():
                    return self._commit()
                case Clear():
                    return self._clear()
        except InvalidRequestError as error:
            return [self._say_invalid(error, event_id or error.event_id)]

    def on_event(self, event: Event) -> Sequence[Action]:
        match event:
            case Ready(model=model):
                self._model = model
                return self._check_model()
            case Speech(state=state, time=time):
                return self._start(time) if state == "start" else self._stop(time)
            case Partial():
                return self._deltas(event)
            case Final(end=end):
                return [*self._deltas(event), *self._complete(end)]
            case Gap(end=end):
                self._lose(event)
                return self._complete(end)
            case Flushed(time=time):
                until_s = time + adapter.FLUSH_SKEW_S
                return [*self._answer_commits(until_s), *self._complete(until_s)]
            case Error(code=code, message=message, fatal=True):
                self.fail(event)
                return [self._say_failure(code, message)]
            case End():
                return [*self._complete(math.inf), self.hangup]
        return []

    def refused(self, error: StreamerError) -> Sequence[Action]:
        """Report why there is no session; after a usage error the client may request another."""
        if isinstance(error, UsageError):
            self._opened, self._refused, self._item, self._sent_s = False, True, None, 0.0
            return [self._say_invalid(InvalidRequestError("invalid_value", str(error), "session"), self._update_id)]
        return [self._say_failure(error.code, str(error)), Hangup(error.close_code, error.code)]

    def unchanged(self, error: StreamerError) -> Sequence[Action]:
        """Report why the session keeps its configuration."""
        self._session = self._before
        return [self._say_invalid(InvalidRequestError("invalid_value", str(error), "session"), self._update_id)]

    # Messages of the client.

    def _update(self, patch: dict[str, object], event_id: str | None) -> list[Action]:
        before, session = self._session, self._session.updated(patch)
        if self._opened and session.audio.input.format != before.audio.input.format:
            raise InvalidRequestError(
                "invalid_value",
                "The format cannot change after audio was sent: open another connection for another format.",
                "session.audio.input.format",
            )
        self._before, self._session, self._update_id = before, session, event_id
        self._refused = False
        actions = [self._show("updated"), *self._check_model()]
        if self._opened and session.options() != before.options():
            actions.append(Change(msgspec.structs.asdict(session.options())))
        return actions

    def _append(self, audio: bytes) -> list[Action]:
        if self._refused or not audio:
            return []
        rate, encoding = openai_messages.FORMATS[type(self._session.audio.input.format)]
        options = msgspec.structs.asdict(self._session.options())
        opening = [] if self._opened else [Open(StreamStart(**options, format=encoding, sample_rate=rate))]
        self._opened = True
        if self._item is None and not self._detects:
            self._item = self._new_item(self._buffer_s)
        self._sent_s += len(audio) / BYTES_PER_SAMPLE[encoding] / rate
        return [*opening, Write(audio)]

    def _commit(self) -> list[Action]:
        begin_s, end_s = self._buffer_s, self._sent_s
        if end_s - begin_s < MIN_COMMIT_S - 1e-6:  # less than a sample, for rounding
            raise InvalidRequestError(
                "input_audio_buffer_commit_empty",
                f"The buffer holds {max(0.0, end_s - begin_s) * 1000:.0f} ms of audio:"
                f" expected at least {MIN_COMMIT_S * 1000:.0f} ms; append some before a commit.",
            )
        self._buffer_s = end_s
        if self._detects:
            # The flush ends an utterance, whose item is then committed; for other audio see `_answer_commits`.
            self._commits.append((begin_s, end_s, self._n_committed))
            return [Do("flush")]
        self._ended_s = end_s
        return [*self._commit_item(self._item or self._new_item(begin_s), end_s), Do("flush")]

    def _clear(self) -> list[Action]:
        cleared = self._say("input_audio_buffer.cleared")
        if not self._opened:
            return [cleared]
        # The session's own `clear` would also discard committed audio that is not final yet.
        commands = [Do("clear"), Do("flush")] if all(item.cleared for item in self._waiting) else [Do("flush")]
        if not self._waiting or not self._waiting[-1].cleared:
            self._waiting.append(self._item or self._new_item(self._buffer_s))
        self._waiting[-1].end_s, self._waiting[-1].cleared = self._sent_s, True
        self._item = None
        self._buffer_s = self._ended_s = self._sent_s
        return [cleared, *commands]

    # Events of the session.

    def _start(self, time_s: float) -> list[Action]:
        # Speech in audio that the client has committed or cleared may be detected only now.
        if not self._detects or time_s < self._ended_s - LOOKBACK_S:
            return []
        self._item = self._item or self._new_item(time_s)
        self._item.spoken = True
        return [self._say("input_audio_buffer.speech_started", item_id=self._item.id, audio_start_ms=_ms(time_s))]

    def _stop(self, time_s: float) -> list[Action]:
        item = self._item
        if not self._detects or item is None:
            return []
        stopped = self._say("input_audio_buffer.speech_stopped", item_id=item.id, audio_end_ms=_ms(time_s))
        return [*([stopped] if item.spoken else []), *self._commit_item(item, time_s)]

    def _deltas(self, event: Partial | Final) -> list[Action]:
        """Send newly stable words as deltas of their items."""
        if event.segment != self._segment:
            self._segment, self._n_sent_chars = event.segment, 0
        deltas: dict[str, tuple[_Item, list[tuple[str, float]]]] = {}
        end = 0
        for word in itertools.takewhile(lambda word: word.stable, event.words):
            begin, end = end, end + len(word.word)
            item = self._item_at((word.start + word.end) / 2)
            if end <= self._n_sent_chars or item is None or item.cleared:
                continue
            _, words = deltas.setdefault(item.id, (item, []))
            text = word.word[max(0, self._n_sent_chars - begin) :]
            if not item.words and not words:
                text = text.lstrip()
            words.append((text, math.log(max(word.probability, LEAST_PROBABILITY))))
        self._n_sent_chars = max(self._n_sent_chars, end)
        for item, words in deltas.values():
            item.words += words
        return [
            self._say_of(item, "delta", delta=_join(words), **self._logprobs(words)) for item, words in deltas.values()
        ]

    def _lose(self, gap: Gap) -> None:
        for item in self._items:
            if item.start_s < gap.end and item.end_s > gap.start:
                item.lost = f"audio from {gap.start:.2f} to {gap.end:.2f} s was not transcribed ({gap.reason})"

    def _complete(self, until_s: float) -> list[Action]:
        """Complete the items that end before a time, up to which all speech is final or lost."""
        done = [item for item in self._waiting if item.end_s <= until_s]
        self._waiting = [item for item in self._waiting if item.end_s > until_s]
        return [action for item in done if not item.cleared for action in self._say_complete(item)]

    def _answer_commits(self, until_s: float) -> list[Action]:
        """Commit an item for each commit, of a client with turn detection, of audio without speech."""
        actions: list[Action] = []
        while self._commits and self._commits[0][1] <= until_s:
            begin_s, end_s, n_committed = self._commits.popleft()
            if n_committed == self._n_committed:
                item = self._item
                silent = item if item is not None and not item.spoken else self._new_item(begin_s)
                actions += self._commit_item(silent, end_s)
        return actions

    def _check_model(self) -> list[Action]:
        """Report a model other than the daemon's, which also serves the names of OpenAI's models."""
        transcription = self._session.audio.input.transcription
        name = transcription.model if transcription is not None else None
        if not name or not self._model or name == self._model:
            return []
        if name in OPENAI_MODELS:
            note_model(name)
            return []
        text = f"Model {name!r} not found: this daemon has {self._model!r}, which serves the names of OpenAI's too."
        error = InvalidRequestError("model_not_found", text, "session.audio.input.transcription.model")
        return [self._say_invalid(error, self._update_id)]

    # Items.

    @property
    def _detects(self) -> bool:
        """Whether detected speech begins and ends items, not the client."""
        return self._session.audio.input.turn_detection is not None

    @property
    def _items(self) -> list[_Item]:
        return self._waiting if self._item is None else [*self._waiting, self._item]

    def _new_item(self, start_s: float) -> _Item:
        self._n_events += 1
        return _Item(f"item_{self._id}_{self._n_events}", start_s)

    def _item_at(self, time_s: float) -> _Item | None:
        """Return the item of a position in the audio; the first item includes earlier positions."""
        items = self._items
        return next((item for item in reversed(items) if item.start_s <= time_s), items[0] if items else None)

    def _commit_item(self, item: _Item, end_s: float) -> list[Action]:
        item.end_s, item.previous = end_s, self._previous
        self._previous = item.id
        if item is self._item:
            self._item = None
        self._waiting.append(item)
        self._n_committed += 1
        self._buffer_s = max(self._buffer_s, end_s)
        return [
            self._say("input_audio_buffer.committed", item_id=item.id, previous_item_id=item.previous),
            self._say("conversation.item.added", item=_shown(item, None), previous_item_id=item.previous),
        ]

    # Events.

    def _say_complete(self, item: _Item) -> list[Action]:
        text = _join(item.words)
        actions: list[Action] = []
        if item.lost and text:
            actions.append(self._say_failure("audio_lost", f"{item.id}: {item.lost}"))
        if item.lost and not text:
            actions.append(self._say_of(item, "failed", error=_error("server_error", "audio_lost", item.lost)))
        else:
            usage = {"type": "duration", "seconds": round(item.end_s - item.start_s, 3)}
            logprobs = self._logprobs(item.words)
            actions.append(self._say_of(item, "completed", transcript=text, usage=usage, **logprobs))
        done = {"item": _shown(item, text), "previous_item_id": item.previous}
        return [*actions, self._say("conversation.item.done", **done)]

    def _say_invalid(self, error: InvalidRequestError, event_id: str | None) -> Say:
        return self._say(
            "error", error=_error("invalid_request_error", error.reason, str(error), error.param, event_id)
        )

    def _say_failure(self, code: str, message: str) -> Say:
        return self._say("error", error=_error("server_error", code, message))

    def _show(self, state: str) -> Action:
        session = {"id": f"sess_{self._id}", "object": "realtime.transcription_session", "expires_at": None}
        return self._say(f"session.{state}", session={**session, **msgspec.structs.asdict(self._session)})

    def _say_of(self, item: _Item, what: str, **fields: object) -> Say:
        name = f"conversation.item.input_audio_transcription.{what}"
        return self._say(name, item_id=item.id, content_index=0, **fields)

    def _say(self, name: str, **fields: object) -> Say:
        self._n_events += 1
        return say_json({"type": name, "event_id": f"event_{self._id}_{self._n_events}", **fields})

    def _logprobs(self, words: Sequence[tuple[str, float]]) -> dict[str, object]:
        """Return the field `logprobs` if the client has requested it."""
        if openai_messages.LOGPROBS not in (self._session.include or ()):
            return {}
        return {"logprobs": [{"token": t, "logprob": round(p, 4), "bytes": list(t.encode("utf-8"))} for t, p in words]}


def _error(
    type: str, code: str | None, message: str, param: str | None = None, event_id: str | None = None
) -> dict[str, str | None]:
    return {"type": type, "code": code, "message": message, "param": param, "event_id": event_id}


def _shown(item: _Item, transcript: str | None) -> dict[str, object]:
    content = [{"type": "input_audio", "transcript": transcript}]
    kind = {"object": "realtime.item", "type": "message", "status": "completed", "role": "user"}
    return {"id": item.id, **kind, "content": content}


def _join(words: Sequence[tuple[str, float]]) -> str:
    return "".join(text for text, _ in words)


def _ms(time_s: float) -> int:
    return round(time_s * 1000)
