"""Finals with what arrives later: their revisions, and the names of their speakers."""

import itertools
from collections.abc import Iterator

import msgspec

from streamer.events import Final, Revision, Speakers, Word
from streamer.outputs.subtitles.cues import file_line


class SpeakerNames:
    """The current names of speakers by their earlier labels."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def learn(self, event: Speakers) -> None:
        """Note that two labels are one person."""
        label, other = event.same
        name = self._names.get(other, other)
        self._names |= {key: name for key, value in self._names.items() if value == label}
        self._names[label] = name

    def named(self, final: Final) -> Final:
        """Return a final whose words have the current names of their speakers."""
        if not any(word.speaker in self._names for word in final.words):
            return final
        words = (
            msgspec.structs.replace(word, speaker=self._names.get(word.speaker or "", word.speaker))
            for word in final.words
        )
        return msgspec.structs.replace(final, words=tuple(words))


def revised(final: Final, revision: Revision | None) -> Final:
    """Return a final with a revision applied, if there is one."""
    if revision is None:
        return final
    return msgspec.structs.replace(final, text=revision.text, words=revision.words)


def turns(final: Final) -> Iterator[Final]:
    """Divide a final at changes of the speaker; all words of a part have one `speaker`.

    Words of an unknown speaker belong to the words before them, at the beginning to those after them.
    """
    speaker = next((word.speaker for word in final.words if word.speaker and file_line(word.word)), None)
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
    """Return the speaker of one of the `turns`, empty if unknown."""
    return (turn.words[0].speaker if turn.words else None) or ""
