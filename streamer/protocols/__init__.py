"""What clients say and are told, in our protocol and in other people's: a file each, without I/O or a clock."""
