"""What measures streaming transcription: timelines of what was shown when, figures computed from them, reports."""
