"""`streamer compare`: recordings through several models or settings, side by side."""
