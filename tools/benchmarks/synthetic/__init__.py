"""Speech of synthesisers, whose words' times are known, and sounds that are made from random numbers."""
