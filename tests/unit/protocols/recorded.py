"""Segments of recordings, made up."""

from streamer.protocols.recordings import RecordedSegment
from tests.wire.support import final


def segment(number: int, text: str, start: float = 0.0) -> RecordedSegment:
    spoken = final(number, text, start)
    return RecordedSegment(final=spoken, seek=0, tokens=(1, 2), temperature=0.2, compression_ratio=1.5)
