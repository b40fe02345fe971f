"""Settings: one table of what can be set, and all that is made from it."""
