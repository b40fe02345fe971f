"""The network is Whisper: the same weights give what transformers' give."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tools.train_nano.network import Shape, Whisper, sinusoids

# Small, but of a head's size as Whisper has it, and lengths as they are in use.
SHAPE = Shape(d_model=128, heads=2, encoder_layers=2, decoder_layers=3, vocabulary=300)

# transformers has no types.
Untyped = Any


@pytest.fixture(scope="module")
def reference() -> Untyped:
    configuration: Untyped = transformers.WhisperConfig
    config = configuration(
        vocab_size=SHAPE.vocabulary,
        num_mel_bins=SHAPE.mel_bins,
        d_model=SHAPE.d_model,
        encoder_layers=SHAPE.encoder_layers,
        encoder_attention_heads=SHAPE.heads,
        encoder_ffn_dim=4 * SHAPE.d_model,
        decoder_layers=SHAPE.decoder_layers,
        decoder_attention_heads=SHAPE.heads,
        decoder_ffn_dim=4 * SHAPE.d_model,
        max_source_positions=SHAPE.audio_positions,
        max_target_positions=SHAPE.text_positions,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
        attn_implementation="eager",
    )
    model: Untyped = transformers.WhisperModel
    return model(config).eval()


@pytest.fixture(scope="module")
def net(reference: Untyped) -> Whisper:
    """With random weights, of a size that makes every part matter, that are the reference's too."""
    torch.manual_seed(0)
    net = Whisper(SHAPE).eval()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name != "encoder.embed_positions.weight":
                parameter.add_(0.05 * torch.randn_like(parameter))
    reference.load_state_dict(net.state_dict(), strict=True)
    return net


@pytest.fixture(scope="module")
def mel() -> Tensor:
    return torch.randn((2, SHAPE.mel_bins, 3000), generator=torch.Generator().manual_seed(1))


def whole(batch: int) -> Tensor:
    return torch.arange(SHAPE.audio_positions).expand(batch, -1)


def test_the_state_has_the_names_and_shapes_of_transformers(reference: Untyped) -> None:
    ours = {name: tensor.shape for name, tensor in Whisper(SHAPE).state_dict().items()}
    assert ours == {name: tensor.shape for name, tensor in reference.state_dict().items()}


def test_the_positions_of_the_audio_are_whispers(reference: Untyped) -> None:
    from whisper.model import sinusoids as whispers

    expected = whispers(1500, SHAPE.d_model)
    assert torch.allclose(sinusoids(1500, SHAPE.d_model), expected, atol=1e-4)
    weight = Whisper(SHAPE).encoder.embed_positions.weight
    assert torch.allclose(weight, expected, atol=1e-4)
    assert not weight.requires_grad


def test_thirty_seconds_give_the_features_logits_and_attention_of_transformers(
    net: Whisper, reference: Untyped, mel: Tensor
) -> None:
    tokens = torch.randint(SHAPE.vocabulary, (2, 50), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        features = net.encoder(mel, whole(2))
        logits, attention = net.decoder(tokens, features)
        expected = reference.encoder(mel).last_hidden_state
        decoded = reference.decoder(
            input_ids=tokens, encoder_hidden_states=expected, output_attentions=True, use_cache=False
        )
    assert features.shape == (2, 1500, SHAPE.d_model)
    assert features.std() > 0.5
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-4)
    wanted = decoded.last_hidden_state @ reference.decoder.embed_tokens.weight.T
    assert wanted.std() > 0.1
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-4)
    assert len(attention) == SHAPE.decoder_layers
    for ours, theirs in zip(attention, decoded.cross_attentions, strict=True):
        assert ours.shape == (2, SHAPE.heads, 50, 1500)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_a_token_sees_only_what_came_before_it(net: Whisper) -> None:
    features = torch.randn((1, 20, SHAPE.d_model), generator=torch.Generator().manual_seed(3))
    tokens = torch.randint(1, SHAPE.vocabulary, (1, 12), generator=torch.Generator().manual_seed(4))
    changed = tokens.clone()
    changed[0, 7:] = 0
    with torch.no_grad():
        one, other = net.decoder(tokens, features)[0], net.decoder(changed, features)[0]
    torch.testing.assert_close(one[:, :7], other[:, :7], rtol=0, atol=1e-5)
    assert not torch.allclose(one[:, 7:], other[:, 7:], atol=1e-2)


def test_the_positions_say_which_part_of_the_thirty_seconds_a_window_is(net: Whisper, mel: Tensor) -> None:
    """With one position in place of another's weights, a short window computes the same."""
    short = mel[:, :, :200]
    first = torch.arange(100).expand(2, -1)
    shifted = Whisper(SHAPE).eval()
    shifted.load_state_dict(net.state_dict())
    with torch.no_grad():
        shifted.encoder.embed_positions.weight[700:800] = net.encoder.embed_positions.weight[:100]
        here, there = net.encoder(short, first), shifted.encoder(short, first + 700)
        torch.testing.assert_close(here, there, rtol=0, atol=1e-5)
        assert not torch.allclose(here, net.encoder(short, first + 700), atol=1e-2)


def test_windows_of_one_batch_may_stand_at_different_positions(net: Whisper, mel: Tensor) -> None:
    short = mel[:, :, :200]
    positions = torch.stack([torch.arange(100), torch.arange(40, 140)])
    with torch.no_grad():
        together = net.encoder(short, positions)
        alone = [net.encoder(short[i : i + 1], positions[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-5)


def test_dropout_is_for_training_only(net: Whisper, mel: Tensor) -> None:
    dropping = Whisper(SHAPE, encoder_dropout=0.5, decoder_dropout=0.5)
    dropping.load_state_dict(net.state_dict())
    short, positions = mel[:1, :, :200], torch.arange(100)[None]
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        expected = net.decoder(tokens, net.encoder(short, positions))[0]
        dropped = dropping.train().decoder(tokens, dropping.encoder(short, positions))[0]
        kept = dropping.eval().decoder(tokens, dropping.encoder(short, positions))[0]
    torch.testing.assert_close(kept, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(dropped, expected, atol=1e-2)
