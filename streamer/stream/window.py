"""What a session asks for: a window of its audio, and how to decode it."""

from dataclasses import dataclass

from streamer.audio.constants import SAMPLE_RATE
from streamer.stream.settings import DecodeOptions

MAX_SILENCE_SAMPLES = 5 * SAMPLE_RATE  # speech behind a longer silence gets a window of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Audio to transcribe, from one absolute sample to another."""

    # Number of the stretch of speech that it belongs to.
    stretch: int
    start: int
    end: int

    # Whether speech has ended: nothing follows in the stretch.
    last: bool

    # Whether it ends in a pause: no word at its end is cut off.
    pause: bool

    # Number, within the stretch, of the first settled word that lies in it.
    first_word: int

    # When it was handed out, in seconds of the caller's clock.
    issued_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How to decode a window."""

    # Tokens that the hypothesis has to begin with.
    prefix: tuple[int, ...]

    # What was said before the window, where the model shall see it.
    prompt: str

    # Language code; with `auto` it is detected, among `languages` where there are some. `known_language` is the one
    # that was spoken last, empty while that is not known: it is taken where detection is not sure.
    language: str
    task: str
    n_samples: int
    languages: tuple[str, ...] = ()
    known_language: str = ""

    # Whether nothing has become final yet.
    first: bool = False

    # What the newest hypothesis said behind the prefix: a guess at what comes now.
    draft: tuple[int, ...] = ()

    # Seconds that further attempts at higher temperatures may take where the text fails its thresholds.
    retry_s: float = 0.0

    # What the session chose of how its windows are decoded; None: what the daemon is set to.
    options: DecodeOptions | None = None
