"""Results beside those of independent implementations."""
