"""A cluster on one machine: what faults do to it, what it costs, and which transport carries audio best."""
