"""How likely a known text is under the sound of a window."""

import math

from streamer.audio.mel import log_mel
from streamer.whisper.decode.likelihood import log_likelihood
from streamer.whisper.decode.window import WindowOptions, decode_window
from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE, pause_after, recording


def test_what_is_said_is_likelier_than_half_of_it_or_more_than_it(model: WhisperModel) -> None:
    samples = recording(SAMPLE, 0.0, pause_after(2))
    decoder = model.runtime.decoder_of(model.runtime.encode(log_mel(samples, model.dims.n_mels), 0))
    options = WindowOptions(language="en")
    said = model.tokenizer.decode(decode_window(decoder, model.tokenizer, model.generation, options).tokens)

    def likelihood(text: str) -> float:
        return log_likelihood(decoder, model.tokenizer, text, language="en", task="transcribe")

    words = said.split(" ")
    others = " ".join(words[: len(words) // 2]), f"{said} And so it was.", " ".join(words[::-1]), ""
    assert all(likelihood(said) > likelihood(other) for other in others)
    assert likelihood(said * 200) == -math.inf
