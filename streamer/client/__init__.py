"""Clients of a running daemon."""
