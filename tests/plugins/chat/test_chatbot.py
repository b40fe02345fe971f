"""The chatbot against a small real endpoint: conversations, and everything an endpoint may do wrong."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from streamer.errors import PeerError, RefusalError
from streamer.events import Speech
from streamer.languages import LANGUAGE_NAMES
from streamer.plugins.chat.chatbot import Chatbot, Conversation
from streamer.plugins.chat.printer import Printer
from streamer.plugins.chat.settings import ChatSettings
from streamer.plugins.completions import MAX_MESSAGE_BYTES, MAX_REPLY_CHARS
from tests.builders import final, partial
from tests.chat_endpoint import (
    Endpoint,
    Reply,
    Script,
    answering,
    chat_endpoint,
    endless,
    hanging,
    message,
    saying,
    streaming,
)
from tests.refusals import Refusal, refusals
from tests.waiting import WAIT_S, until


@contextlib.asynccontextmanager
async def conversing(*scripts: Script, **settings: Any) -> AsyncIterator[tuple[Conversation, Endpoint]]:  # noqa: ANN401
    async with (
        chat_endpoint(*scripts) as endpoint,
        contextlib.aclosing(Conversation(ChatSettings(url=endpoint.url, **settings))) as conversation,
    ):
        yield conversation, endpoint


async def pieces(conversation: Conversation, text: str, came: list[str] | None = None) -> list[str]:
    """Ask; the pieces of the reply go into `came`, too."""
    came = [] if came is None else came
    async with asyncio.timeout(WAIT_S):
        async for piece in conversation.reply(text):
            came.append(piece)
    return came


def said_in(body: Any) -> list[str]:  # noqa: ANN401 - of JSON
    return [message["content"] for message in body["messages"]]


async def failure(script: Script, **settings: Any) -> tuple[PeerError, list[str], str]:  # noqa: ANN401
    """Ask an endpoint that fails by script; return the error, the pieces before, and the answer that is kept."""
    came: list[str] = []
    async with conversing(script, saying("ok"), **settings) as (conversation, endpoint):
        with pytest.raises(PeerError) as caught:
            await pieces(conversation, "hello", came)
        await pieces(conversation, "and now?")
        kept = [each["content"] for each in endpoint.bodies[-1]["messages"] if each["role"] == "assistant"]
    assert len(str(caught.value)) < 600
    says = str(caught.value).replace(endpoint.url, "URL")
    caught.value.args = (says,)
    return caught.value, came, "".join(kept)


async def test_a_reply_comes_in_pieces() -> None:
    async with conversing(saying("\n\n", " Hel", "lo", " you.")) as (conversation, endpoint):
        assert await pieces(conversation, "hi") == ["Hel", "lo", " you."]
    assert endpoint.bodies == [{"model": "default", "messages": [{"role": "user", "content": "hi"}], "stream": True}]
    assert "authorization" not in endpoint.headers[0]


@pytest.mark.parametrize(
    ("n_turns", "kept"), [(2, ["q0", "q0a0q1", "q0a0q1a1q2", "q1a1q2a2q3"]), (0, ["q0", "q1", "q2", "q3"])]
)
async def test_the_conversation_is_kept_up_to_its_limit_behind_the_system_message(
    n_turns: int, kept: Sequence[str]
) -> None:
    scripts = [saying(f"a{i}") for i in range(4)]
    async with conversing(*scripts, model="m", system="Brief.", history_turns=n_turns) as (conversation, endpoint):
        for i in range(4):
            await pieces(conversation, f"q{i}")
    assert ["".join(said_in(body)) for body in endpoint.bodies] == [f"Brief.{said}" for said in kept]
    roles = [message["role"] for message in endpoint.bodies[-1]["messages"]]
    assert roles == ["system", *["user", "assistant"] * n_turns, "user"]
    assert endpoint.bodies[-1]["model"] == "m"


async def test_the_key_is_a_bearer_token_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "streamer")
    async with conversing(saying("a"), api_key="sk-secret") as (conversation, endpoint):
        await pieces(conversation, "one")
    assert endpoint.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize("ending", ["/", "/chat/completions"])
async def test_an_address_with_slash_or_with_the_whole_path_works(ending: str) -> None:
    async with conversing(saying("a")) as (_, endpoint):
        conversation = Conversation(ChatSettings(url=endpoint.url + ending))
        assert await pieces(conversation, "x") == ["a"]
        await conversation.aclose()


async def test_comments_carriage_returns_and_cuts_anywhere_do_not_matter() -> None:
    stream = (
        ": ping\r\n\r\nevent: x\r\nid: 7\r\n"
        + 'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}\r\n\r\n'
        + message("fünf\u2028", end="\r\n\r\n").replace("\\u2028", "\u2028").replace("\\u00fc", "ü")
        + 'data:{"choices":[{"delta":{"content":" six"}}]}\n\n'
        + 'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
        # Neither [DONE] nor the end of the line: the reason for which it finished is enough.
        + message(None, "stop", end="")
    ).encode()

    async def script(reply: Reply) -> None:
        await reply.start()
        for i in range(0, len(stream), 7):
            await reply.send(stream[i : i + 7])
        await reply.finish()

    async with conversing(script) as (conversation, _):
        assert "".join(await pieces(conversation, "x")) == "fünf\u2028 six"


async def test_an_emoji_in_two_halves_is_one_and_can_be_sent_back() -> None:
    halves = ["a\ud83d", "\ude00b", "\udc00"]
    async with conversing(saying(*halves), saying("ok")) as (conversation, endpoint):
        assert "".join(await pieces(conversation, "x")) == "a😀b\ufffd"
        assert await pieces(conversation, "y\ud800") == ["ok"]
    assert said_in(endpoint.bodies[1])[1] == "a😀b\ufffd"


async def test_an_endpoint_that_does_not_stream_is_understood() -> None:
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": "at once"}}]})
    async with conversing(answering(body)) as (conversation, _):
        assert await pieces(conversation, "x") == ["at once"]


@refusals("completions")
async def test_an_endpoint_that_fails_is_one_sentence_and_what_it_said_is_kept(refusal: Refusal) -> None:
    text = refusal.given.get("sends", "") * refusal.given.get("times", 1)
    if "status" in refusal.given:
        error, came, kept = await failure(answering(text, refusal.given["status"]))
        assert (came, kept) == ([], "")
    else:
        error, came, kept = await failure(streaming("The answer", " is", then=text))
        assert (came, kept) == (["The answer", " is"], "The answer is")
    refusal.check(type(error).__name__, error.code, str(error))


@pytest.mark.parametrize(
    ("script", "limit"),
    [
        (endless(lambda n: str(n * n) * 100), MAX_REPLY_CHARS),
        (endless(lambda n: "and matters "), 2_000),
        (endless(lambda n: f"The capital of {list(LANGUAGE_NAMES.values())[n % 99]} is a city.\n"), 2_000),
        (streaming("Well", then=None), 4),
        (hanging("Well"), 4),
        (streaming("Well", then="x" * (2 * MAX_MESSAGE_BYTES)), 4),
    ],
    ids=["without end", "a loop", "a loop with names", "broken off", "silent", "a long message"],
)
async def test_a_reply_without_its_end_is_an_error(script: Script, limit: int) -> None:
    _, came, kept = await failure(script, timeout_s=2.0)
    assert 0 < len("".join(came)) <= limit
    assert kept.strip() == "".join(came).strip()


async def test_a_list_is_no_loop() -> None:
    lines = [f"{n}. The {name} language.\n" for n, name in enumerate(LANGUAGE_NAMES.values())]
    async with conversing(saying(*lines)) as (conversation, _):
        assert await pieces(conversation, "x") == lines


async def test_a_conversation_that_is_too_long_for_the_model_loses_its_older_half() -> None:
    said = {"code": 400, "message": "request exceeds the available context size", "type": "exceed_context_size_error"}
    too_long = answering(json.dumps({"error": said}), 400, "application/json; charset=utf-8")
    scripts = [*map(saying, "abcde"), too_long, too_long, saying("f"), too_long, too_long, too_long]
    async with conversing(*scripts) as (conversation, endpoint):
        for question in "123456":
            await pieces(conversation, question)
        assert list(map(said_in, endpoint.bodies[5:])) == [[*"1a2b3c4d5e6"], [*"4d5e6"], [*"5e6"]]
        with pytest.raises(RefusalError):
            await pieces(conversation, "a question that is too long alone" * 1000)


class Transcript(Printer):
    """A chatbot and what it shows."""

    def __init__(self, endpoint: Endpoint, pause_s: float) -> None:
        self.endpoint = endpoint
        self.conversation = Conversation(ChatSettings(url=endpoint.url))
        self.lines: list[str] = []
        self.bot = Chatbot(self.conversation, self, pause_s=pause_s)

    def question(self, text: str) -> None:
        self.lines.append(f"you: {text}")

    def piece(self, text: str) -> None:
        self.lines.append(text)

    def interrupt(self) -> None:
        self.lines.append("...")

    def end(self) -> None:
        self.lines.append(".")

    def error(self, error: PeerError) -> None:
        self.lines.append("error")

    async def say(self, text: str, *, shown: str = "") -> None:
        """Say something, and wait until something is shown."""
        self.bot.handle(final(text, end=1.0, words=()))
        n_shown = self.lines.count(shown)
        await (until(lambda: self.lines.count(shown) > n_shown) if shown else asyncio.sleep(0))


@contextlib.asynccontextmanager
async def talking(*scripts: Script, pause_s: float = 1.5) -> AsyncIterator[Transcript]:
    """Run a chatbot to its end beside an endpoint; without scripts the endpoint is away."""
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(WAIT_S):
        async with chat_endpoint() as endpoint:
            pass
        if scripts:
            endpoint = await stack.enter_async_context(chat_endpoint(*scripts))
        transcript = Transcript(endpoint, pause_s)
        await stack.enter_async_context(contextlib.aclosing(transcript.conversation))
        running = asyncio.create_task(transcript.bot.run())
        yield transcript
        transcript.bot.close()
        await running


@pytest.fixture
async def skip(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what moves the loop's clock on by so many seconds."""
    loop = asyncio.get_running_loop()
    real, skipped = loop.time, list[float]()
    monkeypatch.setattr(loop, "time", lambda: real() + sum(skipped))
    return skipped.append


async def test_half_a_sentence_is_asked_after_a_pause_and_with_what_follows(skip: Callable[[float], None]) -> None:
    async with talking(saying("Paris."), saying("Yes."), pause_s=10) as transcript:
        await transcript.say(" What is the capital")
        transcript.bot.handle(Speech(state="start", time=1.0))
        await transcript.say(" of France?")
        assert transcript.lines == []
        transcript.bot.handle(Speech(state="end", time=1.0))
        await until(lambda: "." in transcript.lines)
        await transcript.say(" And then")
        assert len(transcript.endpoint.bodies) == 1
        skip(11)  # less than what the waits here take at most
        await until(lambda: "Yes." in transcript.lines)
    assert transcript.endpoint.questions == ["What is the capital of France?", "And then"]


async def test_the_speaker_interrupts_an_answer_and_the_model_knows_what_it_has_said() -> None:
    hung_up = asyncio.Event()
    async with talking(hanging("Once upon", hung_up=hung_up), saying("Sorry.")) as transcript:
        await transcript.say(" Tell me a story.", shown="Once upon")
        transcript.bot.handle(Speech(state="start", time=1.0))
        transcript.bot.handle(partial(" Uh", segment=5))
        await asyncio.sleep(0)
        assert not hung_up.is_set()  # a noise is no word
        transcript.bot.handle(partial(" Wait", 5, segment=5))
        await until(lambda: hung_up.is_set() and transcript.lines[-1] == "...")
        await transcript.say(" Wait.")
    assert transcript.lines == ["you: Tell me a story.", "Once upon", "...", "you: Wait.", "Sorry.", "."]
    assert said_in(transcript.endpoint.bodies[1])[1] == "Once upon"


async def test_a_question_that_goes_on_before_its_answer_is_asked_once_more_as_a_whole() -> None:
    async with talking(hanging(), saying("Blue.")) as transcript:
        await transcript.say(" Which colour?")
        await until(lambda: len(transcript.endpoint.bodies) == 1)
        await transcript.say(" Of the sky.")
    assert transcript.lines == ["you: Which colour?", "...", "you: Which colour? Of the sky.", "Blue.", "."]
    assert len(said_in(transcript.endpoint.bodies[1])) == 1


async def test_a_failure_is_shown_and_the_conversation_continues() -> None:
    async with talking(saying("a"), answering("busy", 500), saying(" ", "\n"), saying("b")) as transcript:
        await transcript.say(" One.", shown=".")
        await transcript.say(" Two.", shown="error")
        await transcript.say(" Three.", shown="error")
        await transcript.say(" Four.")
    shown = ["you: One.", "a", ".", "you: Two.", "error", "you: Two. Three.", "error", "you: Four.", "b", "."]
    assert transcript.lines == shown
    # An answer without words is none.
    assert said_in(transcript.endpoint.bodies[-1])[:2] == ["One.", "a"]


async def test_a_question_to_an_endpoint_that_is_away_is_asked_with_the_next() -> None:
    async with talking() as transcript:
        await transcript.say(" One.", shown="error")
        await transcript.say(" Two.", shown="error")
    # The last attempt is made at the end.
    assert transcript.lines == ["you: One.", "error", "you: One. Two.", "error", "you: One. Two.", "error"]


@pytest.mark.parametrize(("status", "ends"), [(404, True), (429, False), (503, False)])
async def test_a_first_answer_ends_it_only_if_the_address_is_wrong(status: int, ends: bool) -> None:
    with pytest.raises(PeerError) if ends else contextlib.nullcontext():
        async with talking(answering("{}", status)) as transcript:
            await transcript.say(" One.")
    assert transcript.lines == ["you: One.", *([] if ends else ["error"])]
