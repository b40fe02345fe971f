"""How models/nano.en is made: sentences, spoken by synthesisers; a small Whisper trained on them; its measures."""
