"""How to transcribe a recording.

Source: openai-whisper's `transcribe()` and `DecodingOptions`: their names, and their defaults.
"""

import dataclasses
from dataclasses import dataclass

from streamer.audio.constants import TOKENS_PER_SECOND
from streamer.whisper.decode.fallback import FallbackOptions
from streamer.whisper.decode.filters import LogitFilter
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.decode.suppression import MODEL_TOKENS, suppressed_tokens
from streamer.whisper.decode.window import WindowOptions
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeOptions:
    """How to transcribe a recording. None: what the option is about is not done."""

    # Language code, or `auto`: the likeliest in the first 30 s.
    language: str = "auto"

    # `transcribe`, `translate` (to English), or `both`: two texts of each window, which is encoded once.
    task: str = "transcribe"

    # Tried one after another until the text can be trusted; see FallbackOptions.
    temperature: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    entropy_threshold: float | None = None

    # A window in which nobody speaking is likelier than this is passed over, unless its text is likely.
    no_speech_threshold: float | None = 0.6

    # Whether what was said before a window is its prompt, unless it was decoded at more than 0.5.
    condition_on_previous_text: bool = True

    # Text before the first window; where it is carried, before each.
    initial_prompt: str = ""
    carry_initial_prompt: bool = False

    # Text that every window is known to begin with; no part of the result.
    prefix: str = ""

    # Whether segments and windows begin and end with words instead of with the times that the model writes.
    word_timestamps: bool = False
    prepend_punctuations: str = "\"'“¿([{-"
    append_punctuations: str = "\"'.。,，!！?？:：”)]}、"

    # Stretches to transcribe, in seconds: start, end, start, end, ...; the last may end with the recording.
    clip_timestamps: tuple[float, ...] = (0.0,)

    # Seconds of silence before what may be a hallucination that are passed over; needs word_timestamps.
    hallucination_silence_threshold: float | None = None

    # Texts to draw at a temperature above 0, beams to follow at 0.
    best_of: int | None = None
    beam_size: int | None = None
    patience: float | None = None
    length_penalty: float | None = None

    # Whether silence follows a recording in its last window, and not zeros in place of its spectrogram.
    pad_with_silence: bool = False

    # Most tokens of a window; None: as many as half of the decoder's context.
    sample_len: int | None = None

    # Numbers of tokens that never come; -1: those that the model's settings list. Without any, control tokens may come.
    suppress_tokens: tuple[int, ...] = (MODEL_TOKENS,)

    # Whether a text may not begin with a blank, or be empty.
    suppress_blank: bool = True
    without_timestamps: bool = False

    # Latest time of a window at which the text may begin, in seconds; None or 0: any.
    max_initial_timestamp: float | None = 1.0

    # Further rules on what may come next.
    filters: tuple[LogitFilter | HotWords, ...] = ()

    # What draws at temperatures above 0 begins with.
    seed: int = 0

    # Whether finals name their tokens.
    token_probabilities: bool = False

    def fallback(self) -> FallbackOptions:
        """Return when to try a window again."""
        return FallbackOptions(
            temperatures=self.temperature,
            compression_ratio_threshold=self.compression_ratio_threshold,
            logprob_threshold=self.logprob_threshold,
            no_speech_threshold=self.no_speech_threshold,
            entropy_threshold=self.entropy_threshold,
        )

    def window(self, tokenizer: Tokenizer, dims: ModelDimensions) -> WindowOptions:
        """Return how to decode a window that has no prompt, in a language that is named before it is used."""
        prefix = tuple(tokenizer.encode(f" {self.prefix.strip()}")) if self.prefix else ()
        half = dims.n_text_ctx // 2
        if self.sample_len is not None:
            prefix = prefix[-max(0, half - self.sample_len) :]
        return WindowOptions(
            language=self.language,
            timestamps=not self.without_timestamps,
            prefix=prefix,
            max_tokens=self.sample_len or half,
            best_of=self.best_of or 1,
            n_beams=self.beam_size or 1,
            patience=self.patience or 1.0,
            length_penalty=self.length_penalty,
            filters=self.filters,
            text_only=False,
            keep_attention=False,
        )

    def generation(self, config: GenerationConfig, tokenizer: Tokenizer) -> GenerationConfig:
        """Return a model's settings with what the options say otherwise. Raises ConfigError where it has no such token.

        As in openai-whisper, control tokens are forbidden with a list, and come with an empty one.
        """
        suppressed = suppressed_tokens(self.suppress_tokens, config.suppress_tokens, tokenizer.n_vocab)
        if self.suppress_tokens:
            suppressed = (*suppressed, *tokenizer.special.controls)
        latest_s = self.max_initial_timestamp
        return dataclasses.replace(
            config,
            suppress_tokens=tuple(sorted(set(suppressed))),
            begin_suppress_tokens=config.begin_suppress_tokens if self.suppress_blank else (),
            max_initial_timestamp_index=round(latest_s * TOKENS_PER_SECOND) if latest_s else None,
        )
