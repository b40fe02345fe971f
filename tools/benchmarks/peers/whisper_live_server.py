"""Starts whisper-live's server; run by the interpreter of its own environment, so it imports nothing of ours.

python whisper_live_server.py PORT MODEL
"""

import sys

from whisper_live.server import TranscriptionServer  # type: ignore[import-not-found]

PORT, MODEL = int(sys.argv[1]), sys.argv[2]

# As its run_server.py does with a custom model, but for the limit of ten minutes that a client may stay.
TranscriptionServer().run(
    "127.0.0.1",
    port=PORT,
    backend="faster_whisper",
    faster_whisper_custom_model_path=MODEL,
    single_model=True,
    max_clients=64,
    max_connection_time=24 * 3600,
)
