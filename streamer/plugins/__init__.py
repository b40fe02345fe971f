"""What the core does not know: commands and outputs that entry points add."""
