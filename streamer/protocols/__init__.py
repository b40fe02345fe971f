"""Protocol adapters, a module for each protocol, without I/O and without a clock."""
