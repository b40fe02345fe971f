"""What a session may choose, as `stream` takes it. Written by `make documents`."""

from collections.abc import Sequence
from typing import Literal, TypedDict


class Options(TypedDict, total=False):
    """Options of a session, described in docs/protocol.md. None: the daemon's setting."""

    language: str | None
    task: Literal["transcribe", "translate", "both"] | None
    beam_size: int | None
    initial_prompt: str | None
    hotwords: Sequence[str] | None
    vad_threshold: float | None
    min_silence_s: float | None
    turns: bool | None
    turn_threshold: float | None
    turn_silence_s: float | None
    pace_s: float | None
    languages: Sequence[str] | None
    words: bool | None
