"""Server-sent events: the specification's examples, and pieces cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import PeerError
from streamer.sinks.sse import MAX_MESSAGE_BYTES, ServerSentEvents

STREAM = (
    "\ufeff: a comment\n\ndata: one\n\ndata:two\r\ndata:  three\r\n\r\nevent: x\rid: 7\rdata: fünf\u2028😀\r\r"
    "data\n\nretry: 1\n\ndatum: no\n\ndata: [DONE]\n\n"
)
MESSAGES = ["one", "two\n three", "fünf\u2028😀", "", "[DONE]"]


def decoded(*pieces: bytes) -> list[str]:
    events = ServerSentEvents()
    return [message for piece in pieces for message in events.feed(piece)] + events.finish()


def test_comments_multiple_lines_and_all_line_ends() -> None:
    assert decoded(STREAM.encode()) == MESSAGES


@given(st.lists(st.integers(0, len(STREAM.encode()))))
def test_the_cuts_between_pieces_do_not_matter(cuts: list[int]) -> None:
    data = STREAM.encode()
    places = [0, *sorted(cuts), len(data)]
    assert decoded(*(data[a:b] for a, b in pairwise(places))) == MESSAGES


def test_a_message_comes_with_its_blank_line_and_not_before() -> None:
    events = ServerSentEvents()
    assert events.feed(b"data: a\n") == []
    assert events.feed(b"\n") == ["a"]
    assert events.finish() == []


@pytest.mark.parametrize("tail", ["data: last", "data: last\n", "data: last\r\n", "data: last\n\n"])
def test_a_last_message_needs_no_blank_line(tail: str) -> None:
    assert decoded(tail.encode()) == ["last"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert decoded(b"data: a\xff\n\n") == ["a\ufffd"]


@pytest.mark.parametrize("piece", [b"x" * 65_536, b"data: " + b"x" * 65_530, b"data: x\n" * 8192, b"data\n" * 8192])
def test_an_endless_message_is_refused(piece: bytes) -> None:
    with pytest.raises(PeerError, match="more than"):
        decoded(*[piece] * (20 * MAX_MESSAGE_BYTES // len(piece)))
