"""What each command does and prints: a file a command."""
