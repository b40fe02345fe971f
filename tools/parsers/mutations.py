"""Valid samples, damaged in the ways that find faults in parsers: bytes, lengths, numbers, pieces, depth."""

import re
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

MOST_BYTES = 1 << 22

# Values that lengths, counts and offsets take where programs go wrong.
_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1)
_SCALARS = (
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e400",
    b"-0.0",
    b"99999999999999999999",
    b"9" * 5000,
    b"NaN",
    b"Infinity",
    b'""',
    b"[]",
    b"{}",
    b"[[]]",
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\xff"',
    b"0.1",
    b'"1"',
)
_PIECES = (
    b"\x00",
    b"\xff",
    b"\n",
    b"\r\n",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[" * 20_000,
    b"(" * 5000,
    b"<a>" * 5000,
    b"%",
    b":",
    b"::",
    b",",
    b"-",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\x1b[31m",
    "\u009b\u202e\u2028".encode(),
    b"../",
    b"&a;",
    b"!!python/object:os.system",
    b"*a",
    b"&a [*a]",
    b"e" * 3000,
    b"data: ",
    b"|",
    b"#",
)
_SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null')


@st.composite
def damaged(draw: DrawFn, samples: Sequence[bytes]) -> bytes:
    """Draw one of some samples with up to six things changed."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, 6))):
        at = _place(draw, len(data))
        match draw(
            st.sampled_from(
                (
                    "flip",
                    "flip",
                    "number",
                    "number",
                    "scalar",
                    "scalar",
                    "cut",
                    "end",
                    "double",
                    "piece",
                    "splice",
                    "random",
                )
            )
        ):
            case "flip" if data:
                data[at % len(data)] ^= draw(st.integers(1, 255))
            case "number":
                width = draw(st.sampled_from((1, 2, 4, 8)))
                number = draw(st.sampled_from(_NUMBERS)) & (1 << 8 * width) - 1
                data[at : at + width] = number.to_bytes(width, draw(st.sampled_from(("little", "big"))))
            case "scalar":
                begin = max(0, at - 2000)
                found = list(_SCALAR.finditer(data, begin, begin + 4000))
                if found:
                    first, last = draw(st.sampled_from([match.span() for match in found]))
                    data[first:last] = draw(st.sampled_from(_SCALARS))
            case "cut":
                del data[at : at + draw(st.integers(1, 64))]
            case "end":
                del data[at:]
            case "double":
                piece = data[at : at + draw(st.integers(1, 200))]
                data[at:at] = piece * draw(st.sampled_from((1, 2, 100)))
            case "piece":
                data[at:at] = draw(st.sampled_from(_PIECES))
            case "splice":
                other = draw(st.sampled_from(samples))
                data[at:] = other[_place(draw, len(other)) :]
            case "random":
                data[at:at] = draw(st.binary(max_size=32))
    return bytes(data[:MOST_BYTES])


def _place(draw: DrawFn, length: int) -> int:
    """Draw a place: headers are at the beginnings of most files, and at the ends of archives."""
    near = draw(st.integers(0, min(length, 300)))
    match draw(st.sampled_from(("near", "near", "end", "any"))):
        case "near":
            return near
        case "end":
            return length - near
        case _:
            return draw(st.integers(0, length))
