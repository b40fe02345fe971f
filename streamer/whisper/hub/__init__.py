"""Models from the Hugging Face Hub: which are here, and how others come."""
