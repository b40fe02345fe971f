"""Whether speech is decoded again, and how: the table, and what each kind of it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from msgspec.structs import replace

from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.session.coverage import Hole
from streamer.session.reading import Reading
from streamer.session.task import Span
from streamer.session.text import Search, Text
from streamer.session.transcript import Transcript
from streamer.session.windows import Utterance

# What is left of a window for less than this is not decoded: no word is that short.
LEAST_SAMPLES = SAMPLE_RATE // 10


class Again(Enum):
    """How speech is decoded again."""

    WITHOUT_CONTEXT = auto()  # what was said before is the reason of a loop, or was copied
    HOTTER = auto()  # as it is, with time for further attempts at higher temperatures
    BEHIND = auto()  # what follows the stable words on its own: the decoder repeated itself, or the language changed
    WITH_EARLIER = auto()  # with earlier speech, now that the language is sure
    ALONE = auto()  # speech without words on its own
    OTHERWISE = auto()  # the same in the next likely language


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What was decoded, and what may be tried."""

    span: Span
    complete: bool  # whether the window contains the rest of an utterance that has ended
    may_retry: bool  # whether there is time for a better text
    automatic: bool  # whether the language is found, not given
    sure: bool  # whether its words may become stable: it is trusted, and its language sure
    outside: bool  # whether its language is one that the session does not allow


def decode_again(text: Text, reading: Reading | None, done: Pass, hole: Hole | None) -> Again | None:
    """Return how to decode what a pass was about again; None if what is known of it counts.

    text : with the reading in it
    reading : what was read; None when that was carried out, and the question is what else is left to try
    hole : the first speech of the utterance that has no words; None for none
    """
    tail, search = text.tail, text.search
    if reading is not None:
        if reading.copies or (reading.tail.loops and reading.has_context):
            return Again.WITHOUT_CONTEXT
        if done.complete and done.may_retry and not tail.reliable:
            return Again.HOTTER
        if reading.went_on and (done.complete or (done.span.pause and reading.trusted)):
            return Again.BEHIND
        if done.complete and reading.tail.foreign:
            return Again.BEHIND
    if text.earlier is not None and not done.outside and (done.complete or done.sure):
        return Again.WITH_EARLIER
    if hole is None or not done.complete:
        return None
    begins = hole.index == 0 and not text.stable.open
    n_tries = 0 if search.is_other(hole) else search.n_tries
    if n_tries == 0 and not (begins and tail.alone and tail.reliable):
        return Again.ALONE
    if n_tries <= 1 and done.automatic and tail.other_language:
        return Again.OTHERWISE
    return None


def try_again(
    transcript: Transcript, reading: Reading, done: Pass, utterance: Utterance
) -> tuple[Utterance | None, list[Again]]:
    """Do what the table says until a pass counts. How often is counted, so that it does.

    Returns the utterance to be decoded again, None if what is known counts, and what was tried.
    """
    span, tried = done.span, []
    hole = transcript.first_hole(utterance.end)
    again = decode_again(transcript.text, reading, done, hole)
    while again is not None:
        tried.append(again)
        # End of what counts as decoded then; and whether there is anything to decode that no later window has.
        decoded, wanted = utterance.decoded_end, done.complete
        match again:
            case Again.WITHOUT_CONTEXT:
                transcript.text = transcript.text.without_context()
                wanted = done.complete or span.pause
            case Again.WITH_EARLIER:
                transcript.text = transcript.text.with_earlier()
                decoded = max(decoded, span.end)
            case Again.BEHIND:
                go_on_behind(transcript, utterance.speech_until(span.end))
                decoded = transcript.text.begins.position
                wanted = decoded < (utterance.words_end if done.complete else span.end) - LEAST_SAMPLES
            case Again.ALONE | Again.OTHERWISE:
                assert hole is not None, "there is speech without words"
                prepare = _separate if again is Again.ALONE else _choose_other_language
                prepare(transcript, hole)
                decoded = transcript.text.begins.position
        if wanted:
            return utterance.again(decoded), tried
        hole = transcript.first_hole(utterance.end)
        again = decode_again(transcript.text, None, done, hole)
    return None, tried


def go_on(transcript: Transcript, utterance: Utterance, span: Span, pauses: Sequence[int]) -> Utterance | None:
    """Make the beginning of long speech final, and keep the next window short enough.

    Returns the utterance if its newest window is to be decoded again.
    """
    start, end = transcript.text.begins.position, utterance.speech_until(span.end)
    if not utterance.open and utterance.end <= start + N_SAMPLES:  # the next window has all that is left
        if transcript.text.stuck:
            go_on_behind(transcript, end)
        return None
    cut = transcript.cut(span, pauses)
    full = transcript.pace.is_full(span.end - start)  # it is not decoded once more by itself
    if not cut and (transcript.text.stuck or (full and transcript.text.n_stuck)):
        go_on_behind(transcript, end)
        if not full or transcript.text.begins.position > start:
            return None
        if (again := utterance.again(start)) is not None:
            return again
    transcript.move_on(span)
    return None


def go_on_behind(transcript: Transcript, end: int) -> None:
    """Let the next window begin behind what is known: behind speech without words, or behind the stable words.

    end : of speech in the newest window
    """
    hole, tail = transcript.first_hole(end), transcript.text.tail
    if hole is not None and tail.alone and hole.index < tail.n_new:
        _skip(transcript, hole)
    else:
        _resume(transcript, hole, end)


def _skip(transcript: Transcript, hole: Hole) -> None:
    """Give up speech that has no words although it was decoded alone: go on with the words after it."""
    text = transcript.text = transcript.text.with_stable(hole.index)
    if text.stable.open:
        transcript.publish(text.stable.end, hole.end)
    else:
        transcript.give_up_until(hole.end)
    text = replace(transcript.text, n_stuck=0, hypotheses=())
    transcript.text = text.window_from(text.stable.end, hole.end)


def _resume(transcript: Transcript, hole: Hole | None, end: int) -> None:
    """Let new words become stable, and the next window begin after them, without known words to be repeated."""
    text = transcript.text
    if text.tail.foreign:
        text = replace(text, language="")
    else:
        text = text.with_stable(text.tail.n_new if hole is None else hole.index)
    if hole is not None:  # what was said before may be the reason
        text = replace(text, said=replace(text.said, text="", first_word=text.stable.end))
    # The end of a repeated word is uncertain; the decoder attended as far as this for it.
    reached = [max(word.end_samples, word.attended_samples) for word in text.stable.words[-1:]]
    position = min(max([text.start, *reached]), end)
    transcript.text = replace(text, tail=text.tail.kept(0, 0), n_stuck=0, hypotheses=(), earlier=None)
    if text.stable.open:
        transcript.publish(text.stable.end, position)
    transcript.text = transcript.text.window_from(text.stable.end, position)


def _separate(transcript: Transcript, hole: Hole) -> None:
    """Publish the words before speech without words, which is decoded on its own."""
    text, tail = transcript.text, transcript.text.tail
    trusted = tail.reliable and not tail.foreign
    start = hole.start if trusted else max([text.start, *(word.end_samples for word in text.stable.open[-1:])])
    text = transcript.text = text.with_stable(hole.index if trusted else 0)
    if text.stable.open:
        transcript.publish(text.stable.end, start)
    search = Search(text.search.place_of(hole), 1, "", transcript.text.tail if trusted else None)
    text = transcript.text.without_context()
    transcript.text = replace(text.window_from(text.stable.end, start), search=search)


def _choose_other_language(transcript: Transcript, hole: Hole) -> None:
    """Have speech without words decoded in the next likely language."""
    text, tail = transcript.text, transcript.text.tail
    transcript.text = replace(text, search=Search(text.search.place_of(hole), 2, tail.other_language, tail))
