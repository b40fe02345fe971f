"""What beam search costs beside greedy decoding, on the same windows in turn."""

import time
from collections.abc import Sequence

from rich.console import Console

from streamer.audio.constants import N_SAMPLES
from streamer.audio.mel import log_mel
from streamer.whisper.decode.window import WindowOptions, decode_window
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import LoadOptions, load_model
from tools.benchmarks.corpus import Recording


def measure_beams(
    recordings: Sequence[Recording], n_beams: int, console: Console, n_rounds: int = 3
) -> dict[str, float]:
    """Encode and decode each recording's first window greedily and along beams in turn; print the ratio of times.

    Of each window the fastest round counts: whatever else the machine does only adds.
    """
    model = load_model("nano.en", LoadOptions(DeviceSettings("CPU"), n_beams=n_beams))
    decoder = model.runtime.decoder
    totals = {1: 0.0, n_beams: 0.0}
    for recording in recordings:
        mel = log_mel(recording.samples[:N_SAMPLES], model.dims.n_mels)
        fastest = dict.fromkeys(totals, float("inf"))
        for _ in range(n_rounds):
            for n in totals:
                options = WindowOptions(
                    language="en", timestamps=True, n_beams=n, max_tokens=224, text_only=False, keep_attention=False
                )
                begin = time.perf_counter()
                decoder.use(model.runtime.encode(mel, 0))
                decode_window(decoder, model.tokenizer, model.generation, options)
                fastest[n] = min(fastest[n], time.perf_counter() - begin)
        for n, time_s in fastest.items():
            totals[n] += time_s
        console.print(f"{recording.name}: {fastest[n_beams] / fastest[1]:.2f} times as long with {n_beams} beams")
    ratio = totals[n_beams] / totals[1]
    console.print(f"all recordings: {ratio:.2f} times as long with {n_beams} beams as greedily")
    return {"n_beams": n_beams, "ratio": ratio}
