"""Server-sent events, without I/O: bytes in, messages out.

Source: WHATWG HTML Living Standard, section 9.2.6, "Interpreting an event stream". Only `data` is kept, which is all
that chat endpoints send.
"""

import codecs

from streamer.errors import PeerError

MAX_MESSAGE_CHARS = 1 << 20  # an endpoint's message is a few words; beyond this it is no event stream


class ServerSentEvents:
    """Takes an event stream in pieces, cut anywhere, and gives the data of its messages."""

    def __init__(self) -> None:
        # Bytes of a character that is not complete yet; it drops a byte order mark.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")

        # The line that is not complete yet.
        self._line = ""

        # Whether the last piece ended with a carriage return, whose line feed may be the first of the next.
        self._after_return = False

        # The `data` lines of the message that is not complete yet, and their length.
        self._data: list[str] = []
        self._data_chars = 0

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes and return the messages that they complete. Raises PeerError where one is endless."""
        return self._take(self._decoder.decode(data))

    def finish(self) -> list[str]:
        """Take the end of the stream. A last message without the blank line that should end it is returned too."""
        return self._take(self._decoder.decode(b"", final=True) + "\n\n")

    def _take(self, text: str) -> list[str]:
        if self._after_return and text:
            text = text.removeprefix("\n")
            self._after_return = False
        self._after_return = self._after_return or text.endswith("\r")
        # Only these end a line; str.splitlines would also cut at U+2028, which JSON may contain.
        *lines, self._line = (self._line + text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
        messages = [message for line in lines if (message := self._take_line(line)) is not None]
        if len(self._line) + self._data_chars > MAX_MESSAGE_CHARS:
            raise PeerError(
                f"the reply has a message of more than {MAX_MESSAGE_CHARS} characters: expected a few words"
            )
        return messages

    def _take_line(self, line: str) -> str | None:
        if line == "":
            message, self._data, self._data_chars = self._data, [], 0
            return "\n".join(message) if message else None
        field, _, value = line.partition(":")
        if field == "data":  # a comment has an empty field name; `event`, `id` and `retry` mean nothing here
            self._data.append(value.removeprefix(" "))
            self._data_chars += len(value) + 1
        return None
