"""Settings of a session."""

from streamer.settings.table import DecodingSettings, SpeechSettings, StreamSettings


class SessionSettings(StreamSettings, frozen=True, kw_only=True):
    """What the decisions of a session depend on: the settings `stream` as they are with its model, and some others."""

    gate: SpeechSettings

    # What `captions` and the model make of the settings; see `session.policy`. `policy` is never `auto`.
    attention_margin_s: float
    commit_probability: float
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


# Attention margin in seconds and probability from which a word is stable (measured on people: docs/decisions.md).
CAPTIONS = {"early": (0.1, 0.3), "balanced": (0.4, 0.6), "exact": (0.4, 0.6)}


def when_stable(stream: StreamSettings) -> tuple[float, float]:
    """Return the attention margin in seconds and the probability that make a word stable at once."""
    margin_s, probability = CAPTIONS[stream.captions]
    return (
        margin_s if stream.attention_margin_s is None else stream.attention_margin_s,
        probability if stream.commit_probability is None else stream.commit_probability,
    )
