"""Destinations of text besides clients: a terminal, subtitle files, OBS, Zoom, YouTube, webhooks, HLS, a chatbot."""
