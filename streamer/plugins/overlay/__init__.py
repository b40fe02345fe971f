"""`streamer overlay`: captions over all windows of a desktop."""
