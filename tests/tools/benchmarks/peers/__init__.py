"""Tests of the peers, without the peers."""
