"""A cluster on one machine, and what faults do to it: `python -m tools.cluster faults`."""
