"""What tools/benchmark.py runs: the corpus, the systems under test and their figures."""
