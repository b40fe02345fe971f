"""Audio input: sources, resampling to 16 kHz mono float32, speech detection, and log-mel frames."""
