"""Transcription of whole recordings, 30-second window after window, as openai-whisper does it."""

from streamer.offline.recording import transcribe, transcribe_segments, with_finals
from streamer.offline.segments import Segment

__all__ = ["Segment", "transcribe", "transcribe_segments", "with_finals"]
