"""`streamer chat`: talks to a chatbot through a running daemon."""

import contextlib
from typing import TYPE_CHECKING, Annotated

from streamer.commands.listen import Daemon, Fingerprint, TokenFile, daemon_address, follow
from streamer.commands.signature import Flags, endless
from streamer.commands.terminal import make_console, run_until_interrupted
from streamer.errors import UsageError
from streamer.plugins.chat.settings import ChatSettings
from streamer.settings.table import Settings

if TYPE_CHECKING:
    from streamer.client.connection import DaemonAddress


@endless
def chat(
    *,
    daemon: Daemon = None,
    token_file: TokenFile = "",
    fingerprint: Fingerprint = "",
    settings: Annotated[Settings, Flags(("chat.url", "chat.model", "chat.system"))],
) -> int:
    """Talk to a chatbot through a running daemon.

    Sends each final text to an OpenAI-compatible chat endpoint and prints the replies.

    Example: streamer chat --to http://127.0.0.1:11434/v1 --model llama3
    """
    address = daemon_address(daemon, token_file, fingerprint, settings)
    if not settings.of(ChatSettings).url:
        raise UsageError("no chat endpoint: give --to http://HOST:PORT/v1, or set chat.url in the configuration file")
    run_until_interrupted(_converse(address, settings.of(ChatSettings)))
    return 0


async def _converse(address: "DaemonAddress", settings: ChatSettings) -> None:
    # Late, as the command line itself needs none of them.
    import asyncio

    from streamer.plugins.chat.chatbot import Chatbot, Conversation
    from streamer.plugins.chat.printer import Printer

    printer = Printer(make_console())
    async with contextlib.aclosing(Conversation(settings)) as conversation:
        bot = Chatbot(conversation, printer, pause_s=settings.pause_s)
        following = asyncio.create_task(follow(address, bot.handle, tell_trouble=True))
        following.add_done_callback(lambda _: bot.close())
        try:
            await bot.run()
            await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            printer.end()
