"""An OpenAI-compatible chat endpoint, which answers messages piece by piece.

Source: the OpenAI API reference, "Chat Completions: Create" with `stream: true`; llama.cpp's server, Ollama, vLLM and
OpenVINO Model Server speak the same.
"""

import contextlib
import json
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from streamer.errors import ConfigError, PeerError, RefusalError
from streamer.outside import is_loopback, one_line
from streamer.plugins.web.sinks import web_url

CONNECT_TIMEOUT_S = 10.0
MAX_REPLY_CHARS = 200_000  # a book's chapter; a longer reply is a loop
MAX_BYTES_PER_CHAR = 512  # of a streamed reply, in which each piece is a message
MAX_MESSAGE_BYTES = 1 << 20  # a message has a few words
MAX_ERROR_BYTES = 65_536  # that are read of an error's body

# A reply is a loop if its last characters become this much shorter when compressed: prose, tables and code become 1.7
# to 2.6 times shorter; a small model that repeats a sentence with other names 4 to 5 times, the same words 12 and more.
LOOP_CHARS, LOOP_RATIO = 1_000, 3.5


class WrongEndpointError(PeerError):
    """Address or key is wrong, according to an endpoint that has given no other answer yet."""


class WordlessError(PeerError):
    """A reply without words, which the same question would get again."""

    def __init__(self) -> None:
        super().__init__("the reply has no words: ask in other words, or try another model")


@dataclass(frozen=True, slots=True)
class Names:
    """Names of an endpoint's settings, for error messages."""

    flag: str  # of the address
    model_flag: str
    section: str  # of `api_key`
    timeout: str


class ChatEndpoint:
    """The API at an address. Redirects are not followed: a key is for one host."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str,
        timeout_s: float,
        names: Names,
        max_reply_chars: int = MAX_REPLY_CHARS,
    ) -> None:
        """Prepare; nothing is sent yet. Raises ConfigError for an invalid address or key.

        url : up to and including /v1
        timeout_s : silence after which a reply is given up
        """
        self._url = completions_url(url)
        if not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError(
                f"{names.section}.api_key contains characters other than printable ASCII: copy the key again"
            )
        self._model = model
        self._names = names
        self._max_reply_chars = max_reply_chars
        # Whether it has given any answer but that address or key are wrong.
        self._accepted = False
        # The address without the parts that may be secret, for messages.
        self.name = str(self._url.copy_with(userinfo=b"", query=None, fragment=None))

        self._client = httpx.AsyncClient(
            headers={
                "Accept": "text/event-stream",
                "Accept-Encoding": "identity",  # compression would delay words, and could expand to gigabytes
                **({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            },
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            trust_env=not is_loopback(self._url.host),  # a proxy cannot reach this machine's own ports
        )

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    async def reply(
        self, messages: Sequence[Mapping[str, str]], options: Mapping[str, object] | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield the answer to messages in pieces.

        Raises RefusalError if the endpoint rejects the messages, as it does if they are too long for its model;
        PeerError if it cannot be reached, fails, or stops in the middle.
        """
        body = {"model": self._model, "messages": messages, "stream": True, **(options or {})}
        try:
            async with self._client.stream("POST", self._url, json=body) as response:
                self._accepted = self._accepted or response.status_code not in (401, 403, 404)
                if response.status_code != 200:
                    kind = RefusalError if response.status_code in (400, 413, 422) else PeerError
                    raise (kind if self._accepted else WrongEndpointError)(await self._refusal(response))
                if response.headers.get("content-type", "").startswith("application/json"):
                    content, _ = _content(await _body(response, 4 * self._max_reply_chars))  # it does not stream
                    if not content:
                        raise WordlessError
                    yield _halved(content)[0]
                    return
                async with contextlib.aclosing(_pieces(response, self._max_reply_chars)) as pieces:
                    async for piece in pieces:
                        yield piece
        except httpx.TimeoutException as error:
            fault = "cannot be reached in time" if isinstance(error, httpx.ConnectTimeout) else "is silent for too long"
            raise PeerError(f"{self.name} {fault}: is the model loaded? See {self._names.timeout}") from None
        except httpx.ConnectError as error:
            raise PeerError(
                f"{self.name} cannot be reached ({_reason(error)}): start the chat endpoint or correct"
                f" {self._names.flag}"
            ) from None
        except httpx.HTTPError as error:
            raise PeerError(f"{self.name} broke off ({_reason(error)}): the text so far is kept; ask again") from None

    async def _refusal(self, response: httpx.Response) -> str:
        """Return one line for a response that is not 200: status, the server's message, remedy."""
        body = await _body(response, MAX_ERROR_BYTES)
        try:
            value = json.loads(body)
            said = _error_message(value) if isinstance(value, dict) else one_line(body)
        except (ValueError, RecursionError):
            said = one_line(body)
        names = self._names
        remedy = {
            401: f": set STREAMER_{names.section.upper()}_API_KEY",
            403: f": set STREAMER_{names.section.upper()}_API_KEY",
            404: f": does {names.flag} end with /v1, and is there a model of that name ({names.model_flag})?",
        }.get(response.status_code, "")
        status = f"{response.status_code} {one_line(response.reason_phrase)}".strip()
        return f"{self.name} answered {status}{f' ({said:.300})' if said else ''}{remedy}"


def completions_url(url: str) -> httpx.URL:
    """Return the address of an endpoint's completions. Raises ConfigError for an invalid address."""
    try:
        parsed = web_url(url)
    except ValueError as error:
        raise ConfigError(
            f"chat endpoint {url!r:.80} is not a web address ({one_line(error):.80}): expected http://HOST:PORT/v1"
        ) from None
    path = parsed.path.rstrip("/")
    return parsed if path.endswith("/chat/completions") else parsed.copy_with(path=f"{path}/chat/completions")


async def _pieces(response: httpx.Response, max_chars: int) -> AsyncGenerator[str, None]:
    """Yield the pieces of a streamed reply. Raises PeerError if it is malformed, too long, or ends too early.

    Of server-sent events (WHATWG HTML, 9.2.6) only lines of `data` are read; chat endpoints send a message in each.
    """
    n_chars, half, recent = 0, "", ""
    finished = False
    async with contextlib.aclosing(_lines(response, MAX_BYTES_PER_CHAR * max_chars)) as lines:
        async for line in lines:
            if not line.startswith(b"data:"):
                continue
            message = line[5:].decode("utf-8", "replace").strip()
            if message == "[DONE]":
                finished = True
                break
            content, ended = _content(message)
            finished = finished or ended
            content, half = _halved(half + content)
            content = content if n_chars else content.lstrip()  # many models begin with a space or an empty line
            n_chars += len(content)
            if n_chars > max_chars:
                raise PeerError(f"the reply is longer than {max_chars} characters: it was cut off there")
            if content:
                yield content
            recent = (recent + content)[-LOOP_CHARS:]
            if len(recent) == LOOP_CHARS and len(zlib.compress(recent.encode())) * LOOP_RATIO < LOOP_CHARS:
                raise PeerError("the reply repeats itself: it was cut off there")
    if not finished:
        raise PeerError("the reply was cut off before its end: the text so far is kept; ask again")
    if not n_chars:
        raise WordlessError


async def _lines(response: httpx.Response, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a reply; the last one may have no end. httpx's own also end at U+2028, which JSON may have."""
    n_bytes, rest = 0, b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        n_bytes += len(data)
        if n_bytes > max_bytes or len(rest) > MAX_MESSAGE_BYTES:
            raise PeerError(f"the reply is too long ({n_bytes} bytes so far): expected a few words a message")
        for line in lines:
            yield line
    yield rest


def _halved(text: str) -> tuple[str, str]:
    """Return text that can be encoded, and the first half of a surrogate pair that it may end with.

    Servers that cut a reply between UTF-16 code units send an emoji as two halves, each escaped.
    """
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    whole = text[: len(text) - len(half)]
    return whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), half


class _ChatMessage(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    # Of a streamed reply; some servers send only the text.
    delta: _ChatMessage | str | None = None
    # Of a reply that is not streamed.
    message: _ChatMessage | None = None
    finish_reason: object = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


def _content(text: str) -> tuple[str, bool]:
    """Return the text of a reply, or of one message of a streamed reply, and whether it is the last."""
    try:
        value = json.loads(text)
        if isinstance(value, dict) and "error" in value:
            raise PeerError(f"the chat endpoint failed: {_error_message(value)}")
        choices = msgspec.convert(value, _Chunk).choices
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        why = one_line(error) if isinstance(error, msgspec.MsgspecError) else "not JSON"
        raise PeerError(f"the reply has {text!r:.80} ({why:.80}): is this an OpenAI-compatible API?") from None
    if not choices:
        return "", False  # for example the token count that some servers send last
    found = choices[0].message or choices[0].delta
    content = found.content if isinstance(found, _ChatMessage) else found
    return content or "", choices[0].finish_reason is not None


async def _body(response: httpx.Response, limit_bytes: int) -> str:
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) >= limit_bytes:
            break
    return data[:limit_bytes].decode("utf-8", errors="replace")


def _error_message(value: dict[str, Any]) -> str:
    """Return the message of an error, of which servers have different forms."""
    inner = value.get("error")
    texts = (inner.get("message") if isinstance(inner, dict) else inner, value.get("message"), value.get("detail"))
    return one_line(next((text for text in texts if isinstance(text, str) and text), json.dumps(value)))[:300]


def _reason(error: httpx.HTTPError) -> str:
    return one_line(error) or type(error).__name__
