"""The HTTP and WebSocket front: captions out, clients' audio in, the captions page."""
