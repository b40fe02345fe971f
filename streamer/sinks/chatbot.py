"""What was said, sent to an OpenAI-compatible chat endpoint, and its replies as they come.

Source: the OpenAI API reference, "Chat Completions: Create" with `stream: true`; llama.cpp's server, Ollama, vLLM and
OpenVINO Model Server speak the same.
"""

import asyncio
import contextlib
import json
import urllib.parse
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

import httpx

from streamer.errors import ConfigError, PeerError
from streamer.events import Event
from streamer.outside import is_loopback, one_line, printable
from streamer.sinks.sse import ServerSentEvents
from streamer.sinks.turn import Turn

CONNECT_TIMEOUT_S = 10.0
MAX_REPLY_CHARS = 200_000  # a reply that goes on beyond a book's chapter does not end
MAX_ERROR_BYTES = 65_536  # of an error's body are read


class Conversation:
    """A conversation with a chat endpoint, which it remembers."""

    def __init__(
        self,
        url: str,
        *,
        model: str = "default",
        system: str = "",
        api_key: str = "",
        timeout_s: float = 60.0,
        history_turns: int = 20,
    ) -> None:
        """Prepare a conversation with the API at `url`, up to and including /v1; nothing is sent yet.

        `timeout_s` is the silence after which a reply is given up, `history_turns` how many questions with their
        answers the model is reminded of. Raises ConfigError where the address or the key cannot be one.
        """
        self._url = _completions_url(url)
        if not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("chat.api_key has characters that no key has: expected printable ASCII; copy it again")
        self._model = model
        self._system = system

        # Questions and answers that the model is reminded of, the oldest first.
        self._turns: deque[tuple[str, str]] = deque(maxlen=history_turns)

        self._client = httpx.AsyncClient(
            headers={
                "Accept": "text/event-stream",
                "Accept-Encoding": "identity",  # words are to come one by one, and nothing is to unfold into gigabytes
                **({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            },
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            trust_env=not is_loopback(self._url.host),  # a proxy cannot reach this machine's own ports
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    async def reply(self, text: str) -> AsyncGenerator[str, None]:
        """Send what was said and yield the reply in pieces.

        However the reply ends, what was said of it is kept in the conversation; a question without any answer is
        not. Raises PeerError where the endpoint cannot be reached, refuses, or stops in the middle.
        """
        text = printable(text)
        answer: list[str] = []
        try:
            async with contextlib.aclosing(self._stream(text)) as pieces:
                async for piece in pieces:
                    answer.append(piece)
                    yield piece
        finally:
            if answer:
                self._turns.append((text, "".join(answer)))

    async def _stream(self, text: str) -> AsyncGenerator[str, None]:
        body = {"model": self._model, "messages": self._messages(text), "stream": True}
        try:
            async with self._client.stream("POST", self._url, json=body) as response:
                if response.status_code != 200:
                    raise PeerError(await _refusal(response))
                if response.headers.get("content-type", "").startswith("application/json"):
                    yield _whole_content(await _body(response, 4 * MAX_REPLY_CHARS))  # it does not stream
                    return
                async for piece in _pieces(response):
                    yield piece
        except httpx.TimeoutException as error:
            raise PeerError(f"{self._url} {_silence(error)}: is the model loaded? See chat.timeout_s") from None
        except httpx.ConnectError as error:
            raise PeerError(
                f"{self._url} cannot be reached ({_reason(error)}): start the chat endpoint or correct --to"
            ) from None
        except httpx.HTTPError as error:
            raise PeerError(f"{self._url} broke off ({_reason(error)}): what it said is kept; ask again") from None

    def _messages(self, text: str) -> list[dict[str, str]]:
        messages = [{"role": "system", "content": self._system}] if self._system else []
        for question, answer in self._turns:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        return [*messages, {"role": "user", "content": text}]


class Chatbot:
    """A sink that asks a conversation what was said, one question at a time (see `Turn`).

    Who speaks while a reply comes interrupts it. Of a reply that had not begun, the question goes on.
    """

    def __init__(
        self,
        conversation: Conversation,
        *,
        pause_s: float,
        on_question: Callable[[str], None],
        on_piece: Callable[[str], None],
        on_interrupt: Callable[[], None],
        on_end: Callable[[], None],
        on_error: Callable[[PeerError], None],
    ) -> None:
        """Make a sink that tells a question when it is sent, its reply in pieces, and how that ends: one of three ways.

        pause_s : silence behind a text that ends no sentence, before it is a question
        """
        self._conversation = conversation
        self._on_question = on_question
        self._on_piece = on_piece
        self._on_interrupt = on_interrupt
        self._on_end = on_end
        self._on_error = on_error

        self._turn = Turn(pause_s)

        # The reply that comes; None where none does.
        self._replying: asyncio.Task[None] | None = None

        # Whether any endpoint has ever answered; whether a piece of this reply has come.
        self._answered = self._begun = False

        # Set whenever there is something to do for run(): an event, or the end.
        self._wake = asyncio.Event()

        # Whether close() was called.
        self._closed = False

    def handle(self, event: Event) -> None:
        """Take the next event."""
        speaks = self._turn.handle(event, asyncio.get_running_loop().time())
        if speaks and self._replying is not None:
            self._replying.cancel()
        self._wake.set()

    def close(self) -> None:
        """Say that nothing follows: run() returns when everything has been answered."""
        self._closed = True
        self._wake.set()

    async def run(self) -> None:
        """Ask and answer until close() and the last reply.

        An endpoint that fails once is told and asked again with the next words. Raises PeerError where it fails at
        the first question: then it was never there.
        """
        while question := await self._question():
            self._on_question(question)
            self._begun = False
            replying = self._replying = asyncio.create_task(self._reply(question))
            try:
                await asyncio.wait({replying})
            finally:
                self._replying = None
                replying.cancel()
                await asyncio.gather(replying, return_exceptions=True)
            if replying.cancelled():
                self._on_interrupt()
                if not self._begun:
                    self._turn.put_back(question)
            else:
                replying.result()

    async def _question(self) -> str:
        """Wait for the next question; empty where none follows."""
        loop = asyncio.get_running_loop()
        while not self._closed:
            due_s = self._turn.due_s
            if due_s is not None and due_s <= loop.time():
                break
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._wake.wait()
        return self._turn.take()

    async def _reply(self, question: str) -> None:
        try:
            async with contextlib.aclosing(self._conversation.reply(question)) as pieces:
                async for piece in pieces:
                    self._answered = self._begun = True
                    self._on_piece(piece)
            self._answered = True
            self._on_end()
        except PeerError as error:
            if not self._answered:
                raise
            self._on_error(error)


def _completions_url(url: str) -> httpx.URL:
    try:
        _ = urllib.parse.urlsplit(url).port  # it refuses brackets and port numbers that httpx lets through
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"chat endpoint {url!r:.80} is no address ({error}): expected http://HOST:PORT/v1") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"chat endpoint {url!r:.80} is no web address: expected http://HOST:PORT/v1")
    path = parsed.path.rstrip("/")
    return parsed if path.endswith("/chat/completions") else parsed.copy_with(path=f"{path}/chat/completions")


async def _pieces(response: httpx.Response) -> AsyncGenerator[str, None]:
    """Yield the words of a streamed reply. Raises PeerError where it is malformed or stops before its end."""
    said_chars = 0
    finished = False
    half = ""
    events = ServerSentEvents()
    async with contextlib.aclosing(_messages(response, events)) as messages:
        async for message in messages:
            if message.strip() == "[DONE]":
                return
            content, ended = _delta(message)
            finished = finished or ended
            content, half = _halved(half + content)
            said_chars += len(content)
            if said_chars > MAX_REPLY_CHARS:
                raise PeerError(f"the reply is longer than {MAX_REPLY_CHARS} characters: it was cut off there")
            if content:
                yield content
    if not finished:
        raise PeerError("the reply was cut off before its end: what was said is kept; ask again")


async def _messages(response: httpx.Response, events: ServerSentEvents) -> AsyncGenerator[str, None]:
    async for data in response.aiter_bytes():
        for message in events.feed(data):
            yield message
    for message in events.finish():
        yield message


def _halved(text: str) -> tuple[str, str]:
    """Return text that can be encoded, and the half of a surrogate pair that it may end with.

    Servers that cut a reply between UTF-16 code units send an emoji as two halves, each escaped.
    """
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    whole = text[: len(text) - len(half)]
    return whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), half


def _delta(message: str) -> tuple[str, bool]:
    """Return the words of one message of a streamed reply, and whether they are the last."""
    chunk = _json(message)
    if "error" in chunk:
        raise PeerError(f"the chat endpoint failed: {_error_message(chunk)}")
    choice = _first_choice(chunk, message)
    if choice is None:
        return "", False  # such as the count of tokens that some send last
    delta = choice.get("delta") or {}
    content = delta.get("content") if isinstance(delta, dict) else delta
    if content is not None and not isinstance(content, str):
        raise PeerError(f"the reply has {message!r:.80} where its words belong: expected choices[0].delta.content")
    return content or "", choice.get("finish_reason") is not None


def _whole_content(body: str) -> str:
    """Return the words of a reply that came at once."""
    choice = _first_choice(_json(body), body)
    message = choice.get("message") if choice else None
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str):
        raise PeerError(f"the reply {body!r:.80} has no words: expected choices[0].message.content")
    return _halved(content)[0]


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise PeerError(f"the reply has {text!r:.80}, which is not JSON: is this an OpenAI-compatible API?") from None
    if not isinstance(value, dict):
        raise PeerError(f"the reply has {text!r:.80}: expected a JSON object; is this an OpenAI-compatible API?")
    return value


def _first_choice(value: dict[str, Any], text: str) -> dict[str, Any] | None:
    choices = value.get("choices")
    if choices == []:
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise PeerError(f"the reply has {text!r:.80}: expected `choices`; is this an OpenAI-compatible API?")
    return choices[0]


async def _refusal(response: httpx.Response) -> str:
    """Return one line for a response that is not 200: the status, what the server says, and what to do."""
    body = await _body(response, MAX_ERROR_BYTES)
    try:
        value = json.loads(body)
        said = _error_message(value) if isinstance(value, dict) else one_line(body)
    except (ValueError, RecursionError):
        said = one_line(body)
    remedy = {
        401: ": set STREAMER_CHAT_API_KEY",
        403: ": set STREAMER_CHAT_API_KEY",
        404: ": does --to end with /v1, and is there a model of that name (--model)?",
    }.get(response.status_code, "")
    status = f"{response.status_code} {one_line(response.reason_phrase)}".strip()
    return f"{response.url} answered {status}{f' ({said:.300})' if said else ''}{remedy}"


async def _body(response: httpx.Response, limit_bytes: int) -> str:
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) >= limit_bytes:
            break
    return data[:limit_bytes].decode("utf-8", errors="replace")


def _error_message(value: dict[str, Any]) -> str:
    return next((one_line(text) for text in _error_texts(value)), one_line(json.dumps(value)))[:300]


def _error_texts(value: dict[str, Any]) -> Iterator[str]:
    """Yield what an error says, wherever servers put it."""
    inner = value.get("error")
    for candidate in (
        inner.get("message") if isinstance(inner, dict) else inner,
        value.get("message"),
        value.get("detail"),
    ):
        if isinstance(candidate, str) and candidate:
            yield candidate


def _silence(error: httpx.TimeoutException) -> str:
    return "cannot be reached in time" if isinstance(error, httpx.ConnectTimeout) else "has been silent for too long"


def _reason(error: httpx.HTTPError) -> str:
    return one_line(error) or type(error).__name__
