"""Whisper's log-mel spectrogram in PyTorch, for many windows at once; streamer.audio.mel is what it must equal."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from streamer.audio.constants import HOP_LENGTH, N_FFT, N_SAMPLES
from streamer.audio.mel import mel_filters

WARPS = tuple(0.88 + 0.02 * step for step in range(13))  # of the frequencies: 0.88 to 1.12, as speakers differ
UNWARPED = 6


class LogMel(nn.Module):
    """Audio (B, n), 16 kHz, n a multiple of 160, to (B, bins, n / 160): as if silence followed to the 30th second.

    `warps`, (B,) numbers of WARPS, makes another speaker of each: what is heard at a frequency f stands at f times
    the warp (Jaitly and Hinton 2013).
    """

    window: Tensor
    filters: Tensor  # (warps, bins, 201)

    def __init__(self, bins: int = 80) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT))
        plain = mel_filters(bins)
        at = np.arange(plain.shape[1])
        warped = [np.stack([np.interp(at * warp, at, row, right=0.0) for row in plain]) for warp in WARPS]
        warped[UNWARPED] = plain
        self.register_buffer("filters", torch.from_numpy(np.stack(warped).astype(np.float32)))

    def forward(self, audio: Tensor, warps: Tensor | None = None) -> Tensor:
        frames = audio.shape[1] // HOP_LENGTH
        whole = audio.shape[1] >= N_SAMPLES
        # Behind the audio there is silence, whose first two frames still hear it; at 30 s there is a reflection.
        padded = audio if whole else functional.pad(audio, (0, 3 * HOP_LENGTH))
        padded = functional.pad(padded[:, None], (N_FFT // 2, N_FFT // 2), mode="reflect")[:, 0]
        spectrum = torch.stft(padded, N_FFT, HOP_LENGTH, window=self.window, center=False, return_complex=True)
        spectrum = spectrum[..., : frames if whole else frames + 2]
        power = self.filters[UNWARPED if warps is None else warps] @ (spectrum.real**2 + spectrum.imag**2)
        log_power = power.clamp(min=1e-10).log10()
        floor = log_power.amax((1, 2), keepdim=True) - 8.0
        return (torch.maximum(log_power[..., :frames], floor) + 4.0) / 4.0


def blot_out(mel: Tensor) -> None:
    """Make two bands, and a moment every five seconds, of (bins, frames) flat (SpecAugment, Park et al. 2019)."""
    bins, frames = mel.shape
    flat = mel.mean()

    def spot(size: int, most: int) -> slice:
        start = int(torch.randint(size - most + 1, ()))
        return slice(start, start + int(torch.randint(1, most + 1, ())))

    for _ in range(2):
        mel[spot(bins, 12)] = flat
    for _ in range(max(1, frames // 500)):
        mel[:, spot(frames, 12)] = flat
