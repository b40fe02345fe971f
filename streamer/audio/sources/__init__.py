"""Sources of audio: a microphone, what the computer plays, a file, a pipe, an address; one interface."""
