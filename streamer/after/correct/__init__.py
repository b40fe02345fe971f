"""Finals corrected after they were said: by a glossary, a second reading, and a language model."""
