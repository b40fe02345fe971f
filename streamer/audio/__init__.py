"""Where sound comes in and becomes 16 kHz mono float32 samples and log-mel frames."""
