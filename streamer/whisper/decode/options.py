"""How windows are decoded: what holds for a session or a recording, and what for one window."""

from dataclasses import dataclass, field

from streamer.settings.table import DecodingSettings, SpeechSettings
from streamer.whisper.decode.filters import LogitFilter
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.generation import GenerationConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """The settings of decoding of a session or a recording, and what they come to with a model."""

    settings: DecodingSettings = field(default_factory=DecodingSettings)

    # The model's own settings, with what `settings` say otherwise.
    generation: GenerationConfig

    # Whether windows are those of live captions: text without times and special tokens, which ends where it begins to
    # loop, with the attention that times its words.
    live: bool = False

    # Beams at temperature 0, and texts drawn above it.
    n_beams: int = 1
    best_of: int = 1

    # Temperatures that a window is decoded at, one after another until its text can be trusted.
    temperatures: tuple[float, ...] = (0.0,)

    # Further rules on which tokens may come next.
    filters: tuple[LogitFilter | HotWords, ...] = ()

    # Tokens before the first window, and tokens that each window's text begins with; neither is part of the result.
    initial_prompt: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()

    # Whether the model sees what was said last.
    conditioned: bool = True

    # Of recordings: what counts as speech, if only speech is transcribed (None: all audio is), and whether words are
    # looked for in the texts.
    speech: SpeechSettings | None = None
    words: bool = False

    @property
    def timestamps(self) -> bool:
        """Whether texts have times."""
        return not (self.live or self.settings.without_timestamps)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTask:
    """What one window is decoded to."""

    language: str
    task: str = "transcribe"

    # Tokens of the text before the window; not part of the result.
    prompt: tuple[int, ...] = ()

    # Tokens that the result begins with, as if they had been sampled. Without room for all of them, nothing follows.
    begins_with: tuple[int, ...] = ()

    # A guess at what follows, such as the text of an earlier window of this audio. It changes no result, and saves
    # calls if it is right. Ignored if tokens are drawn, or with several beams or windows.
    draft: tuple[int, ...] = ()

    # Most tokens to sample.
    max_tokens: int = 10_000

    # Above 0, tokens are drawn; at 0 the likeliest are taken, along the beams.
    temperature: float = 0.0
