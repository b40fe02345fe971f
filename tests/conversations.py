"""Conversations of tests/golden/protocols/*.txt: what a client and a server say, and what their session does.

    == Title, which is a claim
    * start event end           what moves our clients, by the table in docs/protocol.md; several events are one
    connect /v1/stream          the client opens a connection; `break` loses it, `leave CODE` closes it
    > {"type":"start"}          the client sends JSON; what it sends again by itself stands behind `>>`
    > (audio 1.5 s)             the client's next audio; (audio 0 to 1.5 s), (hex 00 ff) and (100 bytes) are possible
    = open {"channels":1}       the session is asked for this; `= audio 1.5 s` is all audio since the last such line
    ! final 0.5-1.5 Good day.   the session publishes this; of a partial, `|` ends what is stable; or JSON
    ! refuse busy no room       the session refuses what it is asked for next
    < {"type":"final",...}      the server sends this; ... other fields; "*" any value, "ab*" a beginning,
                                "$a" one value wherever it stands
    < close 1000 reason         the server closes the connection; `< status 503 text` answers instead of opening it
    # A comment

A line that begins with two spaces continues the one before. `audio: 24000 Hz, 2 bytes` ahead of the conversations is
the client's audio, by default of 16 kHz and 2 bytes. `[server]` or `[clients]` in a title: it is played with that only.
"""

import base64
import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamer import errors
from streamer.events import Error, Event, Flushed, Gap, Speech, from_json
from streamer.protocols.native import StreamStart
from streamer.settings.options import SessionOptions
from tests import builders

SCRIPTS = Path(__file__).parent / "golden" / "protocols"
PROTOCOLS = ("native", "deepgram", "realtime", "vosk", "whisperlive", "wyoming")

# Names of sessions, one after another.
SESSIONS = ("k3v9", "p7x2", "w5d1")

_CLASSES = {
    error.code: error
    for error in reversed(vars(errors).values())
    if isinstance(error, type) and issubclass(error, errors.StreamerError)
}
# Bytes whose period no message has.
_RAMP = bytes(n * 7 % 251 ^ n >> 8 for n in range(64_007))
_AUDIO = re.compile(r"\((?:audio (?:([\d.]+) to )?([\d.]+) s|hex ([0-9a-f ]+)|(\d+) bytes)\)")


@dataclass(frozen=True, slots=True)
class Step:
    """A line."""

    kind: str
    text: str


@dataclass(slots=True)
class Conversation:
    """A conversation, and what its lines are read with."""

    protocol: str
    title: str
    steps: list[Step]
    frame_rate: int
    frame_bytes: int

    # What moves our clients.
    inputs: list[str] = field(default_factory=list)

    # Values of "$a".
    bound: dict[str, Any] = field(default_factory=dict)

    # Audio that the client has begun to send, and that the session has, in bytes.
    n_said: int = 0
    n_done: int = 0

    @property
    def is_one_connection(self) -> bool:
        """Whether an adapter alone can play it: there is one connection, and not to the daemon's own input."""
        return [step.text.startswith("/v1/captions") for step in self.steps if step.kind == "connect"] == [False]

    def audio(self, text: str) -> bytes | None:
        """Return what a client sends for a text such as `(audio 1.5 s)`; None if it is another text."""
        found = _AUDIO.fullmatch(text)
        if found is None:
            return None
        first, last, digits, n_bytes = found.groups()
        if digits is not None:
            return bytes.fromhex(digits)
        if n_bytes is not None:
            return bytes(int(n_bytes))
        begin = self.n_said if first is None else self.position(first)
        end = self.position(last) + (begin if first is None else 0)
        self.n_said = max(self.n_said, end)
        return ramp(begin, end)

    def message(self, text: str) -> str | bytes:
        """Return what a client sends, in its protocol."""
        audio = self.audio(text)
        if self.protocol == "realtime" and audio is not None:
            return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(audio).decode("ascii")})
        if self.protocol != "wyoming":
            return text if audio is None else audio
        if audio is not None:
            text = '{"type":"audio-chunk","data":{"rate":16000,"width":2,"channels":1}}'
        line, _, payload = text.partition(" (")
        audio = audio or self.audio(f"({payload}") or b""
        return line.removesuffix("}").encode("utf-8") + f',"payload_length":{len(audio)}}}\n'.encode("ascii") + audio

    def position(self, seconds: str) -> int:
        """Return a position in the audio, in bytes."""
        return round(float(seconds) * self.frame_rate) * self.frame_bytes

    def expect(self, wanted: str, found: Any) -> None:  # noqa: ANN401 - JSON or a text
        """Hold a message, a close or an action against a line."""
        is_json = wanted.startswith(("{", "[", '"'))
        pattern = _pattern(wanted) if is_json else wanted
        assert self._matches(pattern, found), (
            f"expected {wanted}\n   found {json.dumps(found, ensure_ascii=False)} {self.bound}"
        )

    def expect_audio(self, wanted: str, found: bytes) -> None:
        """Hold audio of the session against a line."""
        if wanted.startswith("hex "):
            assert found == bytes.fromhex(wanted[4:]), f"expected {wanted}, found {found[:40].hex(' ')}"
            return
        n_bytes = self.n_expected(f"audio {wanted}")
        assert found == ramp(self.n_done, self.n_done + n_bytes), f"expected {wanted}, found {len(found)} bytes"
        self.n_done += n_bytes

    def n_expected(self, text: str) -> int:
        """Return how many bytes of audio a line such as `= audio 1.5 s` expects; 0 for another line."""
        what, _, wanted = text.partition(" ")
        if what != "audio":
            return 0
        return len(bytes.fromhex(wanted[4:])) if wanted.startswith("hex ") else self.position(wanted.removesuffix(" s"))

    def _matches(self, pattern: Any, found: Any) -> bool:  # noqa: ANN401
        match pattern:
            case "*":
                return True
            case str() if pattern.startswith("$"):
                if pattern not in self.bound and found not in self.bound.values():
                    self.bound[pattern] = found
                return bool(self.bound.get(pattern) == found)
            case dict():
                keys = pattern.keys() - {"..."}
                known = isinstance(found, dict) and keys <= found.keys() and ("..." in pattern or keys == found.keys())
                return known and all(self._matches(pattern[key], found[key]) for key in keys)
            case list():
                same = isinstance(found, list) and len(pattern) == len(found)
                return same and all(map(self._matches, pattern, found))
            case str() if pattern.endswith("*"):
                return isinstance(found, str) and found.startswith(pattern[:-1])
        return bool(pattern == found) and isinstance(pattern, bool) == isinstance(found, bool)


def conversations(protocol: str, side: str) -> list[Any]:
    """Return the conversations of a protocol, as parameters, except those for the other side, `server` or `clients`."""
    other = {"server": "[clients]", "clients": "[server]"}[side]
    head, *parts = re.split(r"^== ", (SCRIPTS / f"{protocol}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    given = re.search(r"^audio: (\d+) Hz, (\d) bytes?$", head, re.MULTILINE)
    rate, width = given.groups() if given is not None else (16_000, 2)
    found = []
    for part in parts:
        title, *lines = part.splitlines()
        inputs = lines.pop(0)[2:].split() if lines[0].startswith("* ") else []
        talk = Conversation(protocol, title, [*_steps(lines)], int(rate), int(width), inputs)
        if other not in title:
            found.append(pytest.param(talk, id=f"{protocol}: {title}"))
    return found


def _steps(lines: list[str]) -> Iterator[Step]:
    joined: list[str] = []
    for line in lines:
        if line.startswith("  "):
            joined[-1] += line.strip()
        elif line and not line.startswith("#"):
            joined.append(line)
    for line in joined:
        kind, _, text = line.partition(" ")
        assert kind in (">", ">>", "=", "!", "<", "connect", "break", "leave"), line
        yield Step(kind, text)


def _pattern(text: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(re.sub(r"([{,])\.\.\.}", r'\1"...":0}', text))


def ramp(begin: int, end: int) -> bytes:
    """Return some bytes of a client's audio."""
    n_before = begin // len(_RAMP)
    return (_RAMP * (end // len(_RAMP) + 1 - n_before))[begin - n_before * len(_RAMP) :][: end - begin]


def refusal(text: str) -> errors.StreamerError | None:
    """Return the error of a line `! refuse CODE MESSAGE`."""
    word, _, rest = text.partition(" ")
    code, _, message = rest.partition(" ")
    return _CLASSES[code](message) if word == "refuse" and code else None


class Script:
    """Events of a session, as the lines of a conversation name them, with their numbers."""

    def __init__(self) -> None:
        self._names = iter(SESSIONS)
        self.session = next(self._names)
        self._seq = 0
        self._segment = 1

    def event(self, text: str) -> Event:
        """Return the next event; `ready` begins another session, if there was one."""
        if text.startswith("ready") and self._seq:
            self.session, self._seq, self._segment = next(self._names), 0, 1
        event = self._event(text)
        if event.type == "final":
            self._segment += 1
        return self.stamped(event)

    def stamped(self, event: Event) -> Event:
        """Return an event with the next number."""
        self._seq += 1
        return event.stamped(self._seq, self.session)

    def _event(self, text: str) -> Event:
        if text.startswith("{"):
            return from_json(text)
        kind, _, rest = text.partition(" ")
        rest, brace, more = rest.partition("{")
        fields = json.loads(brace + more) if brace else {}
        span, _, said = rest.strip().partition(" ")
        match kind:
            case "ready":
                return builders.ready(**fields)
            case "speech":
                return Speech(state="start" if span == "start" else "end", time=float(said))
            case "gap":
                return Gap(start=_span(span)[0], end=_span(span)[1], reason=said)
            case "flushed":
                return Flushed(time=float(span))
            case "error":
                return Error(code=span, message=said.removeprefix("fatal "), fatal=said.startswith("fatal "), **fields)
            case "partial" | "final" | "revision":
                return self._text(kind, *_span(span), said, fields)
        return from_json(json.dumps({"type": kind, **fields}))

    def _text(self, kind: str, start: float, end: float, said: str, fields: dict[str, Any]) -> Event:
        stable, bar, rest = said.partition("|")
        text = " ".join((stable + rest).split())
        n_stable = len(stable.split()) if bar else 0 if kind == "partial" else None
        step = (end - start) / max(1, len(text.split()))
        spoken = builders.words(text, start, step=step, n_stable=n_stable)
        for i, speaker in enumerate(fields.pop("speakers", ())):
            spoken = (*spoken[:i], msgspec.structs.replace(spoken[i], speaker=speaker), *spoken[i + 1 :])
        fields = {"words": spoken, **fields}
        if kind == "revision":
            return from_json(json.dumps({"type": kind, "text": text, **msgspec.to_builtins(fields)}))
        fields |= {"start": start, "end": end, "segment": self._segment}
        if kind == "partial":
            return builders.partial(text, len(stable.strip()) if bar else 0, **fields)
        return builders.final(text, **fields)


def _span(text: str) -> tuple[float, float]:
    start, _, end = text.partition("-")
    return float(start), float(end)


class Notes:
    """What a session was asked to do, in order: actions, and pieces of audio, joined."""

    def __init__(self) -> None:
        self.done: deque[str] = deque()
        self.audio = bytearray()
        self.options: SessionOptions = StreamStart()

    def note_open(self, start: StreamStart) -> None:
        self._note("open", StreamStart(), start)

    def note_set(self, options: SessionOptions) -> None:
        self._note("set", self.options, options)

    def _note(self, what: str, before: SessionOptions, after: SessionOptions) -> None:
        self.options = after
        old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
        self.done.append(f"{what} {json.dumps({key: new[key] for key in new if new[key] != old.get(key)})}")

    def expect(self, talk: Conversation, wanted: str) -> None:
        """Take what was done next and hold it against a line."""
        what, _, rest = wanted.partition(" ")
        if what == "audio":
            talk.expect_audio(rest, bytes(self.audio))
            self.audio.clear()
            return
        assert self.done, f"expected {wanted}: nothing was asked of the session"
        done, _, given = self.done.popleft().partition(" ")
        assert done == what
        if given:
            talk.expect(rest, json.loads(given))
