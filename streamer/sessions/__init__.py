"""Live captions at work: a loaded Whisper behind the streaming engine, and the sessions that it serves."""
