"""The streaming engine: which audio to transcribe when, and which words are stable."""
