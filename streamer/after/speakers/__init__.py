"""Who speaks: from audio to speaker vectors, from vectors to labels."""
