"""When it is the listener's turn: what was said is a question once its speaker has finished. Pure, told the time."""

import math

from streamer.events import Event, Final, Gap, Partial, Ready, Speech
from streamer.outside import one_line

MAX_QUESTION_CHARS = 20_000  # the last so many are kept

# How far the text of a stretch of speech may end before the stretch does, in seconds: times are rounded.
TIME_SKEW_S = 0.01

_SENTENCE_ENDS = tuple(".?!。？！؟।։")
_TRAILS_OFF = ("...", "…")
_CLOSING = "\"'”’»)]」』"


class Turn:
    """What a speaker says until it is answered.

    It is a question when speech has ended and all of it is final: at once where the text ends a sentence, else after a
    pause, since people stop to think. Where speech does not end, as beside a fan or a television, it is one when the
    text ends a sentence and no word follows for the pause.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        # Finals that no question holds yet.
        self._said: list[str] = []
        # Where speech ends: infinite while it goes on; and where what is final of it ends, in seconds of the audio.
        self._speech_s = self._final_s = 0.0
        # The segment whose words are not final yet; None where there is none.
        self._open: int | None = None
        # When something was said last, by the caller's clock.
        self._heard_s = 0.0

    def handle(self, event: Event, now_s: float) -> bool:
        """Take the next event. Returns whether it has words that stay: then somebody speaks, not only a noise."""
        match event:
            case Ready():  # a session's times begin anew
                self._speech_s, self._final_s, self._open = 0.0, 0.0, None
            case Speech(state=state, time=time):
                self._speech_s = math.inf if state == "start" else time
            case Partial(text=text, segment=segment) if text.strip():
                self._open = segment
                self._heard_s = now_s
                return event.stable > 0
            case Final(end=end, segment=segment):
                self._final_s = end
                if self._open is not None and self._open <= segment:
                    self._open = None
                if text := one_line(event.text):
                    self._said.append(text)
                    self._heard_s = now_s
                    return True
            case Gap(end=end):
                self._final_s, self._open = end, None
        return False

    @property
    def due_s(self) -> float | None:
        """When what was said is a question, if nothing more is said; None where something has to follow."""
        if not self._said or self._open is not None:
            return None
        text = self._said[-1].rstrip(_CLOSING)
        is_sentence = text.endswith(_SENTENCE_ENDS) and not text.endswith(_TRAILS_OFF)
        if self._final_s + TIME_SKEW_S >= self._speech_s:
            return self._heard_s + (0.0 if is_sentence else self._pause_s)
        return self._heard_s + self._pause_s if is_sentence and self._speech_s == math.inf else None

    def take(self) -> str:
        """Return the question, and begin the next; empty where nothing was said."""
        question = " ".join(self._said)[-MAX_QUESTION_CHARS:]
        self._said.clear()
        return question

    def put_back(self, question: str) -> None:
        """Let a question that has no answer be the beginning of the next."""
        self._said.insert(0, question)
