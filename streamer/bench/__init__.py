"""Models compared over recordings, and delays of live captions."""
