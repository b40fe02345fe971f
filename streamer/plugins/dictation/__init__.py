"""`streamer type`: what is said, typed into the focused window."""
