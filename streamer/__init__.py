"""Real-time transcription: Whisper on an Intel NPU, GPU or CPU, captions over WebSockets."""

__version__ = "0.1.0"
