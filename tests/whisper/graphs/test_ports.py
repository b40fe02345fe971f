"""What graphs are called, and that their ports fit each other."""

import pytest

from streamer.whisper.graphs.ports import BLOCK_TOKENS, GraphId, beam_slots
from tests.whisper.graphs.test_build import DIMS


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        (GraphId("encoder"), "encoder"),
        (GraphId("cross_kv", 10), "cross_kv_10s"),
        (GraphId("decoder", 30), "decoder"),
        (GraphId("decoder", 7, BLOCK_TOKENS), "block_decoder_7s"),
        (GraphId("decoder", 30, 5, beams=True), "beam_decoder"),
    ],
)
def test_a_graph_has_a_name(graph: GraphId, name: str) -> None:
    assert str(graph) == name


@pytest.mark.parametrize("window_s", [5, 30])
def test_what_one_stage_gives_the_next_takes(window_s: int) -> None:
    encoder, cross_kv = (GraphId(stage, window_s).ports(DIMS, 2) for stage in ("encoder", "cross_kv"))
    block, beams = (GraphId("decoder", window_s, n, n == 3).ports(DIMS, 2) for n in (16, 3))
    assert encoder.outputs["last_hidden_state"] == cross_kv.inputs["encoder_hidden_states"]
    for name, shape in cross_kv.outputs.items():
        past = name.replace("present_", "past_")
        assert block.inputs[past] == beams.inputs[past] == shape
    assert block.inputs["past_key_values.1.decoder.key"] == (1, 2, DIMS.cache_size, 8)
    assert beams.inputs["attention_mask"] == (3, beam_slots(DIMS, 3) + 3)
    assert block.outputs["cross_attention"] == (1, 2, 16, 50 * window_s)
