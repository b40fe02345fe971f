"""Settings of a session."""

from streamer.settings.table import DecodingSettings, SpeechSettings, StreamSettings


class SessionSettings(StreamSettings, frozen=True, kw_only=True):
    """What the decisions of a session depend on: the settings `stream` as they are with its model, and some others."""

    gate: SpeechSettings

    # What `captions` and the model make of the settings; see `session.policy`. `policy` is never `auto`.
    attention_margin_s: float
    commit_probability: float
    second_look_s: float
    window_s: float = 28.0

    condition_on_previous_text: bool
    no_speech_threshold: float
    logprob_threshold: float
    compression_ratio_threshold: float

    # Language code, or `auto`: one of `languages`, or any if that is empty.
    language: str
    task: str
    languages: tuple[str, ...] = ()
    translated: bool = False  # whether finals are translated into English besides (see `after.translation`)

    # How its windows are decoded; None: as the daemon's own.
    options: DecodingSettings | None = None
    words: bool = True  # whether partials and finals have their words


# Attention margin in seconds, probability from which a word is stable with it, and seconds behind one that is less
# probable (measured on people: docs/decisions.md).
CAPTIONS = {"early": (0.1, 0.3, 1.0), "balanced": (0.4, 0.6, 1.5), "exact": (0.4, 0.8, 1.5)}


def when_stable(stream: StreamSettings) -> tuple[float, float, float]:
    """Return the attention margin in seconds, the probability that makes a word stable with it, and the seconds of
    audio behind a word that make it stable in any case."""
    chosen = (stream.attention_margin_s, stream.commit_probability, stream.second_look_s)
    margin_s, probability, second_look_s = (
        own if value is None else value for value, own in zip(chosen, CAPTIONS[stream.captions], strict=True)
    )
    return margin_s, probability, second_look_s
