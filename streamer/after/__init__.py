"""What follows a session's events: second pass, glossary, translation, speakers, turns."""
