"""Names that OpenAI has for its own models of speech: who sends one means whatever model the daemon has."""

OPENAI_MODELS = frozenset(
    {
        "whisper-1",
        "gpt-transcribe",
        "gpt-live-transcribe",
        "gpt-4o-transcribe",
        "gpt-4o-transcribe-diarize",
        "gpt-4o-mini-transcribe",
        "gpt-4o-mini-transcribe-2025-03-20",
        "gpt-4o-mini-transcribe-2025-12-15",
        "gpt-realtime-whisper",
    }
)
