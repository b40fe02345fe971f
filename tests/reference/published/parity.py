"""Recordings through our model and openai-whisper's, token for token."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import whisper
import whisper.decoding

from streamer.constants import SAMPLE_RATE
from streamer.offline import Segment, transcribe_segments
from streamer.whisper.decode.options import WindowTask
from streamer.whisper.decode.window import DecodedWindow, decode_window
from streamer.whisper.model import WhisperModel
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.support import ROOT, SAMPLE, Samples, Untyped

MODELS = ("tiny.en", "base")
PEOPLE = ROOT.parent / "shared" / "audio" / "people"

# Texts are a tie where openai-whisper itself gives them log-probabilities that differ by less than this: rounding
# errors of another order of additions, over the layers of the network.
TIE = 1e-3

# As long as one of the alignment's frames.
WORD_TIME_S = 0.02 + 1e-6


@dataclass(slots=True)
class Compared:
    """What of a recording's text was equal."""

    n_tokens: int
    n_equal: int
    words: list[tuple[str, float]] = field(default_factory=list)  # word, and the difference of its times in seconds

    # Of the first window that differs, if any: what both wrote, and the difference of their log-probabilities.
    difference: str = ""
    is_tie: bool = False


class Pair:
    """Our model and openai-whisper's of the same weights."""

    def __init__(self, name: str, ours: WhisperModel, theirs: Untyped) -> None:
        self.name = name
        self.ours = ours
        self.theirs = theirs

    def compare(self, samples: Samples, **options: Any) -> Compared:  # noqa: ANN401 - any option
        """Transcribe with the options of openai-whisper's `transcribe()` at temperature 0, and compare."""
        options = {"temperature": (0.0,), **options}
        decoded: list[tuple[Untyped, Untyped, Untyped]] = []

        def decode(mel: Untyped, chosen: Untyped) -> Untyped:
            result = type(self.theirs).decode(self.theirs, mel, chosen)
            decoded.append((mel, chosen, result))
            return result

        untyped: Untyped = whisper
        self.theirs.decode = decode
        try:
            found = untyped.transcribe(self.theirs, samples, fp16=False, **options)
        finally:
            del self.theirs.decode
        theirs = [segment for segment in found["segments"] if segment["text"]]
        ours = list(transcribe_segments(self.ours, samples, as_whisper(self.ours, **options)))
        actual = [token for segment in ours for token in segment.tokens]
        expected = [token for segment in theirs for token in segment["tokens"]]
        if actual == expected:
            return Compared(len(expected), len(expected), _words(ours, theirs))
        n_equal = next((i for i, pair in enumerate(zip(actual, expected, strict=False)) if pair[0] != pair[1]), 0)
        result = Compared(len(expected), n_equal)
        for mel, chosen, window in decoded:
            ours_of_window = self._decode(mel, chosen)
            if ours_of_window.tokens != window.tokens:
                result.difference, gap = self.difference(mel, chosen, ours_of_window.tokens, window.tokens)
                result.is_tie = gap < TIE
                break
        else:
            result.difference = "every window has the same tokens, the file has not"
        return result

    def _decode(self, mel: Untyped, chosen: Untyped) -> DecodedWindow:
        """Decode a window of openai-whisper's with its options, its prompt included."""
        model, tokenizer = self.ours, self.ours.tokenizer
        known = {
            name: getattr(chosen, name) for name in ("language", "beam_size", "sample_len") if getattr(chosen, name)
        }
        ours = as_whisper(model, **known)
        model.runtime.decoder.use(model.runtime.encode(mel.numpy(), 0))
        most = ours.settings.sample_len or model.dims.n_text_ctx // 2
        task = WindowTask(language=ours.settings.language, prompt=tuple(chosen.prompt or ()), max_tokens=most)
        return decode_window(model.runtime.decoder, tokenizer, ours, task)

    def difference(self, mel: Untyped, chosen: Untyped, ours: list[int], theirs: list[int]) -> tuple[str, float]:
        """Return both texts, and how far apart their log-probabilities are by openai-whisper's model.

        Along beams texts are compared by their mean; greedily the first token that differs decides.
        """
        mine, other = (self.log_probs(mel, chosen, tokens) for tokens in (ours, theirs))
        first = next(
            (i for i in range(min(len(ours), len(theirs))) if ours[i] != theirs[i]), min(len(ours), len(theirs))
        )
        gap = abs(mine.mean() - other.mean()) if chosen.beam_size else abs(mine[first] - other[first])
        decode = self.ours.tokenizer.decode
        texts = f"{decode(ours[first:])!r:.60} for {decode(theirs[first:])!r:.60}"
        return f"{texts}, log-probabilities differ by {gap:.1e}", float(gap)

    def log_probs(self, mel: Untyped, chosen: Untyped, tokens: list[int]) -> Any:  # noqa: ANN401 - untyped
        """Return the log-probability by openai-whisper's model of each token of a text and of its end."""
        untyped: Untyped = whisper.decoding
        task = untyped.DecodingTask(self.theirs, chosen)
        all_tokens = torch.tensor([[*task.initial_tokens, *tokens, task.tokenizer.eot]])
        with torch.no_grad():
            features = self.theirs.embed_audio(mel[None])
            logits = self.theirs.logits(all_tokens[:, :-1], features)[0]
        values = []
        for i in range(len(task.initial_tokens), all_tokens.shape[1]):
            row = logits[i - 1 : i].clone()
            for rule in task.logit_filters:
                rule.apply(row, all_tokens[:, :i])
            values.append(float(row.log_softmax(-1)[0, all_tokens[0, i]]))
        return np.array(values)


def _words(ours: list[Segment], theirs: list[Untyped]) -> list[tuple[str, float]]:
    """Return each word of segments that have the same tokens, with the larger difference of its two times."""
    mine = [word for segment in ours for word in segment.words]
    other = [word for segment in theirs for word in segment.get("words", ())]
    if not other:
        return []
    assert [word.text for word in mine] == [word["word"] for word in other]
    return [
        (
            word.text,
            max(
                abs(word.start_samples / SAMPLE_RATE - known["start"]),
                abs(word.end_samples / SAMPLE_RATE - known["end"]),
            ),
        )
        for word, known in zip(mine, other, strict=True)
    ]


def recordings(language: str) -> list[Path]:
    """Return the first recording of each folder of people speaking a language; of English our sample, too."""
    from tools.benchmarks.recordings import find

    spoken = [r for r in find(PEOPLE) if r.text.strip() and r.language == language] if PEOPLE.is_dir() else []
    firsts = {recording.path.parent: recording.path for recording in reversed(spoken)}
    return [*([SAMPLE] if language == "en" else []), *sorted(firsts.values())]
