"""What was said, sent to a chat endpoint, and its replies as they come."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Self

from streamer.errors import PeerError
from streamer.events import Event
from streamer.outside import printable
from streamer.sinks.completions import ChatEndpoint, Names
from streamer.sinks.turn import Turn

NAMES = Names(flag="--to", model_flag="--model", section="chat", timeout="chat.timeout_s")


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
        self._endpoint = ChatEndpoint(url, model=model, api_key=api_key, timeout_s=timeout_s, names=NAMES)
        self._system = system

        # Questions and answers that the model is reminded of, the oldest first.
        self._turns: deque[tuple[str, str]] = deque(maxlen=history_turns)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._endpoint.aclose()

    async def reply(self, text: str) -> AsyncGenerator[str, None]:
        """Send what was said and yield the reply in pieces.

        However the reply ends, what was said of it is kept in the conversation; a question without any answer is
        not. Raises PeerError where the endpoint cannot be reached, refuses, or stops in the middle.
        """
        text = printable(text)
        answer: list[str] = []
        try:
            async with contextlib.aclosing(self._endpoint.reply(self._messages(text))) as pieces:
                async for piece in pieces:
                    answer.append(piece)
                    yield piece
        finally:
            if answer:
                self._turns.append((text, "".join(answer)))

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
