"""Server-sent events, without I/O: bytes in, messages out.

Source: WHATWG HTML Living Standard, section 9.2.6, "Interpreting an event stream". Only `data` is kept, which is all
that chat endpoints send.
"""

import re

from streamer.errors import PeerError

MAX_MESSAGE_BYTES = 1 << 20  # a chat endpoint's message is a few words

# Only these end a line; str.splitlines would also cut at U+2028, which JSON may contain.
_BLANK_LINE = re.compile(rb"\r?\n\r?\n|\r\r")
_LINE_END = re.compile(r"\r\n|\r|\n")


class ServerSentEvents:
    """Takes an event stream in pieces, cut anywhere, and returns the data of its messages."""

    def __init__(self) -> None:
        # The message that is not complete yet.
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes and return the messages that they complete. Raises PeerError for an endless one."""
        *messages, self._rest = _BLANK_LINE.split(self._rest + data)
        if len(self._rest) > MAX_MESSAGE_BYTES:
            raise PeerError(f"the reply has a message of more than {MAX_MESSAGE_BYTES} bytes: expected a few words")
        found = [_data(message.decode("utf-8-sig", "replace")) for message in messages]
        return ["\n".join(lines) for lines in found if lines]

    def finish(self) -> list[str]:
        """Take the end of the stream. A last message without the blank line that should end it is returned, too."""
        return self.feed(b"\n\n")


def _data(message: str) -> list[str]:
    """Return the values of a message's `data` lines."""
    fields = (line.partition(":") for line in _LINE_END.split(message))
    return [value.removeprefix(" ") for name, _, value in fields if name == "data"]
