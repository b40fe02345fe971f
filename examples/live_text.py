"""Live captions of the microphone in a terminal, without a daemon: python examples/live_text.py [MODEL]"""

import contextlib
import sys

from streamer import LiveText

with contextlib.suppress(KeyboardInterrupt), LiveText(*sys.argv[1:2]) as live:
    live.listen()
    print("Speak; Ctrl-C ends it.", flush=True)
    for event in live.events():
        if event.type in ("partial", "final"):
            print(f"\r\033[K{event.text}", end="\n" if event.type == "final" else "", flush=True)
