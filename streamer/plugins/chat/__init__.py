"""`streamer chat`: a chatbot that is asked what was said."""
