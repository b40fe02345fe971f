"""What a hypothesis says behind the stable words of its window. Pure."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from streamer.constants import SAMPLE_RATE
from streamer.session.settings import SessionSettings
from streamer.session.task import Task, down_to_frame
from streamer.session.text import LIKELY_PROBABILITY, Tail, Text
from streamer.session.words import MIN_REPEATED_WORDS, StableWords, find_repeated, placed
from streamer.whisper.plausible import can_be_spoken, repeats
from streamer.whisper.result import Hypothesis, TimedWord

# Words that begin nearer than this to the end of the audio are hallucinated: no word is that short.
INVENTED_SAMPLES = SAMPLE_RATE // 10

# A text with less detected speech than this, and less audio, is of a chair or a laugh if its first word is less
# probable than that: right ones were at 0.33 or more, wrong ones at 0.11 or less; later words are often likely.
BLIP_SAMPLES, BLIP_AUDIO_SAMPLES, BLIP_PROBABILITY = SAMPLE_RATE // 5, 3 * SAMPLE_RATE // 2, 0.2

# A speaker may repeat words of the prompt; this many in a row are probably copied from it.
MIN_COPIED_WORDS = 5

# Time that words get beyond what is known of it, before they count as too many to be spoken.
SPARE_SAMPLES = SAMPLE_RATE // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a hypothesis says."""

    stable: StableWords  # at the places that it gives them
    tail: Tail
    language_sure: bool
    silence: bool
    copies: bool  # it copies the prompt
    repeats: bool  # it begins with words that are known already: it says nothing new
    went_on: bool  # it repeats words, and goes on behind them
    has_context: bool  # it was decoded with text, or audio, before the segment

    @property
    def trusted(self) -> bool:
        """Whether its words may become stable."""
        return not (self.silence or self.tail.loops or self.tail.foreign)


def read(text: Text, task: Task, hypothesis: Hypothesis, settings: SessionSettings, n_detected: int) -> Reading:
    """Return what the hypothesis of a task says, as far as the text is known.

    n_detected : samples of detected speech in its window, from the start of the text on
    """
    span, request = task.span, task.request
    stable, words, continues = _aligned(text, task, hypothesis)
    is_blip = n_detected < BLIP_SAMPLES and span.end - text.start < BLIP_AUDIO_SAMPLES
    silence = _is_silence(hypothesis, settings) or (
        is_blip and not stable.open and bool(words) and words[0].likelihood < BLIP_PROBABILITY
    )
    if silence:
        words = []
    known = stable.since(span.first_word)
    repeated = find_repeated(words, known)
    goes_back = len(repeated) >= MIN_REPEATED_WORDS  # it is too early to say of a single word
    if goes_back and repeated.stop == len(words):
        del words[repeated.start :]
    spoken = "".join(word.text for word in words)
    # The last stable word may be timed late.
    spoken_from = max([text.start, *(word.start_samples for word in known[-1:])]) - SPARE_SAMPLES
    loops = (
        hypothesis.looped
        or hypothesis.compression_ratio > settings.compression_ratio_threshold
        or not can_be_spoken(spoken, span.end - spoken_from)
    )
    improbable = bool(words) and hypothesis.avg_logprob < settings.logprob_threshold
    return Reading(
        stable=stable,
        tail=Tail(
            tuple(words),
            n_new=repeated.start,
            continues=continues and bool(words),
            language=hypothesis.language,
            no_speech_prob=hypothesis.no_speech_prob,
            avg_logprob=hypothesis.avg_logprob,
            reliable=silence or not (loops or improbable),
            loops=loops,
            foreign=request.language != "auto" and not (hypothesis.language_sure or silence),
            alone=not (request.prefix or request.prompt),
            other_language=hypothesis.other_language,
        ),
        language_sure=hypothesis.language_sure,
        silence=silence,
        copies=len(words) >= MIN_COPIED_WORDS and repeats(spoken, request.prompt),
        repeats=goes_back and repeated.start == 0,
        went_on=goes_back and repeated.start < len(words),
        # Windows begin at mel frames: one that begins within a frame before the segment has no earlier text.
        has_context=bool(request.prompt) or span.start < down_to_frame(text.start),
    )


def _aligned(text: Text, task: Task, hypothesis: Hypothesis) -> tuple[StableWords, list[TimedWord], bool]:
    """Return the stable words at their new places, the words after them, and whether the first continues one."""
    span, known = task.span, text.stable
    stable = list(known.words)
    # Indices of the stable words that begin at a token of the prefix.
    indices: dict[int, int] = {}
    n_prefix = 0
    for i in range(span.first_word - known.first, len(stable)):
        indices[n_prefix] = i
        n_prefix += len(stable[i].tokens)
    assert n_prefix == len(task.request.prefix), "another window was applied since the request"
    words: list[TimedWord] = []
    continues = False
    n_tokens = 0
    for timed in hypothesis.words:
        word = placed(timed, span)
        begin, n_tokens = n_tokens, n_tokens + len(word.tokens)
        if begin >= n_prefix:
            words.append(word)
            continue
        if n_tokens > n_prefix:
            # What is spelt behind the prefix; where words are split otherwise, the word may begin anywhere in it.
            rest, own = _behind(stable, word.text), word.tokens[n_prefix - begin :]
            goes_on = not rest[:1].isspace()
            if rest.strip() and not (goes_on and not known.open):  # a final word stays as it is
                continues, start = goes_on, word.end_samples
                log_prob = word.log_prob * len(own) / len(word.tokens)
                words.append(dataclasses.replace(word, text=rest, tokens=own, start_samples=start, log_prob=log_prob))
            continue
        i = indices.get(begin, -1)
        if i >= max(0, known.n_final - known.first) and stable[i].tokens == word.tokens:
            stable[i] = dataclasses.replace(word, attended_samples=stable[i].attended_samples)
    while words and words[-1].start_samples > span.end - INVENTED_SAMPLES:
        words.pop()
    return replace(known, words=tuple(stable)), words, continues


def _behind(words: Sequence[TimedWord], text: str) -> str:
    """Return what of a text is behind the end of words that overlaps its beginning; empty if they do not overlap."""
    said = "".join(word.text for word in words[-len(text) :])
    overlaps = (n for n in range(len(text), 0, -1) if said.endswith(text[:n]))
    return text[next(overlaps, len(text)) :]


def _is_silence(hypothesis: Hypothesis, settings: SessionSettings) -> bool:
    """Return whether there was no speech: by openai-whisper's rule, or because no word is likely either."""
    if hypothesis.is_silence(settings.no_speech_threshold, settings.logprob_threshold):
        return True
    return hypothesis.no_speech_prob > settings.no_speech_threshold and all(
        word.likelihood < LIKELY_PROBABILITY for word in hypothesis.words
    )
