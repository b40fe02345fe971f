"""Tests with published weights, tiny.en and base: run by `make real`, which fetches them; left out otherwise."""
