"""Attacks on a running daemon: the table of them, the daemon that is attacked, and what must hold afterwards."""
