"""Checkpoints from files of every format: the dimensions and the named arrays of a Whisper model."""
