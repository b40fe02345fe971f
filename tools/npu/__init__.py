"""What is known of a model on Intel's NPUs without one: whether its graphs compile, their size, estimated time."""
