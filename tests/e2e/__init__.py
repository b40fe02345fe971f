"""What a user does, with a daemon in a process of its own."""
