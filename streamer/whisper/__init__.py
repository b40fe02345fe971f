"""Whisper on static OpenVINO graphs: from weights on disk to words with times."""
