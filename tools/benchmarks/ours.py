"""Our own driver, for the same rounds as the peers': spectrogram, encoder, cross-KV and greedy decoding of a window.

Options are OpenVINO's properties.
"""

import dataclasses
import importlib.metadata
import time

from streamer.audio.mel import log_mel
from streamer.whisper.decode.window import WindowOptions, decode_window
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import LoadOptions, load_model
from tools.benchmarks.windows import Samples, Task, Transcribe, Window, serve


def load(task: Task) -> tuple[str, Transcribe]:
    """Load a directory that `streamer models convert --weights int8` wrote."""
    properties = (f"INFERENCE_NUM_THREADS={task.n_threads}", *task.options)
    model = load_model(task.model, LoadOptions(DeviceSettings("CPU", properties=properties)))
    tokenizer = model.tokenizer
    generation = dataclasses.replace(
        model.generation, suppress_tokens=(*model.generation.suppress_tokens, tokenizer.special.end_of_text)
    )
    options = WindowOptions(language="en", max_tokens=task.n_tokens, keep_attention=False)

    def transcribe(samples: Samples) -> Window:
        begin_s = time.perf_counter()
        mel = log_mel(samples, model.dims.n_mels)
        mel_s = time.perf_counter()
        encoded = model.runtime.encode(mel, 0)
        encode_s = time.perf_counter()
        model.runtime.decoder.use(encoded)
        window = decode_window(model.runtime.decoder, tokenizer, generation, options)
        end_s = time.perf_counter()
        return Window(
            n_tokens=len(window.tokens),
            mel_s=mel_s - begin_s,
            encode_s=encode_s - mel_s,
            decode_s=end_s - encode_s,
        )

    return importlib.metadata.version("streamer"), transcribe


if __name__ == "__main__":
    serve(load)
