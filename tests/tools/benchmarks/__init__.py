"""Tests of what tools/benchmark.py runs."""
