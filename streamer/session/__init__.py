"""A session's decisions, pure: where speech begins and ends, which audio is decoded, what is stable, what is final."""
