"""The driver of openvino-genai's `WhisperPipeline`, on graphs that optimum-intel exported with 8-bit weights.

Options are OpenVINO's properties, such as `INFERENCE_PRECISION_HINT=f32`; without any, everything is as the pipeline
chooses it, which on a processor with bfloat16 arithmetic is that.
"""

import openvino_genai

from tools.benchmarks.windows import END_OF_TEXT, Samples, Task, Transcribe, Window, serve


def load(task: Task) -> tuple[str, Transcribe]:
    """Load a directory that `optimum-cli export openvino` wrote."""
    properties = dict(option.split("=", 1) for option in task.options)
    pipeline = openvino_genai.WhisperPipeline(task.model, "CPU", INFERENCE_NUM_THREADS=task.n_threads, **properties)
    config = pipeline.get_generation_config()
    config.language = "<|en|>"
    config.task = "transcribe"
    config.return_timestamps = False
    config.max_new_tokens = task.n_tokens
    config.suppress_tokens = [*config.suppress_tokens, END_OF_TEXT]

    def transcribe(samples: Samples) -> Window:
        metrics = pipeline.generate(samples, config).perf_metrics
        parts = metrics.whisper_raw_metrics
        return Window(
            n_tokens=metrics.get_num_generated_tokens(),
            mel_s=_seconds(parts.features_extraction_durations),
            encode_s=_seconds(parts.encode_inference_durations),
            decode_s=_seconds(parts.decode_inference_durations),
        )

    return str(openvino_genai.__version__), transcribe


def _seconds(durations: list[float]) -> float:
    """Return the sum of durations in microseconds."""
    return sum(durations) / 1e6


if __name__ == "__main__":
    serve(load)
