"""Corrections that a language model proposes."""
