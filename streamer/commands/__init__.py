"""Commands that show and prepare things: models, devices. Each takes what it needs and returns its exit code."""
