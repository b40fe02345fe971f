"""Rooms of `streamer/` by themselves, without sockets."""
