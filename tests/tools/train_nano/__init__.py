"""Tests of how models/nano.en is made."""
