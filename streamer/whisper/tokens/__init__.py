"""Text to Whisper's tokens and back, from whichever files a model's tokenizer comes in."""
