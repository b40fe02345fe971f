from streamer.outputs.pieces import pieces
from streamer.plugins.obs.sink import MAX_CAPTION_BYTES
from tests.unit.outputs.stand_ins import final, spoken


def test_a_final_is_cut_between_words() -> None:
    assert pieces(spoken(1, "one", "two", "three"), 7) == [(10.0, "one two"), (11.0, "three")]
    words = ["wordy"] * 10
    assert pieces(spoken(1, *words), 53) == [(10.0, " ".join(words[:6])), (13.0, " ".join(words[6:]))]
    assert pieces(final(1, "一二三四"), MAX_CAPTION_BYTES) == [(1.0, "一二三四")]
    assert pieces(final(1, "no times here"), 8) == [(1.0, "no times"), (1.0, "here")]
