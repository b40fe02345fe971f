"""Any rate and channel count to 16 kHz mono, block by block."""

import itertools

import numpy as np
import soxr

from streamer.arrays import Float32Array
from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, SAMPLE_RATE

HOP_S = 0.02  # whether channels cancel each other is judged once in this time

CANCELLED = 0.04  # the mix has less than this of the energy of one channel's share: -20 dB beside a channel of stereo
QUIET = 0.01  # hops that have less than this of the energy of the loudest hop so far say nothing
FORGOTTEN = 0.995  # which counts less with each hop: half after 3 s
LOUDER = 4.0  # another channel is taken if it has this times the energy: no change between two that are equally loud


class Mixer:
    """Channels to one: their mean, or as `weights` say; the loudest channel while the mix is silent and the channels
    are not, as when one is the other inverted; and the centre, in which films have what is said, unless it is silent.

    The result does not depend on how the audio is cut into blocks: a hop is mixed as the hops before it demand, and a
    change is a cross-fade.
    """

    def __init__(
        self, sample_rate: int, channels: int, weights: Float32Array | None = None, centre: int | None = None
    ) -> None:
        """Mix `channels` channels; weights, shape (channels,), and the centre's number are those of a known layout."""
        self._hop = round(HOP_S * sample_rate)
        self._weights = weights
        self._shares = np.square(np.full(channels, 1 / channels) if weights is None else weights)

        # The channel in whose place the mix would be silent, for this hop and for the one before; None: the mix.
        self._alone: int | None = None
        self._before: int | None = None

        # Of the hop that is not over: frames, and energy of the mix and of each channel, shape (channels + 1,).
        self._n_frames = 0
        self._energies = np.zeros(channels + 1)

        # Energy of the loudest channel in the loudest hop, decaying: softer hops say nothing. And the centre's.
        self._loudest = self._loudest_centre = 0.0
        self._centre = centre

    def process(self, frames: Float32Array) -> Float32Array:
        """Return frames, shape (n, channels), as mono, shape (n,)."""
        mix = _mean(frames) if self._weights is None else frames @ self._weights
        n_frames = len(frames)
        if not n_frames:
            return mix
        result = mix
        starts = np.arange(-self._n_frames, n_frames, self._hop).clip(0)
        of_mix = np.add.reduceat(np.square(mix, dtype=np.float64), starts)
        of_channels = np.add.reduceat(np.square(frames, dtype=np.float64), starts)
        for i, (start, end) in enumerate(itertools.pairwise([*starts.tolist(), n_frames])):
            if self._alone is not None or self._before is not None:
                result = mix.copy() if result is mix else result
                result[start:end] = self._faded(mix[start:end], frames[start:end])
            self._energies[0] += of_mix[i]
            self._energies[1:] += of_channels[i]
            self._n_frames += end - start
            if self._n_frames == self._hop:
                self._judge()
        return result

    def _faded(self, mix: Float32Array, frames: Float32Array) -> Float32Array:
        """Return a part of a hop: what was used before goes over to what is used now."""
        before, now = (mix if channel is None else frames[:, channel] for channel in (self._before, self._alone))
        if self._before == self._alone:
            return now
        share = (self._n_frames + np.arange(len(mix), dtype=np.float32)) / np.float32(self._hop)
        return before + share * (now - before)

    def _judge(self) -> None:
        """End a hop, and choose what is used for the next one."""
        of_mix, of_shares = self._energies[0], self._energies[1:] * self._shares
        loudest = int(of_shares.argmax())
        self._before = self._alone
        self._loudest = max(self._loudest * FORGOTTEN, float(of_shares[loudest]))
        if self._centre is not None:
            self._loudest_centre = max(self._loudest_centre * FORGOTTEN, float(of_shares[self._centre]))
        if self._loudest_centre > QUIET * self._loudest:
            self._alone = self._centre
        elif of_shares[loudest] > QUIET * self._loudest:
            if of_mix >= CANCELLED * of_shares[loudest]:
                self._alone = None
            elif self._alone is None or of_shares[loudest] > LOUDER * of_shares[self._alone]:
                self._alone = loudest
        self._n_frames = 0
        self._energies[:] = 0.0


def _mean(frames: Float32Array) -> Float32Array:
    """Return the mean of the channels, shape (n,): several times as fast as NumPy's over a few columns."""
    total = frames[:, 0].copy()
    for channel in frames.T[1:]:
        total += channel
    return total / np.float32(frames.shape[1])


class Resampler:
    """Streaming conversion to 16 kHz mono with soxr; the result does not depend on how the audio is cut into blocks."""

    def __init__(
        self, sample_rate: int, channels: int, weights: Float32Array | None = None, centre: int | None = None
    ) -> None:
        """Convert `channels` channels, which are mixed as by `Mixer`."""
        assert MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE, f"sample rate {sample_rate} was not validated"
        assert 1 <= channels <= MAX_CHANNELS, f"channel count {channels} was not validated"
        self.sample_rate = sample_rate
        self.channels = channels
        self._mixer = Mixer(sample_rate, channels, weights, centre)

        # The converter, made at the first block and forgotten by flush(); not used if the rate is already right.
        self._stream: soxr.ResampleStream | None = None

    def process(self, frames: Float32Array) -> Float32Array:
        """Return the 16 kHz mono samples, shape (m,), that further frames, shape (n, channels), complete.

        The channels are mixed. The converter holds back some milliseconds until more frames or flush() come.
        """
        assert frames.ndim == 2, f"expected shape (n, {self.channels}), found {frames.shape}"
        assert frames.shape[1] == self.channels, f"expected {self.channels} channels, found {frames.shape[1]}"
        mono = frames[:, 0] if self.channels == 1 else self._mixer.process(frames)
        if self.sample_rate == SAMPLE_RATE:
            return mono.astype(np.float32, copy=True)
        if self._stream is None:
            self._stream = soxr.ResampleStream(self.sample_rate, SAMPLE_RATE, 1, dtype="float32")
        return self._resample(mono, last=False)

    def flush(self) -> Float32Array:
        """Return what the converter still holds, shape (m,), and start over."""
        if self._stream is None:
            return np.empty(0, dtype=np.float32)
        rest = self._resample(np.empty(0, dtype=np.float32), last=True)
        self._stream = None
        return rest

    def _resample(self, mono: Float32Array, *, last: bool) -> Float32Array:
        assert self._stream is not None
        return np.asarray(self._stream.resample_chunk(np.ascontiguousarray(mono), last=last), dtype=np.float32)
