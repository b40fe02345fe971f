"""Sends transcribed questions to a chat endpoint and shows its replies as they arrive."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator

from streamer.errors import PeerError, RefusalError
from streamer.events import Event
from streamer.outside import printable
from streamer.plugins.chat.printer import Printer
from streamer.plugins.chat.settings import ChatSettings
from streamer.plugins.chat.turn import SpokenQuestion
from streamer.plugins.completions import ChatEndpoint, Names, WordlessError, WrongEndpointError

logger = logging.getLogger(__name__)

NAMES = Names(flag="--to", model_flag="--model", section="chat", timeout="chat.timeout_s")


class Conversation:
    """A conversation with a chat endpoint. The model is sent the newest `history_turns` questions and answers again."""

    def __init__(self, settings: ChatSettings) -> None:
        """Prepare; nothing is sent yet. Raises ConfigError for an invalid address or key."""
        self._endpoint = ChatEndpoint(
            settings.url,
            model=settings.model,
            api_key=settings.api_key,
            timeout_s=settings.timeout_s,
            names=NAMES,
        )
        self._system = settings.system
        # Questions and answers, oldest first.
        self._turns: deque[tuple[str, str]] = deque(maxlen=settings.history_turns)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._endpoint.aclose()

    async def reply(self, text: str) -> AsyncGenerator[str, None]:
        """Send a question and yield the reply in pieces.

        A reply that is cut off stays in the conversation; a question without any answer does not. If the endpoint
        rejects the messages, the older half of the conversation is forgotten: it may be too long for the model. Raises
        PeerError if the endpoint cannot be reached, rejects the question alone, or stops in the middle.
        """
        text = printable(text)
        answer: list[str] = []
        while True:
            try:
                async with contextlib.aclosing(self._endpoint.reply(self._messages(text))) as pieces:
                    async for piece in pieces:
                        answer.append(piece)
                        yield piece
                return
            except RefusalError as refusal:
                if not self._turns:
                    raise
                logger.info("%s: forgetting the older half of the conversation", refusal)
                for _ in range((len(self._turns) + 1) // 2):
                    self._turns.popleft()
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
    """A sink that sends questions to a conversation, one at a time (see `SpokenQuestion`).

    Speech interrupts a reply. If the reply has not begun, what is said next is added to the question.
    """

    def __init__(self, conversation: Conversation, printer: Printer, *, pause_s: float) -> None:
        """Make a sink; `pause_s` is the silence after which an unfinished sentence is sent, too."""
        self._conversation = conversation
        self._printer = printer
        self._turn = SpokenQuestion(pause_s)
        # The task of the current reply.
        self._replying: asyncio.Task[None] | None = None
        # Whether the current reply has begun.
        self._begun = False
        # Wakes run() for an event or the end.
        self._wake = asyncio.Event()
        self._closed = False

    def handle(self, event: Event) -> None:
        """Take the next event."""
        is_speech = self._turn.handle(event, asyncio.get_running_loop().time())
        if is_speech and self._replying is not None:
            self._replying.cancel()
        self._wake.set()

    def close(self) -> None:
        """End the conversation: run() returns after the last reply."""
        self._closed = True
        self._wake.set()

    async def run(self) -> None:
        """Send questions and show replies until close() and the last reply.

        A failure of the endpoint is shown, and the conversation continues; a question without any answer is added to
        the next one. Raises PeerError if the address or the key of the endpoint is wrong.
        """
        while question := await self._question():
            self._printer.question(question)
            self._begun = False
            replying = self._replying = asyncio.create_task(self._reply(question))
            try:
                await asyncio.wait({replying})
            finally:
                self._replying = None
                replying.cancel()
                await asyncio.gather(replying, return_exceptions=True)
            if replying.cancelled():
                self._printer.interrupt()
                if not self._begun:
                    self._turn.put_back(question)
            else:
                replying.result()

    async def _question(self) -> str:
        """Wait for the next question; empty after the last one."""
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
                    self._begun = True
                    self._printer.piece(piece)
            self._printer.end()
        except PeerError as error:
            if isinstance(error, WrongEndpointError):
                raise
            self._printer.error(error)
            if not (self._begun or self._closed or isinstance(error, RefusalError | WordlessError)):
                self._turn.put_back(question, until_more=True)
