"""Live sessions: Whisper as the streaming engine's model, clients' streams, post-processing, recordings."""
