"""What is learnt after a final, put in its place: a text that reads better, and who speaks."""

import itertools
from collections.abc import Iterator

import msgspec

from streamer.events import Event, Final, Ready, Revision, Speakers, Word
from streamer.outputs.base import Sink


class Revised:
    """Hands a sink finals as they read in the end: each waits until so many later ones have come."""

    def __init__(self, sink: Sink, n_waiting: float) -> None:
        """Wait for revisions; `n_waiting` is how many finals do, infinite where all wait for the end."""
        self._sink = sink
        self._n_waiting = n_waiting
        # Those that wait, oldest first, by number.
        self._finals: dict[int, Final] = {}
        self._names = SpeakerNames()

    def handle(self, event: Event) -> None:
        """Take the next event. Those that are about finals go no further."""
        match event:
            case Final():
                self._finals[event.seq] = event
                self._release(self._n_waiting)
            case Revision(of=of):
                if of in self._finals:
                    self._finals[of] = revised(self._finals[of], event)
            case Speakers():
                self._names.learn(event)
            case Ready():  # numbers and speakers begin anew
                self._release(0)
                self._names = SpeakerNames()
                self._sink.handle(event)
            case _:
                self._sink.handle(event)

    def close(self) -> None:
        """Hand over what waits."""
        self._release(0)
        self._sink.close()

    def _release(self, n_waiting: float) -> None:
        while len(self._finals) > n_waiting:
            final = self._finals.pop(next(iter(self._finals)))
            self._sink.handle(self._names.named(final))


class SpeakerNames:
    """What speakers are called by now, whatever they were called first."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def learn(self, event: Speakers) -> None:
        """Take in that two labels are one person."""
        label, other = event.same
        name = self._names.get(other, other)
        self._names |= {key: name for key, value in self._names.items() if value == label}
        self._names[label] = name

    def named(self, final: Final) -> Final:
        """Return a final whose words have their speakers' present names."""
        if not any(word.speaker in self._names for word in final.words):
            return final
        words = (
            msgspec.structs.replace(word, speaker=self._names.get(word.speaker or "", word.speaker))
            for word in final.words
        )
        return msgspec.structs.replace(final, words=tuple(words))


def revised(final: Final, revision: Revision | None) -> Final:
    """Return a final as a revision of it reads, if there is one."""
    if revision is None:
        return final
    return msgspec.structs.replace(final, text=revision.text, words=revision.words)


def turns(final: Final) -> Iterator[Final]:
    """Divide a final where another speaks; each part's words have one `speaker`.

    A word of which nobody knows who says it belongs to the words before it, the first ones to those behind them.
    """
    speaker = next((word.speaker for word in final.words if word.speaker and word.word.strip()), None)
    if speaker is None:
        yield final
        return
    words: list[Word] = []
    for word in final.words:
        speaker = word.speaker or speaker
        words.append(msgspec.structs.replace(word, speaker=speaker))
    for _, group in itertools.groupby(words, key=lambda word: word.speaker):
        part = tuple(group)
        text = "".join(word.word for word in part).strip()
        yield msgspec.structs.replace(final, start=part[0].start, end=part[-1].end, text=text, words=part)


def speaker_of(turn: Final) -> str:
    """Return who says one of the `turns`, empty where nobody knows."""
    return (turn.words[0].speaker if turn.words else None) or ""
