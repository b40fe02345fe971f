"""How the tokens of a window are searched for: greedily, by sampling, or along several beams.

Source: openai-whisper's `decoding.py` (`GreedyDecoder`, `BeamSearchDecoder`, `MaximumLikelihoodRanker`); patience is
Kasai et al. (2022), arXiv:2204.05424, the length penalty Wu et al. (2016), arXiv:1609.08144; to check a draft in one
call is Stern et al. (2018), arXiv:1811.03115.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.whisper.decode.filters import LogitFilter
from streamer.whisper.decode.probabilities import log_prob, log_softmax

# A run of tokens that comes this often in a row, in this many tokens, is a loop. People do say "no, no, no, no".
LOOP_REPEATS = 4
LOOP_TOKENS = 16
LOOP_LONGEST_TOKENS = 24  # of one run

# Draws a token, given the probability of each, shape (n_vocab,).
Draw = Callable[[FloatArray], int]


class TokenDecoder(Protocol):
    """The decoder's forward pass over the growing texts of some windows (see `device.decoder.Decoder`)."""

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can hold."""

    @property
    def n_windows(self) -> int:
        """Windows whose texts grow."""

    @property
    def n_fed(self) -> int:
        """Tokens of the sequence so far."""

    def room(self, n_beams: int) -> int:
        """Return how many tokens each of several sequences of a window can still get."""

    def begin(self) -> None:
        """Forget all text."""

    def rewind(self, n_fed: int) -> None:
        """Forget the tokens behind the first `n_fed`."""

    def feed(self, tokens: Sequence[int], n_silent: int = 0) -> tuple[FloatArray, FloatArray]:
        """Append tokens to the sequence of each window.

        Returns logits (n_windows, n, n_vocab) and the alignment heads' attention (n_windows, n_heads, n, n_audio_ctx)
        of all but the first `n_silent`.
        """

    def extend(self, parents: NDArray[np.int64], tokens: NDArray[np.int64]) -> FloatArray:
        """Continue sequences, by their numbers in the call before, by a token each, both of shape (n_windows, n).

        Returns logits (n_windows, n, n_vocab).
        """

    def drop(self, number: int) -> None:
        """Forget a window; the last one takes its number."""


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A text that a search found for a window."""

    # Sampled tokens, without the end of text.
    tokens: list[int] = field(default_factory=list)

    # Log-probability of each token after filtering.
    log_probs: list[float] = field(default_factory=list)

    # Log-probability of the text, with the end of text if it was sampled.
    sum_logprob: float = 0.0

    # Tokens that were sampled, including the end of text and those of a loop that were cut off.
    n_sampled: int = 0

    # Alignment heads' attention after each token that was fed, shape (n_heads, n, n_audio_ctx).
    attention: list[FloatArray] = field(default_factory=list)
    looped: bool = False

    @property
    def avg_logprob(self) -> float:
        """Mean log-probability including the end of text, as in openai-whisper; 0 if nothing was sampled."""
        return self.sum_logprob / (len(self.tokens) + 1)

    def extended(self, log_prob: float, token: int | None) -> "Candidate":
        """Return the text with one more token; None: the end of text."""
        return Candidate(
            tokens=self.tokens if token is None else [*self.tokens, token],
            log_probs=self.log_probs if token is None else [*self.log_probs, log_prob],
            sum_logprob=self.sum_logprob + log_prob,
            n_sampled=self.n_sampled + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Settings of a search."""

    rules: Sequence[LogitFilter]
    end_of_text: int

    # Most tokens to sample, the end of text included.
    limit: int

    # Tokens that the text begins with; rules see them before the sampled ones.
    begins_with: Sequence[int] = ()
    stop_at_loop: bool = False
    cancelled: Callable[[], bool] = lambda: False

    def filtered(self, logits: FloatArray, tokens: Sequence[int]) -> FloatArray:
        """Apply the rules to the logits (n_vocab,) after these tokens; changes and returns the logits."""
        for rule in self.rules:
            rule.apply(logits, tokens)
        return logits


def greedy(logits: FloatArray) -> int:
    return int(logits.argmax())


def sampler(temperature: float, draw: Draw) -> Callable[[FloatArray], int]:
    """Choose by chance: the higher the temperature, the more evenly."""

    def choose(logits: FloatArray) -> int:
        return draw(np.exp(log_softmax(logits.astype(np.float64) / temperature)))

    return choose


def drawer(seed: int) -> Draw:
    """Return what draws tokens, the same ones for the same seed."""
    random = np.random.default_rng(seed)

    def draw(probabilities: FloatArray) -> int:
        cumulative = np.cumsum(probabilities)
        return int(np.searchsorted(cumulative, random.random() * cumulative[-1], side="right"))

    return draw


def follow(
    decoder: TokenDecoder,
    logits: FloatArray,
    search: Search,
    choose: Callable[[FloatArray], int],
    draft: Sequence[int] = (),
    draft_attention: FloatArray | None = None,
) -> Candidate:
    """Continue the fed sequence by one token after another.

    logits : shape = (1 + len(draft), n_vocab)
        Those of the last token fed, and of each token of the draft.
    draft
        Tokens that were fed on trial, fewer than the limit. As long as the chosen tokens are those of the draft,
        nothing is fed; the rest of the draft is taken back at the first other one.
    draft_attention : shape = (n_heads, len(draft), n_audio_ctx)
    """
    found = Candidate()
    tokens = list(search.begins_with)
    n_before = len(tokens)
    n_accepted = 0  # tokens of the draft
    row = logits[0]
    for left in range(search.limit, 0, -1):
        if search.cancelled():
            break
        token = choose(search.filtered(row, tokens))
        probability = log_prob(row, token)
        found.sum_logprob += probability
        found.n_sampled += 1
        if token == search.end_of_text:
            break
        tokens.append(token)
        found.log_probs.append(probability)
        if search.stop_at_loop and (length := loop_length(tokens)):
            found.looped = True
            # Keep the first round of the loop, and all of `begins_with`.
            del tokens[max(n_before, len(tokens) - length * (loop_repeats(length) - 1)) :]
            del found.log_probs[len(tokens) - n_before :]
            found.sum_logprob = sum(found.log_probs)
            break
        if left == 1:
            break
        if draft_attention is not None and n_accepted < len(draft) and draft[n_accepted] == token:
            attention = draft_attention[:, n_accepted : n_accepted + 1]
            n_accepted += 1
            row = logits[n_accepted]
        else:
            decoder.rewind(decoder.n_fed - (len(draft) - n_accepted))
            draft = draft[:n_accepted]
            (((row,),), (attention,)) = decoder.feed([token])
        found.attention.append(attention)
    found.tokens = tokens[n_before:]
    return found


def loop_length(tokens: Sequence[int]) -> int:
    """Return the length of the run that the tokens end with LOOP_REPEATS times, in LOOP_TOKENS at least; 0: no loop."""
    for length in range(1, min(LOOP_LONGEST_TOKENS, len(tokens) // LOOP_REPEATS) + 1):
        n_tokens = length * loop_repeats(length)
        # A sequence has a period if it equals itself moved on by it.
        if n_tokens <= len(tokens) and tokens[-n_tokens + length :] == tokens[-n_tokens:-length]:
            return length
    return 0


def loop_repeats(length: int) -> int:
    return max(LOOP_REPEATS, -(-LOOP_TOKENS // length))


def follow_beams(
    decoder: TokenDecoder, logits: FloatArray, search: Search, *, n_beams: int, patience: float = 1.0
) -> list[list[Candidate]]:
    """Return the texts along the likeliest beams of each window after the fed sequences.

    logits : shape = (n_windows, n_vocab)
        Those of the last token fed.
    """
    windows = [_Beams(search, n_beams, round(n_beams * patience)) for _ in logits]
    # Windows that the decoder still has, in its order.
    active = list(windows)
    rows = logits[:, np.newaxis]
    for left in range(min(search.limit, decoder.room(n_beams)), 0, -1):
        if search.cancelled():
            break
        for beams, row in zip(active, rows, strict=True):
            beams.advance(row)
        if left == 1 or all(beams.ended for beams in active):
            break
        for number in reversed(range(len(active))):
            if active[number].ended:
                active[number] = active[-1]
                active.pop()
                decoder.drop(number)
        parents = np.array([beams.parents for beams in active])
        rows = decoder.extend(parents, np.array([[text.tokens[-1] for text in beams.texts] for beams in active]))
    return [beams.candidates() for beams in windows]


class _Beams:
    """The beams of one window."""

    def __init__(self, search: Search, n_beams: int, n_wanted: int) -> None:
        self._search = search
        self._n_beams = n_beams
        self._n_wanted = n_wanted
        self._finished: dict[tuple[int, ...], Candidate] = {}
        self.texts = [Candidate()]
        # For each text the previous number of the one that it continues.
        self.parents: list[int] = []

    @property
    def ended(self) -> bool:
        return len(self._finished) >= self._n_wanted

    def advance(self, rows: FloatArray) -> None:
        """Continue the texts by the likeliest tokens; rows : shape = (n_texts, n_vocab)"""
        texts, self.texts, self.parents = self.texts, [], []
        finished: list[Candidate] = []
        for parent, token, added in self._ranked(texts, rows):
            if token == self._search.end_of_text:
                finished.append(texts[parent].extended(added, None))
                continue
            self.parents.append(parent)
            self.texts.append(texts[parent].extended(added, token))
            if len(self.texts) == self._n_beams:
                break
        for text in finished[: self._n_wanted - len(self._finished)]:
            self._finished[tuple(text.tokens)] = text

    def candidates(self) -> list[Candidate]:
        """Return the finished texts, and if these are too few, the likeliest unfinished ones."""
        found = dict(self._finished)
        for text in sorted(self.texts, key=lambda text: text.sum_logprob, reverse=True):
            if len(found) >= self._n_beams:
                break
            found[tuple(text.tokens)] = text
        return list(found.values())

    def _ranked(self, texts: Sequence[Candidate], rows: FloatArray) -> Iterator[tuple[int, int, float]]:
        """Yield the number of a text, a token and its log-probability, the likeliest continuation first."""
        continuations: list[tuple[float, int, int, float]] = []
        for parent, (text, logits) in enumerate(zip(texts, rows, strict=True)):
            log_probs = log_softmax(self._search.filtered(logits, [*self._search.begins_with, *text.tokens]))
            n_top = min(self._n_beams + 1, len(log_probs))
            top = np.argpartition(-log_probs, n_top - 1)[:n_top]
            for token in top[np.argsort(-log_probs[top], kind="stable")]:
                added = float(log_probs[token])
                continuations.append((text.sum_logprob + added, parent, int(token), added))
        continuations.sort(key=lambda continuation: continuation[0], reverse=True)
        yield from (continuation[1:] for continuation in continuations)


def best_of(candidates: Sequence[Candidate], length_penalty: float | None = None) -> Candidate:
    """Return the likeliest text: by its mean log-probability, or with Google's length penalty (0 to 1)."""

    def score(text: Candidate) -> float:
        n_tokens = len(text.tokens)
        divisor = n_tokens or 1 if length_penalty is None else ((5 + n_tokens) / 6) ** length_penalty
        return text.sum_logprob / divisor

    return max(candidates, key=score)
