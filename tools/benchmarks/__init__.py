"""What tools/benchmark.py runs: recordings, systems under test, and their figures."""
