"""Vosk: one immediate reply to each message, with what is known at that time.

Source: the server and the test clients of alphacep/vosk-server. A client sends audio and waits for the reply before it
sends more, so only the last reply waits for the recogniser.
"""

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from streamer.constants import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from streamer.errors import ProtocolError
from streamer.events import End, Error, Event, Final, Flushed, Gap, Partial, Word
from streamer.protocols.adapter import Action, Adapter, Do, Finish, Hangup, Open, Write, read_json, say_json
from streamer.protocols.native import StreamStart
from streamer.protocols.text import bare, hotwords, note_model

# Vosk's own default.
SAMPLE_RATE = 8_000

# Limits of what a client may send before the reply to `reset`, for which it should wait.
MAX_HELD_BYTES = 2**20
MAX_HELD_MESSAGES = 100


class _VoskConfig(msgspec.Struct):
    """Options; a client may send them again."""

    sample_rate: Annotated[float, msgspec.Meta(ge=MIN_SAMPLE_RATE, le=MAX_SAMPLE_RATE)] | None = None
    words: bool | float | None = None
    phrase_list: list[str] | None = None
    max_alternatives: float | None = None
    model: str | None = None


class _VoskMessage(msgspec.Struct):
    """A text frame, which has one of these."""

    config: _VoskConfig | None = None
    eof: bool | float = False
    reset: bool | float = False


class Vosk(Adapter):
    """One client's connection."""

    def __init__(self) -> None:
        self._start = StreamStart(sample_rate=SAMPLE_RATE, words=True)
        # Whether results list their words, and whether they are lists of alternatives.
        self._words = True
        self._alternatives = False
        # Whether there is a session, and whether its audio is complete.
        self._open = False
        self._finished = False
        # Finals with words that were in no reply yet.
        self._finals: list[Final] = []
        # The newest partial of speech that is not final.
        self._partial: Partial | None = None
        # Messages after a `reset` whose reply is pending; None if none is.
        self._held: deque[str | bytes] | None = None

    def receive(self, message: str | bytes) -> Sequence[Action]:
        if self._finished:
            return []
        if self._held is not None:
            self._held.append(message)
            if len(self._held) > MAX_HELD_MESSAGES or sum(map(len, self._held)) > MAX_HELD_BYTES:
                raise ProtocolError("too many messages after reset: wait for its reply before you send more")
            return []
        if isinstance(message, bytes):
            written = [] if _is_request(message) else [*self._opened(), Write(message)]
            return [*written, say_json(self._known())]
        request = read_json(message, _VoskMessage, "invalid message", strict=False)  # numbers may be strings
        if request.config is not None:
            self._configure(request.config)
        if request.eof:
            self._finished = True
            return [Finish()] if self._open else [say_json(self._result()), Hangup()]
        if request.reset:
            self._held = deque()
            return [*self._opened(), Do("flush")]
        if request.config is None:  # otherwise a client that expects a reply would wait forever
            raise ProtocolError("invalid message: expected an object with config, eof or reset")
        return []

    def on_event(self, event: Event) -> Sequence[Action]:
        match event:
            case Partial():
                self._partial = event
            case Final() | Gap():
                self._partial = None
                if isinstance(event, Final) and _text(event):
                    self._finals.append(event)
            case Flushed() if self._held is not None:
                return [say_json(self._result()), *self._release(self._held)]
            case Error(fatal=True):
                self.fail(event)
            case End():
                awaited = self._finished or self._held is not None
                return [*([say_json(self._result())] if awaited else []), self.hangup]
        return []

    def _configure(self, config: _VoskConfig) -> None:
        if config.model:
            note_model(config.model)
        if config.words is not None:
            self._words = bool(config.words)
        if config.max_alternatives is not None:
            self._alternatives = config.max_alternatives > 0
        self._start = msgspec.structs.replace(
            self._start,
            sample_rate=round(config.sample_rate or self._start.sample_rate),
            hotwords=hotwords(config.phrase_list) or self._start.hotwords,
        )

    def _opened(self) -> list[Action]:
        if self._open:
            return []
        self._open = True
        return [Open(self._start)]

    def _release(self, held: deque[str | bytes]) -> list[Action]:
        """Process the messages after a `reset`, up to the next one."""
        self._held = None
        actions: list[Action] = []
        while held:
            if self._held is not None:
                self._held.extend(held)
                break
            actions += self.receive(held.popleft())
        return actions

    def _known(self) -> dict[str, Any]:
        """Return the reply to audio: new finals as a result, or else the current partial."""
        if self._finals:
            return self._result()
        return {"partial": _text(self._partial) if self._partial is not None else ""}

    def _result(self) -> dict[str, Any]:
        """Return all new finals as one result."""
        finals, self._finals = self._finals, []
        words = [word for final in finals for word in final.words if bare(word.word)]
        result: dict[str, Any] = {}
        if self._words and words:
            result["result"] = [_entry(word) for word in words]
        result["text"] = " ".join(map(_text, finals))
        if self._alternatives:
            confidence = sum(word.probability for word in words) / len(words) if words else 0.0
            return {"alternatives": [{"confidence": round(confidence, 6), **result}]}
        return result


def _is_request(message: bytes) -> bool:
    """Return whether a binary frame is a request, which Vosk would take for noise."""
    try:
        return message[:1] == b"{" and isinstance(msgspec.json.decode(message), dict)
    except (ValueError, RecursionError):  # msgspec's own is a ValueError
        return False


def _entry(word: Word) -> dict[str, Any]:
    return {"conf": word.probability, "start": word.start, "end": word.end, "word": bare(word.word)}


def _text(event: Partial | Final) -> str:
    """Return text in Vosk's style: lower case, no punctuation, a space between words."""
    words = [word.word for word in event.words] or event.text.split()
    return " ".join(filter(None, map(bare, words)))
