"""Print a daemon's health, its model and where each stage computes; exit with 1 unless it is ok. For the image."""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_S = 4.0


def main() -> int:
    """Ask the daemon of this container for `/healthz`, with its token if that is in a file of its own."""
    port = os.environ.get("STREAMER_SERVER_PORT", "8765")
    request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz")
    if token := _token():
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            health = json.load(response)
    except urllib.error.HTTPError as error:
        health = json.load(error)
    except OSError as error:
        print(f"no answer: {error}")
        return 1
    where = ", ".join(f"{stage} {device}" for stage, device in health.get("device", {}).items())
    print(f"{health['status']}: {health['model']}, {where}" if where else health["status"])
    return 0 if health["status"] == "ok" else 1


def _token() -> str:
    """Return the token that the daemon asks for; empty if its file holds hashes, or there is none."""
    if token := os.environ.get("STREAMER_SERVER_TOKEN"):
        return token
    try:
        text = Path(os.environ.get("STREAMER_SERVER_TOKEN_FILE", "")).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return "" if text.startswith("{") else text


if __name__ == "__main__":
    sys.exit(main())
