"""The chatbot against a small real endpoint: conversations, and everything an endpoint may do wrong."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from streamer.errors import ConfigError, PeerError, RefusalError
from streamer.events import Event, Final, Speech
from streamer.languages import LANGUAGE_NAMES
from streamer.plugins.chat.chatbot import Chatbot, Conversation
from streamer.plugins.chat.printer import Printer
from streamer.plugins.chat.settings import ChatSettings
from streamer.plugins.completions import MAX_MESSAGE_BYTES, MAX_REPLY_CHARS
from tests import builders
from tests.builders import partial
from tests.chat_endpoint import Endpoint, Reply, Script, chat_endpoint, message, saying
from tests.waiting import WAIT_S, until


def final(text: str, segment: int = 0) -> Final:
    return builders.final(text, end=1.0, segment=segment)


def conversing(url: str, **settings: Any) -> contextlib.aclosing[Conversation]:  # noqa: ANN401
    return contextlib.aclosing(Conversation(ChatSettings(url=url, **settings)))


async def pieces(conversation: Conversation, text: str) -> list[str]:
    async with asyncio.timeout(WAIT_S):
        return [piece async for piece in conversation.reply(text)]


async def collect(conversation: Conversation, came: list[str]) -> None:
    async with asyncio.timeout(WAIT_S):
        async for piece in conversation.reply("hello"):
            came.append(piece)


async def failure(script: Script, **settings: Any) -> tuple[str, list[str], list[str]]:  # noqa: ANN401
    """Ask an endpoint that fails by script; return the message, the pieces before, and the answers that are kept."""
    came: list[str] = []
    async with chat_endpoint(script, saying("ok")) as endpoint, conversing(endpoint.url, **settings) as conversation:
        with pytest.raises(PeerError) as caught:
            await collect(conversation, came)
        await pieces(conversation, "and now?")
        kept = [message["content"] for message in endpoint.bodies[-1]["messages"] if message["role"] == "assistant"]
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    return text, came, kept


async def test_a_reply_comes_in_pieces() -> None:
    async with (
        chat_endpoint(saying("\n\n", " Hel", "lo", " you.")) as endpoint,
        conversing(endpoint.url) as conversation,
    ):
        assert await pieces(conversation, "hi") == ["Hel", "lo", " you."]
        expected = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        assert endpoint.bodies == [expected]
        assert "authorization" not in endpoint.headers[0]


async def test_a_piece_is_yielded_before_the_next_is_sent() -> None:
    first_came = asyncio.Event()

    async def script(reply: Reply) -> None:
        await reply.start()
        await reply.say("one")
        async with asyncio.timeout(WAIT_S):
            await first_came.wait()
        await reply.say("two")
        await reply.end()

    async with chat_endpoint(script) as endpoint, conversing(endpoint.url) as conversation:
        came = []
        async for piece in conversation.reply("hi"):
            came.append(piece)
            first_came.set()
    assert came == ["one", "two"]


async def test_the_conversation_is_kept_up_to_its_limit_with_the_system_message_first() -> None:
    scripts = [saying(f"answer {i}") for i in range(4)]
    async with (
        chat_endpoint(*scripts) as endpoint,
        conversing(endpoint.url, model="m", system="Be brief.", history_turns=2) as conversation,
    ):
        for i in range(4):
            await pieces(conversation, f"question {i}")
    system = {"role": "system", "content": "Be brief."}
    turns = [
        ({"role": "user", "content": f"question {i}"}, {"role": "assistant", "content": f"answer {i}"})
        for i in range(4)
    ]
    assert endpoint.bodies[0]["messages"] == [system, turns[0][0]]
    assert endpoint.bodies[2]["messages"] == [system, *turns[0], *turns[1], turns[2][0]]
    assert endpoint.bodies[3]["messages"] == [system, *turns[1], *turns[2], turns[3][0]]
    assert endpoint.bodies[3]["model"] == "m"
    async with (
        chat_endpoint(*scripts[:2]) as endpoint,
        conversing(endpoint.url, history_turns=0) as conversation,
    ):
        for i in range(2):
            await pieces(conversation, f"question {i}")
    assert endpoint.bodies[1]["messages"] == [turns[1][0]]


async def test_the_key_is_a_bearer_token_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "streamer")
    async with (
        chat_endpoint(saying("a")) as endpoint,
        conversing(endpoint.url, api_key="sk-secret") as conversation,
    ):
        await pieces(conversation, "one")
    assert endpoint.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize("key", ["a\nb", "ключ", "a\r\nX-Evil: 1"])
def test_a_key_that_cannot_be_one_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Conversation(ChatSettings(url="http://h/v1", api_key=key))
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "h:1/v1", "ftp://h/v1", "http://", "http://[", "http://h:port/v1", "http://h:99999"]
)
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected http://HOST:PORT/v1"):
        Conversation(ChatSettings(url=url))


async def test_an_address_with_slash_or_with_the_whole_path_works() -> None:
    async with chat_endpoint(saying("a"), saying("b")) as endpoint:
        for url in (endpoint.url + "/", endpoint.url + "/chat/completions"):
            async with conversing(url) as conversation:
                assert await pieces(conversation, "x") in (["a"], ["b"])


async def test_comments_carriage_returns_and_cuts_anywhere_do_not_matter() -> None:
    stream = (
        ": ping\r\n\r\nevent: x\r\nid: 7\r\n"
        + 'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}\r\n\r\n'
        + message("fünf\u2028", end="\r\n\r\n").replace("\\u2028", "\u2028").replace("\\u00fc", "ü")
        + 'data:{"choices":[{"delta":{"content":" six"}}]}\n\n'
        + 'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
        + message(None, "stop")
    ).encode()

    async def script(reply: Reply) -> None:
        await reply.start()
        for i in range(0, len(stream), 7):
            await reply.send(stream[i : i + 7])
        await reply.finish()  # without [DONE]: the reason for which it finished was given

    async with chat_endpoint(script) as endpoint, conversing(endpoint.url) as conversation:
        assert "".join(await pieces(conversation, "x")) == "fünf\u2028 six"


async def test_the_last_message_needs_no_line_end() -> None:
    async def script(reply: Reply) -> None:
        await reply.start()
        await reply.send('data: {"choices":[{"delta":{"content":"all"},"finish_reason":"stop"}]}')
        await reply.finish()

    async with chat_endpoint(script) as endpoint, conversing(endpoint.url) as conversation:
        assert await pieces(conversation, "x") == ["all"]


async def test_an_emoji_in_two_halves_is_one_and_can_be_sent_back() -> None:
    async def script(reply: Reply) -> None:
        await reply.start()
        for half in ("a\\ud83d", "\\ude00b", "\\udc00"):
            await reply.send('data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % half)  # noqa: UP031
        await reply.end()

    async with chat_endpoint(script, saying("ok")) as endpoint, conversing(endpoint.url) as conversation:
        assert "".join(await pieces(conversation, "x")) == "a😀b\ufffd"
        assert await pieces(conversation, "y\ud800") == ["ok"]
        assert endpoint.bodies[1]["messages"][1]["content"] == "a😀b\ufffd"


async def test_an_endpoint_that_does_not_stream_is_understood() -> None:
    async def script(reply: Reply) -> None:
        await reply.start(content_type="application/json")
        await reply.end(json.dumps({"choices": [{"message": {"role": "assistant", "content": "at once"}}]}))

    async with chat_endpoint(script) as endpoint, conversing(endpoint.url) as conversation:
        assert await pieces(conversation, "x") == ["at once"]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, '{"error":{"message":"Incorrect\\nAPI key"}}', ["401", "(Incorrect API key)", "STREAMER_CHAT_API_KEY"]),
        (404, '{"error":"model \'x\' not found"}', ["404", "(model 'x' not found)", "--model", "/v1"]),
        *((422, '{"detail":"too long"}', ["422", "(too long)"]), (500, "<h1>oh\nno</h1>", ["500", "oh no"])),
        *(
            (502, "", ["502"]),
            (307, "", ["307"]),
            (503, "x" * 1_000_000, ["503", "xxx"]),
            (400, "[" * 100_000, ["400"]),
        ),
    ],
)
async def test_a_refusal_has_the_endpoints_words(status: int, body: str, words: list[str]) -> None:
    async def script(reply: Reply) -> None:
        await reply.start(status, "application/json")
        await reply.end(body or " ")

    text, came, kept = await failure(script)
    assert [word for word in words if word not in text] == []
    assert came == kept == []


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        *((None, "broke off"), ("", "cut off before its end")),
        ('{"error":{"message":"out of memory","code":500}}', "out of memory"),
        *(("{", "the reply has"), ("[1]", "the reply has"), ("[" * 100_000, "the reply has"), ("{}", "the reply has")),
        *(('{"choices":{}}', "the reply has"), ('{"choices":[1]}', "the reply has")),
        ('{"choices":[{"delta":{"content":7}}]}', "the reply has"),
        ('{"choices":[{"delta":"x","finish_reason":null},{}]}x', "the reply has"),
        ("x" * (2 * MAX_MESSAGE_BYTES), "expected a few words a message"),
    ],
)
async def test_a_reply_that_ends_badly_is_one_line_and_its_text_is_kept(tail: str | None, words: str) -> None:
    async def script(reply: Reply) -> None:
        await reply.start()
        await reply.say("The answer")
        await reply.say(" is")
        await (reply.cut() if tail is None else reply.end(f"data: {tail}\n\n" if tail else ": bye\n\n"))

    text, came, kept = await failure(script)
    assert words in text
    assert came == ["The answer", " is"]
    assert kept == ["The answer is"]


async def test_a_conversation_that_is_too_long_for_the_model_loses_its_older_half() -> None:
    async def too_long(reply: Reply) -> None:
        await reply.start(400, "application/json; charset=utf-8")
        said = "request (4123 tokens) exceeds the available context size (4096 tokens), try increasing it"
        await reply.end(json.dumps({"error": {"code": 400, "message": said, "type": "exceed_context_size_error"}}))

    scripts = [*map(saying, "abcde"), too_long, too_long, saying("f"), too_long, too_long, too_long]
    async with chat_endpoint(*scripts) as endpoint, conversing(endpoint.url) as conversation:
        for question in "123456":
            await pieces(conversation, question)
        sent = [[message["content"] for message in body["messages"]] for body in endpoint.bodies]
        assert sent[5:] == [[*"1a2b3c4d5e6"], [*"4d5e6"], [*"5e6"]]
        with pytest.raises(RefusalError, match=r"400 .*exceeds the available context size"):
            await pieces(conversation, "a question that is too long alone" * 1000)


async def test_a_reply_without_words_is_an_error_and_does_not_end_the_conversation() -> None:
    async with chat_endpoint(saying(" ", "\n"), saying("b")) as endpoint:
        transcript = Transcript(endpoint)
        running = asyncio.create_task(transcript.run())
        transcript.bot.handle(final(" One."))
        await until(lambda: len(transcript.lines) == 2)
        transcript.bot.handle(final(" Two."))
        transcript.bot.close()
        await running
        assert len(endpoint.bodies[1]["messages"]) == 1
    assert transcript.lines[1].startswith("error: the reply has no words")
    assert transcript.lines[2:] == ["you: Two.", "b", "."]


async def test_a_reply_without_end_is_cut() -> None:
    numbers = " ".join(str(n * n) for n in range(10_000))

    async def script(reply: Reply) -> None:
        await reply.start()
        with contextlib.suppress(ConnectionError):
            for _ in range(10 * MAX_REPLY_CHARS // len(numbers)):
                await reply.say(numbers)

    text, came, _ = await failure(script)
    assert "longer than" in text
    assert len("".join(came)) <= MAX_REPLY_CHARS


@pytest.mark.parametrize("sentence", ["and matters ", "The capital of {} is the capital of {}.\n"])
async def test_a_reply_that_repeats_itself_is_cut(sentence: str) -> None:
    async def script(reply: Reply) -> None:
        await reply.start()
        with contextlib.suppress(ConnectionError):
            for n in range(10_000):
                await reply.say(sentence.replace("{}", list(LANGUAGE_NAMES.values())[n % 99]))

    text, came, _ = await failure(script)
    assert "repeats itself" in text
    assert len("".join(came)) < 2_000


async def test_a_list_is_no_loop() -> None:
    lines = [f"{n}. The {name} language.\n" for n, name in enumerate(LANGUAGE_NAMES.values())]
    async with chat_endpoint(saying(*lines)) as endpoint, conversing(endpoint.url) as conversation:
        assert await pieces(conversation, "x") == lines


async def test_an_endpoint_that_falls_silent_is_given_up() -> None:
    async def script(reply: Reply) -> None:
        await reply.start()
        await reply.say("Well")
        await reply.hang()

    text, came, kept = await failure(script, timeout_s=2.0)
    assert "silent" in text
    assert came == kept == ["Well"]


async def test_another_kind_of_server_is_an_error() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with conversing(url) as conversation:
            with pytest.raises(PeerError, match="broke off"):
                await pieces(conversation, "x")


class Transcript(Printer):
    """A chatbot and what it shows."""

    def __init__(self, endpoint: Endpoint, *, pause_s: float = 1.5) -> None:
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
        self.lines.append(f"error: {error}")

    async def run(self) -> None:
        async with contextlib.aclosing(self.conversation), asyncio.timeout(WAIT_S):
            await self.bot.run()


@pytest.fixture
async def skip(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Returns what moves the loop's clock on by so many seconds."""
    loop = asyncio.get_running_loop()
    real, skipped_s = loop.time, 0.0

    def move_on(seconds: float) -> None:
        nonlocal skipped_s
        skipped_s += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + skipped_s)
    return move_on


async def test_half_a_sentence_is_asked_after_a_pause_and_with_what_follows(skip: Callable[[float], None]) -> None:
    async with chat_endpoint(saying("Paris."), saying("Yes.")) as endpoint:
        transcript = Transcript(endpoint, pause_s=10)
        running = asyncio.create_task(transcript.run())
        spoken: list[Event] = [final(" What is the capital"), Speech(state="start", time=1.0), final(" of France?")]
        for event in spoken:
            transcript.bot.handle(event)
            await asyncio.sleep(0)
        assert transcript.lines == []
        transcript.bot.handle(Speech(state="end", time=1.0))
        await until(lambda: "." in transcript.lines)
        transcript.bot.handle(final(" And then"))
        await asyncio.sleep(0)
        assert len(endpoint.bodies) == 1
        skip(11)  # less than what the waits here take at most
        await until(lambda: "Yes." in transcript.lines)
        transcript.bot.close()
        await running
    assert endpoint.questions == ["What is the capital of France?", "And then"]


async def test_the_speaker_interrupts_an_answer_and_the_model_knows_what_it_has_said() -> None:
    hung_up = asyncio.Event()

    async def endless(reply: Reply) -> None:
        await reply.start()
        await reply.say("Once upon")
        await reply.hang()
        hung_up.set()

    async with chat_endpoint(endless, saying("Sorry.")) as endpoint:
        transcript = Transcript(endpoint)
        running = asyncio.create_task(transcript.run())
        transcript.bot.handle(final(" Tell me a story."))
        await until(lambda: "Once upon" in transcript.lines)
        transcript.bot.handle(Speech(state="start", time=1.0))
        transcript.bot.handle(partial(" Uh", segment=5))
        await asyncio.sleep(0)
        assert not hung_up.is_set()  # a noise is no word
        transcript.bot.handle(partial(" Wait", 5, segment=5))
        await until(hung_up.is_set)
        assert transcript.lines[-1] == "..."
        transcript.bot.handle(final(" Wait.", segment=5))
        transcript.bot.close()
        await running
    assert transcript.lines == ["you: Tell me a story.", "Once upon", "...", "you: Wait.", "Sorry.", "."]
    assert endpoint.bodies[1]["messages"][1] == {"role": "assistant", "content": "Once upon"}


async def test_a_question_that_goes_on_before_its_answer_is_asked_once_more_as_a_whole() -> None:
    async def thinking(reply: Reply) -> None:
        await reply.start()
        await reply.hang()

    async with chat_endpoint(thinking, saying("Blue.")) as endpoint:
        transcript = Transcript(endpoint)
        running = asyncio.create_task(transcript.run())
        transcript.bot.handle(final(" Which colour?"))
        await until(lambda: len(endpoint.bodies) == 1)
        transcript.bot.handle(final(" Of the sky."))
        transcript.bot.close()
        await running
    assert transcript.lines == ["you: Which colour?", "...", "you: Which colour? Of the sky.", "Blue.", "."]
    assert len(endpoint.bodies[1]["messages"]) == 1


async def test_a_failure_is_shown_and_the_conversation_continues() -> None:
    async def failing(reply: Reply) -> None:
        await reply.start(500)
        await reply.end("busy")

    async with chat_endpoint(saying("a"), failing, saying("b")) as endpoint:
        transcript = Transcript(endpoint)
        running = asyncio.create_task(transcript.run())
        for number, text in ((3, " One."), (5, " Two.")):
            transcript.bot.handle(final(text))
            await until(lambda number=number: len(transcript.lines) >= number)  # type: ignore[misc]
        transcript.bot.handle(final(" Three."))
        transcript.bot.close()
        await running
    assert [line[:16] for line in transcript.lines] == [
        "you: One.", "a", ".", "you: Two.", "error: http://12", "you: Two. Three.", "b", "."
    ]  # fmt: skip


def answering(status: int) -> Script:
    async def script(reply: Reply) -> None:
        await reply.start(status, "application/json")
        await reply.end("{}")

    return script


async def test_a_question_to_an_endpoint_that_is_away_is_asked_with_the_next() -> None:
    async with chat_endpoint() as absent:
        pass
    transcript = Transcript(absent)
    running = asyncio.create_task(transcript.run())
    for n, text in enumerate((" One.", " Two."), 1):
        transcript.bot.handle(final(text))
        await until(lambda n=n: len(transcript.lines) == 2 * n)  # type: ignore[misc]
    transcript.bot.close()  # a last attempt
    await running
    questions, errors = transcript.lines[::2], transcript.lines[1::2]
    assert questions == ["you: One.", "you: One. Two.", "you: One. Two."]
    assert len(errors) == 3
    assert all("cannot be reached (" in error and "start the chat endpoint" in error for error in errors)


@pytest.mark.parametrize(("status", "ends"), [(404, True), (429, False), (503, False)])
async def test_a_first_answer_ends_it_only_if_the_address_is_wrong(status: int, ends: bool) -> None:
    async with chat_endpoint(answering(status)) as endpoint:
        transcript = Transcript(endpoint)
        transcript.bot.handle(final(" One."))
        transcript.bot.close()
        with pytest.raises(PeerError, match="404") if ends else contextlib.nullcontext():
            await transcript.run()
    assert [line[:7] for line in transcript.lines] == ["you: On", *([] if ends else ["error: "])]
