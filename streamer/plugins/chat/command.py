"""`streamer chat`: talks to a chatbot through a running daemon."""

import asyncio
import contextlib

from rich.console import Console
from rich.text import Text

from streamer.client.connection import DaemonAddress
from streamer.commands.listen import daemon_address, follow, shown_token
from streamer.commands.terminal import make_console, notice
from streamer.errors import StreamerError, UsageError
from streamer.plugins.chat.chatbot import Chatbot, Conversation
from streamer.plugins.chat.settings import ChatSettings
from streamer.settings.table import Settings


def chat(settings: Settings, url: str | None, *, token_file: str, fingerprint: str) -> int:
    """Ask the chatbot of the settings what is said to a daemon, and print the replies. Returns the exit code.

    url : the daemon; None: that of the settings
    token_file : holds the bearer token alone; `-` is standard input, empty: see `daemon_address`
    fingerprint : SHA-256 of the certificate that it must show; empty: one that this machine trusts

    Raises UsageError if no chatbot is named, PeerError if there is no daemon or it refuses.
    """
    if not settings.of(ChatSettings).url:
        raise UsageError(
            "no chat endpoint is named: give --to http://HOST:PORT/v1, or set chat.url in the configuration file"
        )
    address = daemon_address(url, shown_token(token_file), fingerprint, settings)
    asyncio.run(_converse(address, settings.of(ChatSettings)))
    return 0


async def _converse(address: DaemonAddress, settings: ChatSettings) -> None:
    printer = _Printer(make_console())
    async with contextlib.aclosing(Conversation(settings)) as conversation:
        bot = Chatbot(conversation, printer, pause_s=settings.pause_s)
        following = asyncio.create_task(follow(address, bot, tell_trouble=True))
        following.add_done_callback(lambda _: bot.close())
        try:
            await bot.run()
            await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            printer.end()


class _Printer:
    """Prints a conversation as it goes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Whether a line has been begun and not ended.
        self._in_line = False

    def question(self, text: str) -> None:
        self._print("you: ", "bold cyan")
        self._print(text + "\n")
        self._print("bot: ", "bold green")
        self._in_line = True

    def piece(self, text: str) -> None:
        self._print("".join(char if char.isprintable() or char == "\n" else " " for char in text))

    def interrupt(self) -> None:
        self._print(" ...")
        self.end()

    def end(self) -> None:
        if self._in_line:
            self._in_line = False
            self._print("\n")

    def error(self, error: StreamerError) -> None:
        self.end()
        notice(f"error: {error}")

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), end="", soft_wrap=True)
        self._console.file.flush()
