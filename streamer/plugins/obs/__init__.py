"""`--to obs`: captions in OBS Studio."""
