"""Graphs that OpenVINO's converter makes of transformers' model, read as the checkpoint that it was loaded from."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch

from streamer.whisper.weights import openvino
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import Untyped, load_reference


class Encoder(torch.nn.Module):
    def __init__(self, model: Untyped) -> None:
        super().__init__()
        self.model = model.model

    def forward(self, features: Untyped) -> Untyped:
        return self.model.encoder(features).last_hidden_state


class Decoder(torch.nn.Module):
    """Calls the layers itself, so that operations are not called after a decoder."""

    def __init__(self, model: Untyped) -> None:
        super().__init__()
        self.inner, self.head = model.model.decoder, model.proj_out

    def forward(self, tokens: Untyped, hidden: Untyped) -> Untyped:
        x = self.inner.embed_tokens(tokens) + self.inner.embed_positions(tokens)
        for layer in self.inner.layers:
            x = layer(x, encoder_hidden_states=hidden)
        return self.head(self.inner.layer_norm(x))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.filterwarnings("ignore")
def test_the_weights_are_those_of_the_checkpoint(tmp_path: Path, checkpoint: Checkpoint, attention: str) -> None:
    model = load_reference(attn_implementation=attention)
    for half in (model.model.encoder, model.model.decoder):
        half.layers = half.layers[:2]  # all are alike, and each takes a second
    tensors = {name: values for name, values in checkpoint.tensors.items() if not re.search(r"layers\.[2-9]", name)}
    tokens, hidden = torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 1500, model.config.d_model)
    given: dict[str, Untyped] = {
        "encoder": (Encoder(model), torch.zeros(1, 80, 3000)),
        "decoder": (Decoder(model), tokens, hidden),
    }
    for half, (module, *inputs) in given.items():
        graph = ov.convert_model(module.eval(), example_input=tuple(inputs))  # of any sizes
        ov.save_model(graph, tmp_path / f"openvino_{half}_model.xml")
    found = openvino.load(tmp_path)
    assert found.dims == replace(checkpoint.dims, n_audio_layer=2, n_text_layer=2)
    assert set(found.tensors) == set(tensors)
    for name, values in tensors.items():
        # Converters multiply queries by the scale of attention, where the smallest lose bits in half precision.
        np.testing.assert_allclose(found.tensors[name], values, rtol=0, atol=2**-20, err_msg=name)
