from streamer.outside import escaped, one_line, printable


def test_text_from_outside_steers_nothing_and_stays_on_its_line() -> None:
    assert printable("a\x1b[2J\n世\u202eb") == "a [2J 世 b"
    assert one_line(" a \r\n\x1b b\u2028") == "a b"
    assert one_line(ValueError("no\nmore")) == "no more"


def test_control_characters_are_written_out() -> None:
    assert escaped("a\x1b[2J\x9b\n世\u202e\udcff") == r"a\x1b[2J\x9b\n世\u202e\udcff"
    assert escaped("a\n\tb", keep="\n") == "a\n\\tb"
