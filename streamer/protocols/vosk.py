"""Vosk: one reply to each message, at once, of what is known by then.

Source: the server and the test clients of alphacep/vosk-server. A client sends audio and waits for its reply before it
sends more; so a reply never waits for the recogniser, but for the last one.
"""

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from streamer.audio.constants import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from streamer.errors import ProtocolError
from streamer.events import End, Error, Event, Final, Flushed, Gap, Partial, Word
from streamer.protocols.adapter import Action, Adapter, Do, Finish, Hangup, Open, Write, read_json, say_json
from streamer.protocols.native import StreamStart
from streamer.protocols.text import bare, hotwords, note_model

# The original's, for clients that do not say theirs.
SAMPLE_RATE = 8_000

# What a client may send while it should wait for the reply to `reset`.
MAX_HELD_BYTES = 2**20
MAX_HELD_MESSAGES = 100


class _Config(msgspec.Struct):
    """What a client chooses; it may choose again."""

    sample_rate: Annotated[float, msgspec.Meta(ge=MIN_SAMPLE_RATE, le=MAX_SAMPLE_RATE)] | None = None
    words: bool | float | None = None
    phrase_list: list[str] | None = None
    max_alternatives: float | None = None
    model: str | None = None


class _Message(msgspec.Struct):
    """What a text frame says: one of these."""

    config: _Config | None = None
    eof: bool | float = False
    reset: bool | float = False


class Vosk(Adapter):
    """One client's connection (see `Adapter`)."""

    def __init__(self) -> None:
        self._start = StreamStart(sample_rate=SAMPLE_RATE, words=True)
        # Whether results have their words one by one, and whether they are lists of alternatives.
        self._words = True
        self._alternatives = False
        # Whether there is a session, and whether no more audio comes.
        self._open = False
        self._finished = False
        # Finals with words that no reply has had.
        self._finals: list[Final] = []
        # What is being said; None where nothing is.
        self._partial: Partial | None = None
        # While the reply to `reset` is awaited, the messages behind it; None while none is.
        self._held: deque[str | bytes] | None = None

    def receive(self, message: str | bytes) -> Sequence[Action]:
        if self._finished:
            return []
        if self._held is not None:
            self._held.append(message)
            if len(self._held) > MAX_HELD_MESSAGES or sum(map(len, self._held)) > MAX_HELD_BYTES:
                raise ProtocolError("too much was sent after reset: expected nothing before its reply")
            return []
        if isinstance(message, bytes):
            return [*self._opened(), Write(message), say_json(self._known())]
        said = read_json(message, _Message, "the message is not Vosk's", strict=False)  # numbers come as strings, too
        if said.config is not None:
            self._configure(said.config)
        if said.eof:
            self._finished = True
            return [Finish()] if self._open else [say_json(self._result()), Hangup()]
        if said.reset:
            self._held = deque()
            return [*self._opened(), Do("flush")]
        if said.config is None:  # a client that waits for a reply would wait for ever
            raise ProtocolError("the message is not Vosk's: expected config, eof or reset")
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

    def _configure(self, config: _Config) -> None:
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
        """Take what came behind `reset`, as far as the next one."""
        self._held = None
        actions: list[Action] = []
        while held:
            if self._held is not None:
                self._held.extend(held)
                break
            actions += self.receive(held.popleft())
        return actions

    def _known(self) -> dict[str, Any]:
        """Return the reply to audio: a result, where one has not been told, or what is being said."""
        if self._finals:
            return self._result()
        return {"partial": _text(self._partial) if self._partial is not None else ""}

    def _result(self) -> dict[str, Any]:
        """Return all finals that have not been told as one result."""
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


def _entry(word: Word) -> dict[str, Any]:
    return {"conf": word.probability, "start": word.start, "end": word.end, "word": bare(word.word)}


def _text(event: Partial | Final) -> str:
    """Return text as Vosk writes it: in lower case, without punctuation, a space between words."""
    words = [word.word for word in event.words] or event.text.split()
    return " ".join(filter(None, map(bare, words)))
