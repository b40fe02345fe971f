"""Whisper in PyTorch, for training: windows of any length up to 30 s, cross-attention in the open.

The architecture of Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), with the names
of parameters that Hugging Face's layout has, so that a checkpoint is these parameters and nothing else.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    d_model: int = 192
    heads: int = 3
    encoder_layers: int = 4
    decoder_layers: int = 3
    mel_bins: int = 80
    audio_positions: int = 1500
    text_positions: int = 448
    vocabulary: int = 2022


def sinusoids(length: int, channels: int) -> Tensor:
    """Whisper's positions of the audio, of shape (length, channels)."""
    steps = torch.exp(-math.log(10_000) / (channels // 2 - 1) * torch.arange(channels // 2))
    angles = torch.arange(length)[:, None] * steps[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Attention(nn.Module):
    """Scaled dot-product attention with several heads; keys have no bias, as in Whisper."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj = nn.Linear(shape.d_model, shape.d_model)
        self.k_proj = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.v_proj = nn.Linear(shape.d_model, shape.d_model)
        self.out_proj = nn.Linear(shape.d_model, shape.d_model)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        query, key, value = self._split(self.q_proj(x)), self._split(self.k_proj(x)), self._split(self.v_proj(x))
        if causal or x.is_cuda:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        else:  # twice as fast as PyTorch's own on a CPU, at these sizes
            mixed = (query * query.shape[-1] ** -0.5 @ key.transpose(-1, -2)).softmax(-1) @ value
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def with_weights(self, x: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and the weights: (batch, heads, queries, keys), 32-bit."""
        query, key, value = self._split(self.q_proj(x)), self._split(self.k_proj(to)), self._split(self.v_proj(to))
        weights = (query @ key.transpose(-1, -2)).float().mul(query.shape[-1] ** -0.5).softmax(-1)
        mixed = weights.to(value.dtype) @ value
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), weights


class Layer(nn.Module):
    """One layer of the encoder, or with cross-attention of the decoder."""

    def __init__(self, shape: Shape, cross: bool, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.self_attn_layer_norm = nn.LayerNorm(shape.d_model)
        if cross:
            self.encoder_attn = Attention(shape)
            self.encoder_attn_layer_norm = nn.LayerNorm(shape.d_model)
        self.fc1 = nn.Linear(shape.d_model, 4 * shape.d_model)
        self.fc2 = nn.Linear(4 * shape.d_model, shape.d_model)
        self.final_layer_norm = nn.LayerNorm(shape.d_model)
        self.dropout = dropout

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)

    def forward(self, x: Tensor, to: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = x + self._drop(self.self_attn(self.self_attn_layer_norm(x), causal=to is not None))
        weights = None
        if to is not None:
            mixed, weights = self.encoder_attn.with_weights(self.encoder_attn_layer_norm(x), to)
            x = x + self._drop(mixed)
        return x + self._drop(self.fc2(functional.gelu(self.fc1(self.final_layer_norm(x))))), weights


class Encoder(nn.Module):
    """Log-mel (batch, bins, frames) to features (batch, frames / 2, d_model)."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(shape.mel_bins, shape.d_model, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(shape.d_model, shape.d_model, kernel_size=3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(shape.audio_positions, shape.d_model)
        self.embed_positions.weight = nn.Parameter(sinusoids(shape.audio_positions, shape.d_model), requires_grad=False)
        self.layers = nn.ModuleList(Layer(shape, cross=False, dropout=dropout) for _ in range(shape.encoder_layers))
        self.layer_norm = nn.LayerNorm(shape.d_model)
        with torch.no_grad():
            # The positions have an rms of 0.7: bring what is heard to their size, or nothing is learnt for long.
            self.conv1.weight.mul_(2.0)
            self.conv2.weight.mul_(6.0)

    def forward(self, mel: Tensor, positions: Tensor) -> Tensor:
        """Positions: (batch, frames / 2), which part of the 30 s each frame stands for."""
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(mel)))).transpose(1, 2)
        x = x + self.embed_positions.weight[positions].to(x.dtype)
        for layer in self.layers:
            x, _ = layer(x)
        out: Tensor = self.layer_norm(x)
        return out


class Decoder(nn.Module):
    """Tokens (batch, length) and features to logits (batch, length, vocabulary)."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.d_model)
        self.embed_positions = nn.Embedding(shape.text_positions, shape.d_model)
        self.layers = nn.ModuleList(Layer(shape, cross=True, dropout=dropout) for _ in range(shape.decoder_layers))
        self.layer_norm = nn.LayerNorm(shape.d_model)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        nn.init.normal_(self.embed_positions.weight, std=0.01)

    def forward(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Also the cross-attention of each layer: (batch, heads, length, frames)."""
        x = self.embed_tokens(tokens) + self.embed_positions.weight[: tokens.shape[1]]
        attention = []
        for layer in self.layers:
            x, weights = layer(x, features)
            attention.append(weights)
        return functional.linear(self.layer_norm(x), self.embed_tokens.weight), attention


class Whisper(nn.Module):
    """Encoder and decoder; `state_dict` has the names of Hugging Face's WhisperModel, without the leading "model."."""

    def __init__(self, shape: Shape, encoder_dropout: float = 0.0, decoder_dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape, encoder_dropout)
        self.decoder = Decoder(shape, decoder_dropout)
