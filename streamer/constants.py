"""The numbers of Whisper's front end, each derived from the primitives above it. Source: Radford et al. (2022), 2.2."""

from typing import Literal


def exact_div(numerator: int, denominator: int) -> int:
    """Divide two integers that must divide without remainder."""
    quotient, remainder = divmod(numerator, denominator)
    assert remainder == 0, f"{numerator} is not a multiple of {denominator}"
    return quotient


SAMPLE_RATE = 16_000  # samples a second, everywhere past the audio sources
N_FFT = 400  # samples in one analysis window: 25 ms
HOP_LENGTH = 160  # samples from one mel frame to the next: 10 ms
CHUNK_LENGTH_S = 30  # seconds of audio that Whisper's encoder sees at once

N_SAMPLES = CHUNK_LENGTH_S * SAMPLE_RATE  # 480000 samples in a 30-second window
N_FRAMES = exact_div(N_SAMPLES, HOP_LENGTH)  # 3000 mel frames in a 30-second window
N_SAMPLES_PER_TOKEN = HOP_LENGTH * 2  # the second convolution has a stride of 2
FRAMES_PER_SECOND = exact_div(SAMPLE_RATE, HOP_LENGTH)  # 100 mel frames a second, 10 ms each
TOKENS_PER_SECOND = exact_div(SAMPLE_RATE, N_SAMPLES_PER_TOKEN)  # 50 encoder positions a second, 20 ms each

# What we accept from a file, a pipe or a client. Below 4 kHz there is no speech; above 384 kHz there is no such device,
# and a wild rate from a hostile header would turn each frame into thousands of samples.
MIN_SAMPLE_RATE = 4_000
MAX_SAMPLE_RATE = 384_000
MAX_CHANNELS = 32

# A file counts as truncated if more than this is missing: encoders of lossy formats round to their own frames.
TRUNCATED_S = 0.2

# Samples as bytes, little-endian: 16-bit integers, or 32-bit floats from -1 to 1. Other protocols, and WAV files, have
# unsigned integers of 8 bits, integers of 24 and 32 bits, and G.711, too.
PcmFormat = Literal["s16le", "f32le"]
PcmEncoding = Literal[PcmFormat, "u8", "s24le", "s32le", "mulaw", "alaw"]
