"""From an encoded window to tokens, words and times: what may come next, how it is searched, when to try again."""
