"""`streamer chat`: talks to a chatbot through a running daemon."""

import asyncio
import contextlib

from streamer.client.connection import DaemonAddress
from streamer.commands.listen import follow
from streamer.commands.terminal import make_console
from streamer.errors import UsageError
from streamer.plugins.chat.chatbot import Chatbot, Conversation
from streamer.plugins.chat.printer import Printer
from streamer.plugins.chat.settings import ChatSettings
from streamer.settings.table import Settings


def chat(settings: Settings, daemon: DaemonAddress) -> int:
    """Ask the chatbot of the settings what is said to a daemon, and print the replies. Returns the exit code.

    Raises UsageError if no chatbot is named, PeerError if there is no daemon or it refuses.
    """
    if not settings.of(ChatSettings).url:
        raise UsageError("no chat endpoint: give --to http://HOST:PORT/v1, or set chat.url in the configuration file")
    asyncio.run(_converse(daemon, settings.of(ChatSettings)))
    return 0


async def _converse(address: DaemonAddress, settings: ChatSettings) -> None:
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
