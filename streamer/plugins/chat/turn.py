"""Turn-taking: decides when a speaker has finished a question. Without I/O; the caller passes the time."""

import math

from streamer.events import Event, Final, Gap, Partial, Ready, Speech, Turn
from streamer.outputs.writing import CLOSING, SENTENCE_ENDS
from streamer.outside import one_line

MAX_QUESTION_CHARS = 20_000  # of a question's end that are kept

# Tolerance for comparing the end of the text with the end of speech, in seconds: times are rounded.
TIME_SKEW_S = 0.01

_ELLIPSES = ("...", "…")


class SpokenQuestion:
    """Collects a speaker's text until it is a question that can be answered.

    It is a question once speech has ended and all of it is final: at once if the text ends a sentence or a turn model
    finds that the speaker has finished, else after a pause for thought. If speech does not end, as beside a fan or a
    television, it is one if the text ends a sentence and no word follows for that pause.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        # Finals of the next question.
        self._texts: list[str] = []
        # Seconds of the audio: end of speech, infinite while it continues; end of the newest final.
        self._speech_s = self._final_s = 0.0
        # The segment with words that are not final yet.
        self._open: int | None = None
        # Whether a turn model found at the newest pause that the speaker has finished.
        self._finished = False
        # Time of the newest text by the caller's clock.
        self._text_s = 0.0

    def handle(self, event: Event, now_s: float) -> bool:
        """Handle the next event. Returns whether it has stable or final words: noise has none."""
        match event:
            case Ready():  # the times of a new session start at 0
                self._speech_s, self._final_s, self._open = 0.0, 0.0, None
            case Speech(state=state, time=time):
                self._speech_s = math.inf if state == "start" else time
                self._finished &= state == "end"
            case Turn(finished=finished):
                self._finished = finished
            case Partial(text=text, segment=segment) if text.strip():
                self._open = segment
                self._text_s = now_s
                return event.stable > 0
            case Final(end=end, segment=segment):
                self._final_s = end
                if self._open is not None and self._open <= segment:
                    self._open = None
                if text := one_line(event.text):
                    self._texts.append(text)
                    self._text_s = now_s
                    return True
            case Gap(end=end):
                self._final_s, self._open = end, None
        return False

    @property
    def due_s(self) -> float | None:
        """Time at which the text is a question if nothing follows; None if something must follow."""
        if not self._texts or self._open is not None:
            return None
        text = self._texts[-1].rstrip(CLOSING)
        is_sentence = text.endswith(tuple(SENTENCE_ENDS)) and not text.endswith(_ELLIPSES)
        if self._final_s + TIME_SKEW_S >= self._speech_s:
            return self._text_s + (0.0 if is_sentence or self._finished else self._pause_s)
        return self._text_s + self._pause_s if is_sentence and self._speech_s == math.inf else None

    def take(self) -> str:
        """Return the question, which may be empty, and begin the next."""
        question = " ".join(self._texts)[-MAX_QUESTION_CHARS:]
        self._texts.clear()
        return question

    def put_back(self, question: str, *, until_more: bool = False) -> None:
        """Make an unanswered question the beginning of the next; `until_more`: it waits for more text."""
        self._texts.insert(0, question)
        if until_more:
            self._text_s = math.inf
