"""What sessions have said, kept in a file: text, events and audio."""
