"""Prints a conversation as it goes."""

from rich.console import Console
from rich.text import Text

from streamer.commands.terminal import notice
from streamer.errors import PeerError


class Printer:
    """Prints each question and the pieces of its reply, which `interrupt`, `end` or `error` follows."""

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

    def error(self, error: PeerError) -> None:
        self.end()
        notice(f"error: {error}")

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), end="", soft_wrap=True)
        self._console.file.flush()
