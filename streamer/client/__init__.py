"""Programs of ours that follow a running daemon."""
