"""Parsers of what comes over a network: messages, events, addresses, headers, replies of a chatbot."""

import asyncio
import contextlib
import json
from pathlib import Path

import httpx

from streamer.audio.pcm import PcmDecoder
from streamer.client.connection import parse_address
from streamer.correct.guard import RefusedError, changes
from streamer.correct.language_model import proposed
from streamer.errors import ConfigError, PeerError, ProtocolError, UsageError
from streamer.events import Error, Final, Gap, Partial, Ready, Resumed, Token, Word, from_json
from streamer.outside import is_loopback, one_line
from streamer.protocols.native import parse_message
from streamer.server.access import Access, Proxies, client_address, shown_token
from streamer.server.guesses import Guesses
from streamer.server.tokens import TokenFile, Tokens, parse_scopes
from streamer.settings.table import ChatSettings
from streamer.sinks.chatbot import Conversation
from streamer.sinks.sse import ServerSentEvents
from tools.parsers.table import Parser, makes_parsers, text, written

MESSAGES = (
    b'{"type":"start","format":"f32le","sample_rate":48000,"channels":2,"language":"en","languages":["de","en"]}',
    b'{"type":"set","initial_prompt":"a b","hotwords":["OpenVINO","b c"],"beam_size":4,"words":false,"pace_s":1}',
    b'{"type":"set","task":"translate","vad_threshold":0.5,"min_silence_s":0.3}',
    b'{"type":"flush"}',
    b'{"type":"finish"}',
)
_WORD = Word(word=" Good", start=1.2, end=1.5, probability=0.98, stable=True)
_TOLD = Word(
    word=" a", start=1.2, end=1.5, probability=0.98, stable=True, tokens=(Token(id=1, text="a", probability=0.5),)
)
EVENTS = [
    event.stamped(7, "k3v9").to_json().encode()
    for event in (
        Ready(model="nano.en", device={"encoder": "NPU"}, sample_rate=16_000, language="en"),
        Partial(segment=1, start=1.2, end=2.3, text="Good", stable=4, words=(_WORD,)),
        Final(
            segment=1, start=1.2, end=2.6, text="a", words=(_TOLD,), language="en", no_speech_prob=0.1, avg_logprob=-0.2
        ),
        Error(code="audio_device", message="away", fatal=False),
        Gap(start=14.2, end=16.8, reason="overload"),
        Resumed(heard_samples=48_000),
    )
]
CHUNK = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello \ud83d"}, "finish_reason": None}]}
REPLIES = (
    b"".join(f"data: {json.dumps(chunk)}\r\n\r\n".encode() for chunk in (CHUNK, CHUNK)) + b"data: [DONE]\n\n",
    b"\xef\xbb\xbf: comment\nevent: x\ndata: "
    + json.dumps(CHUNK).encode()
    + b'\ndata\n\ndata: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"error":{"message":"no such model","code":404}}\n\n',
)
WHOLE = (
    b'{"choices":[{"message":{"content":"Hello \\ud83d\\ude00"}}]}',
    b'{"error":{"message":"overloaded"}}',
    b'{"detail":"x"}',
)


@makes_parsers
def make_parsers(folder: Path) -> list[Parser]:
    return [
        Parser("messages of a stream", MESSAGES, lambda data: parse_message(text(data)), (ProtocolError,)),
        Parser("events", EVENTS, from_json, (ProtocolError,)),
        Parser("events as text", EVENTS, lambda data: from_json(text(data)), (ProtocolError,)),
        Parser("a daemon's address", ADDRESSES, lambda data: parse_address(text(data), ""), (UsageError,)),
        Parser("Host and Origin", HEADERS, _check_peer, ()),
        Parser("host, token and origin of the settings", HEADERS, _check_settings, (ConfigError,)),
        Parser("X-Forwarded-For", FORWARDED, _check_forwarded, ()),
        Parser("the token of a request", SHOWN, _check_shown, ()),
        Parser(
            "token file",
            (TOKEN_FILE, b"a-token-of-some-length-and-alone\n"),
            lambda data: TokenFile(written(folder / "tokens.json", data)).read(),
            (ConfigError,),
        ),
        Parser("scopes", (b"read,stream", b"control"), lambda data: parse_scopes(text(data)), (ConfigError,)),
        Parser("loopback", ADDRESSES, lambda data: is_loopback(text(data)), ()),
        Parser("server-sent events", REPLIES, _feed, (PeerError,)),
        Parser(
            "a chatbot's reply", REPLIES, lambda data: asyncio.run(_reply(data, "text/event-stream", 200)), (PeerError,)
        ),
        Parser(
            "a chatbot's whole reply",
            WHOLE,
            lambda data: asyncio.run(_reply(data, "application/json", 200)),
            (PeerError,),
        ),
        Parser(
            "a chatbot's refusal", WHOLE, lambda data: asyncio.run(_reply(data, "application/json", 500)), (PeerError,)
        ),
        Parser(
            "a chatbot's address", ADDRESSES, lambda data: Conversation(ChatSettings(url=text(data))), (ConfigError,)
        ),
        Parser("a language model's answer", EDITS, _check_edits, (RefusedError,)),
        Parser("PCM", (bytes(range(256)) * 8, b"\x00\x00\xc0\x7f\x00\x00\x80\x3f" * 100), _pcm, ()),
        Parser("text from outside", ADDRESSES, _shown, ()),
    ]


ADDRESSES = (
    b"localhost:8765",
    b"http://[::1]:8765/v1/captions?token=a&x=%20",
    b"wss://a.example:443/path/?token=",
    b"127.0.0.1",
    b"https://user:p@host/v1",
    b"http://127.0.0.1:8000/v1/chat/completions",
)
HEADERS = (
    b"127.0.0.1:8765\nhttp://127.0.0.1:8765",
    b"[::1]:80\nhttps://example.org",
    b"localhost\nnull",
    b"captions.example:443\nhttps://captions.example",
)


FORWARDED = (
    b"127.0.0.1\n203.0.113.7, 10.0.0.1",
    b"::1\n[2001:db8::1]:443, unknown, _x",
    b"\n192.0.2.1:80, ::ffff:1.2.3.4, fe80::1%eth0",
)
SHOWN = (
    b"Bearer tttttttttttttttt",
    b"token x\nstreamer.v1, streamer.token.dHR0dHR0dHR0dHR0dHR0dA",
    b"Basic x\nrealtime, openai-insecure-api-key.tttttttttttttttt",
    b"\ntoken, tttttttttttttttt",
)
TOKEN_FILE = json.dumps(
    {
        "version": 1,
        "tokens": [
            {
                "name": "phone",
                "sha256": "a" * 64,
                "scopes": ["read", "stream"],
                "created": "2026-11-01T10:00:00Z",
                "expires": "2027-11-01T10:00:00+01:00",
            }
        ],
    }
).encode()


def _check_peer(data: bytes) -> None:
    host, _, origin = data.decode("latin-1").partition("\n")
    for own in ("127.0.0.1", "0.0.0.0"):
        access = Access(host=own, tokens=Tokens("t" * 16, None), origins=("https://captions.example",))
        access.check_peer(host, origin)
        access.check_peer(host, None)
        access.check_peer(host, origin, forwarded_host=origin, scheme=host)
        access.check_token(shown_token([host], [origin], [host]), "read", origin, 0.0)


def _check_settings(data: bytes) -> None:
    host, _, origin = text(data).partition("\n")
    Access(host=host, tokens=Tokens(origin, None), origins=(origin,)).check_settings()


def _check_forwarded(data: bytes) -> None:
    peer, _, header = data.decode("latin-1").partition("\n")
    address = client_address(peer, header, Proxies.parse(("127.0.0.1", "10.0.0.0/8", "::1", "unix")))
    Guesses().count_wrong(address, 0.0)
    with contextlib.suppress(ConfigError):
        Proxies.parse(header.split(",")).trust(peer)


def _check_shown(data: bytes) -> None:
    first, *rest = data.decode("latin-1").split("\n")
    shown = shown_token([first], [part.strip() for line in rest for part in line.split(",")], rest)
    tokens = Tokens("t" * 16, None)
    if shown is not None:
        assert tokens.find(shown, 0.0) is None or shown == "t" * 16


def _feed(data: bytes) -> None:
    events = ServerSentEvents()
    for first in range(0, len(data), 7):
        events.feed(data[first : first + 7])
        if first > 7000:
            break
    events.finish()


EDITS = (
    b'{"edits": [{"old": "shivon", "new": "Siobhan"}, {"old": "the the", "new": "the"}]}',
    b'```json\n{"edits": [{"old": "new york", "new": "New York"}]}\n```',
)


def _check_edits(data: bytes) -> None:
    said = "we did not meet shivon at the the station in new york at 9"
    new = proposed(said, data.decode("utf-8", "replace"))
    changes(said.split(), new)
    assert {"not", "9"} <= {word.strip(".,;:?!…\"'”’»)“‘«¿¡(").casefold() for word in new}


async def _reply(data: bytes, content_type: str, status: int) -> None:
    conversation = Conversation(ChatSettings(url="http://127.0.0.1:1/v1"))
    response = httpx.Response(status, headers={"content-type": content_type}, content=data)
    await conversation._endpoint._client.aclose()
    conversation._endpoint._client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: response))
    async with contextlib.aclosing(conversation):
        async for piece in conversation.reply("what?"):
            piece.encode("utf-8")


def _pcm(data: bytes) -> None:
    head, body = data[:4], data[4:]
    choice = int.from_bytes(head, "little")
    decoder = PcmDecoder(
        ("s16le", "f32le")[choice & 1], (4000, 16_000, 44_100, 384_000)[choice >> 1 & 3], 1 + (choice >> 3) % 32
    )
    for first in range(0, min(len(body), 100_000), 1 + choice % 5000):
        samples = decoder.decode(body[first : first + 1 + choice % 5000])
        assert abs(samples).max(initial=0.0) < 100.0
    decoder.finish()


def _shown(data: bytes) -> None:
    assert one_line(text(data)).isprintable()
