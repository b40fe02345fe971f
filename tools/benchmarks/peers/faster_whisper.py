"""The driver of faster-whisper: its spectrogram, and CTranslate2's encoder and decoder in 8-bit arithmetic.

`WhisperModel.transcribe` chooses itself how many tokens to sample; these are the calls that it makes for a window.
"""

import importlib.metadata
import time

import ctranslate2
import faster_whisper
import numpy as np

from tools.benchmarks.windows import END_OF_TEXT, PROMPT, Samples, Task, Transcribe, Window, serve


def load(task: Task) -> tuple[str, Transcribe]:
    """Load a model that CTranslate2's converter wrote with `--quantization int8`."""
    model = faster_whisper.WhisperModel(
        task.model, device="cpu", compute_type="int8", cpu_threads=task.n_threads, local_files_only=True
    )

    def transcribe(samples: Samples) -> Window:
        begin_s = time.perf_counter()
        features = faster_whisper.audio.pad_or_trim(model.feature_extractor(samples))
        mel_s = time.perf_counter()
        encoded = model.encode(np.ascontiguousarray(features))
        # Nothing is computed before somebody looks: so the time of the encoder is its own.
        np.asarray(encoded)
        encode_s = time.perf_counter()
        found = model.model.generate(
            encoded,
            [list(PROMPT)],
            beam_size=1,
            max_length=2 * task.n_tokens,
            suppress_blank=True,
            suppress_tokens=[-1, END_OF_TEXT],
            return_no_speech_prob=True,
            return_scores=True,
        )
        end_s = time.perf_counter()
        return Window(
            n_tokens=len(found[0].sequences_ids[0]),
            mel_s=mel_s - begin_s,
            encode_s=encode_s - mel_s,
            decode_s=end_s - encode_s,
        )

    versions = f"{importlib.metadata.version('faster-whisper')} (CTranslate2 {ctranslate2.__version__})"
    return versions, transcribe


if __name__ == "__main__":
    serve(load)
