"""Other systems that transcribe with Whisper, each in an environment of its own, on the same weights as ours."""
