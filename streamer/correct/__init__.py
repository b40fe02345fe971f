"""Finals corrected after they were said: by a glossary, a second reading, a language model, and rules for figures."""
