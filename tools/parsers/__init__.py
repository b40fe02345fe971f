"""Every parser that reads from a wire or a file, with samples that it takes, for tools/fuzz_parsers.py."""
