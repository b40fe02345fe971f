"""The ports of graphs fit each other."""

import pytest

from streamer.whisper.graphs.ports import beam_slots, ports
from tests.whisper.graphs.test_build import DIMS


@pytest.mark.parametrize("window_s", [5, 30])
def test_what_one_stage_gives_the_next_takes(window_s: int) -> None:
    encoder, cross_kv = (ports(stage, DIMS, 2, window_s=window_s) for stage in ("encoder", "cross_kv"))
    block, beams = (
        ports("decoder", DIMS, 2, window_s=window_s, n_tokens=n, n_slots=slots)
        for n, slots in ((16, DIMS.cache_size), (3, beam_slots(DIMS, 3)))
    )
    assert encoder.outputs["last_hidden_state"] == cross_kv.inputs["encoder_hidden_states"]
    for name, shape in cross_kv.outputs.items():
        past = name.replace("present_", "past_")
        assert block.inputs[past] == beams.inputs[past] == shape
    assert block.inputs["past_key_values.1.decoder.key"] == (1, 2, DIMS.cache_size, 8)
    assert beams.inputs["attention_mask"] == (3, beam_slots(DIMS, 3) + 3)
    assert block.outputs["cross_attention"] == (1, 2, 16, 50 * window_s)
