"""Programs for those who work on streamer: they measure it, and make what it ships."""
