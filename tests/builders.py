"""Builders of events: a test names only the fields it is about, the others have plausible values."""

from typing import Any

from streamer.events import Final, Partial, Ready, Word


def words(
    text: str, start: float = 0.0, *, step: float = 0.25, probability: float = 0.9, n_stable: int | None = None
) -> tuple[Word, ...]:
    """Split a text at spaces into words of `step` seconds each; the first `n_stable` are stable, by default all."""
    spoken = text.split()
    stable = len(spoken) if n_stable is None else n_stable
    return tuple(
        Word(
            word=f" {word}",
            start=round(start + i * step, 3),
            end=round(start + (i + 1) * step, 3),
            probability=probability,
            stable=i < stable,
        )
        for i, word in enumerate(spoken)
    )


def timed_words(*spoken: tuple[str, float, float], probability: float = 0.9) -> tuple[Word, ...]:
    """Return stable words of (text, start, end); a text is taken as it is, with or without a leading space."""
    return tuple(
        Word(word=text, start=start, end=end, probability=probability, stable=True) for text, start, end in spoken
    )


def text_of(spoken: tuple[Word, ...]) -> str:
    """Return the text that these words spell."""
    return "".join(word.word for word in spoken).strip()


def partial(text: str, stable: int = 0, *, start: float = 0.0, segment: int = 0, **fields: Any) -> Partial:  # noqa: ANN401
    """Return a partial whose first `stable` characters are stable; `words`, `end` and others may be given."""
    spoken = fields.pop("words", None)
    if spoken is None:
        spoken = words(text, start, n_stable=len(text[:stable].split()))
    end = fields.pop("end", spoken[-1].end if spoken else start)
    return Partial(segment=segment, start=start, end=end, text=text, stable=stable, words=spoken, **fields)


def final(text: str = "", *, start: float = 0.0, segment: int = 0, **fields: Any) -> Final:  # noqa: ANN401
    """Return a final; `words`, `end`, `language`, `speaker`, `seq`, `session` and others may be given."""
    spoken = fields.pop("words", None)
    if spoken is None:
        spoken = words(text, start)
    given: dict[str, Any] = {
        "end": spoken[-1].end if spoken else start,
        "language": "en",
        "no_speech_prob": 0.01,
        "avg_logprob": -0.2,
        **fields,
    }
    return Final(segment=segment, start=start, text=text, words=spoken, **given)


def ready(**fields: Any) -> Ready:  # noqa: ANN401
    """Return the first event of a session."""
    given: dict[str, Any] = {
        "model": "nano.en",
        "device": {"encoder": "CPU", "decoder": "CPU"},
        "sample_rate": 16_000,
        "language": "en",
        **fields,
    }
    return Ready(**given)
