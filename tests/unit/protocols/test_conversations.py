"""The conversations of tests/golden/protocols with an adapter alone: no socket, no time."""

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from starlette.datastructures import Headers, QueryParams
from wyoming.event import Event as WyomingEvent

from streamer.errors import StreamerError
from streamer.events import Event
from streamer.protocols.adapter import Action, Adapter, Change, Do, Finish, Hangup, Open, Report, Say, Write
from streamer.protocols.wyoming import Wyoming, describe
from streamer.server.routes import SOCKETS
from tests.conversations import PROTOCOLS, Conversation, Notes, Script, Step, conversations, refusal

REALTIME: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)

# By protocol: what a stock client reads each message with.
STOCK: dict[str, Callable[[Any], object]] = {
    "realtime": lambda said: REALTIME.validate_python(said, strict=True),
    "wyoming": WyomingEvent.from_dict,
}


class Played:
    """A conversation with an adapter, up to some line."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._script = Script()
        self._session = Notes()
        self._adapter: Adapter = Wyoming(describe("nano.en", ["en"]))
        # What the client has yet to read, and the refusal of what is asked for next.
        self._said: deque[Any] = deque()
        self._refusal: StreamerError | None = None

    def take(self, step: Step) -> None:
        """Play a line."""
        if step.kind not in ("<", "="):
            assert not self._said, f"the server also says {self._said}"
            assert not self._session.done, f"the session is also asked to {self._session.done}"
        match step.kind:
            case "connect":
                address = urlsplit(step.text)
                if address.path:
                    self._adapter = SOCKETS[address.path].make(QueryParams(address.query), Headers({}))
                self._perform(self._adapter.begin())
            case ">":
                self._receive(self._talk.message(step.text))
            case "!":
                self._refusal = refusal(step.text)
                if not step.text.startswith("refuse"):
                    self._publish(self._script.event(step.text))
            case "<":
                assert self._said, f"expected {step.text}: the server said nothing"
                self._talk.expect(step.text, self._said.popleft())
            case "=":
                self._session.expect(self._talk, step.text)

    def _receive(self, message: str | bytes) -> None:
        try:
            self._perform(self._adapter.receive(message))
        except StreamerError as error:
            self._perform(self._adapter.refused(error))

    def _publish(self, event: Event) -> None:
        self._perform(self._adapter.on_event(event))

    def _perform(self, actions: Iterable[Action]) -> None:
        error, session = self._refusal, self._session
        # Messages of one call are sent before the session does anything.
        for action in sorted(actions, key=lambda action: not isinstance(action, Say | Hangup)):
            match action:
                case Say(text):
                    said = json.loads(text)
                    STOCK.get(self._talk.protocol, str)(said)
                    self._said.append(said)
                case Hangup(code, reason):
                    self._said.append(f"close {code} {reason}".strip())
                case Open(start):
                    session.note_open(start)
                    if error is not None:
                        self._perform(self._adapter.refused(error))
                        return
                case Change() if error is not None:
                    self._perform(self._adapter.unchanged(error))
                case Change(options):
                    session.note_set(msgspec.structs.replace(session.options, **options))
                case Write(audio):
                    session.audio += audio
                case Do(command):
                    session.done.append(command)
                case Finish():
                    session.done.append("finish")
                case Report(reported):
                    self._publish(self._script.stamped(reported))
                case _:
                    pytest.fail(f"a socket is needed for {action}")


@pytest.mark.parametrize("talk", [talk for name in PROTOCOLS for talk in conversations(name, "server")])
def test_an_adapter_keeps_its_part_of_a_conversation(talk: Conversation) -> None:
    if not talk.is_one_connection:
        return  # see tests/wire/test_conversations.py
    played = Played(talk)
    for step in (*talk.steps, Step("connect", "")):
        played.take(step)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ('{"a":1}', {"a": 1, "b": 2}),
        ('{"a":1,...}', {"b": 2}),
        ('{"a":1}', {"a": True}),
        ('{"a":[1]}', {"a": [1, 2]}),
        ('{"a":"$x","b":"$x"}', {"a": 1, "b": 2}),
        ('{"a":"$x","b":"$y"}', {"a": 1, "b": 1}),
        ('{"a":"no *"}', {"a": "yes"}),
        ("close 1000", "close 1000 why"),
    ],
)
def test_another_message_than_a_line_says_is_noticed(wanted: str, found: object) -> None:
    with pytest.raises(AssertionError):
        Conversation("native", "", [], 16_000, 2).expect(wanted, found)


@pytest.mark.parametrize(
    "lines", [["> (audio 1 s)"], ["= open {}", "= open {}"], ["= open {}", '< {"type":"ready",...}'], ["= audio 0.2 s"]]
)
def test_a_line_too_few_or_too_many_is_noticed(lines: list[str]) -> None:
    played = Played(Conversation("native", "", [], 16_000, 2))
    steps = [Step(*line.split(" ", 1)) for line in ("connect /v1/stream", "> (audio 0.1 s)", *lines, "connect ")]

    def play(*steps: Step) -> None:
        for step in steps:
            played.take(step)

    with pytest.raises(AssertionError):
        play(*steps)
