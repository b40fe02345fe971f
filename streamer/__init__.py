"""Real-time transcription: Whisper on an Intel NPU, GPU or CPU, captions over WebSockets.

As a library, read with `for` or `async for`, or called:

    listen(address)             a daemon's captions
    stream(audio, address)      a daemon's captions of one's own audio
    load_model(name)            a model in this process
    transcribe(audio, model)    the text of a recording, without a daemon
    LiveText(model)             the text of live audio, without a daemon
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from streamer.version import __version__

if TYPE_CHECKING:
    from streamer.client.captions import listen
    from streamer.client.stream import stream
    from streamer.library import load_model, transcribe
    from streamer.live_text import LiveText

# With this package, which comes with it, OpenVINO reports to Google that it is imported, and by whom.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

__all__ = ["LiveText", "__version__", "listen", "load_model", "stream", "transcribe"]

# Where each is; imported when it is asked for, as what transcribes takes a second to import.
_HOMES = {
    "LiveText": "streamer.live_text",
    "listen": "streamer.client.captions",
    "stream": "streamer.client.stream",
    "load_model": "streamer.library",
    "transcribe": "streamer.library",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a function or a class
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
