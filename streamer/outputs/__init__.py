"""Where text goes besides the WebSocket: a terminal, subtitle files, a chatbot."""
