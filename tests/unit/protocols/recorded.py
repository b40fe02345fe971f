"""Segments of recordings."""

from streamer.protocols.recordings import RecordedSegment
from tests.builders import final, words


def segment(number: int, text: str, start: float = 0.0) -> RecordedSegment:
    """Return a segment whose words take 0.3 s each."""
    spoken = final(text, segment=number, start=start, words=words(text, start, step=0.3))
    return RecordedSegment(final=spoken, seek=7, tokens=(1, 2), temperature=0.2, compression_ratio=1.5)
