"""From settings to a loaded model: which one fits the machine, fetched and loaded while a person sees how far it is."""
