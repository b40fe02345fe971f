import pytest

from streamer.outside import escaped, host_port, one_line, own_host, printable


def test_text_from_outside_steers_nothing_and_stays_on_its_line() -> None:
    assert printable("a\x1b[2J\n世\u202eb") == "a [2J 世 b"
    assert one_line(" a \r\n\x1b b\u2028") == "a b"
    assert one_line(ValueError("no\nmore")) == "no more"


def test_control_characters_are_written_out() -> None:
    assert escaped("a\x1b[2J\x9b\n世\u202e\udcff") == r"a\x1b[2J\x9b\n世\u202e\udcff"
    assert escaped("a\n\tb", keep="\n") == "a\n\\tb"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("[::1]", "[::1]:8765"),
        ("::1", "[::1]:8765"),
        ("[::]", "[::1]:8765"),
        ("::", "[::1]:8765"),
        ("0.0.0.0", "127.0.0.1:8765"),
        ("localhost", "localhost:8765"),
    ],
)
def test_a_host_may_have_brackets(host: str, address: str) -> None:
    assert host_port(own_host(host), 8765) == address
