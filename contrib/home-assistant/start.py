"""Start streamer as an app of Home Assistant: its options become settings, and the Supervisor is told of the port.

Home Assistant starts it as root, whose /data is. The daemon and all else run as the image's user.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

DATA = Path("/data")
SUPERVISOR = "http://supervisor"
USER = 10001
COMMAND = ("streamer", "run", "--no-captions")
HTTP_PORT, WYOMING_PORT = 8765, 10300

# Of config.yaml.
OPTIONS = {
    "model": "STREAMER_MODEL_NAME",
    "language": "STREAMER_DECODING_LANGUAGE",
    "device": "STREAMER_MODEL_DEVICE",
    "token": "STREAMER_SERVER_TOKEN",
    "log_level": "STREAMER_LOG_LEVEL",
}

POLL_S = 1.0
TIMEOUT_S = 10.0


def main() -> int:
    """Run the daemon until it ends, and return its exit code."""
    options = json.loads((DATA / "options.json").read_text(encoding="utf-8"))
    cache = DATA / "cache"
    cache.mkdir(exist_ok=True)
    become_user(cache)
    environ = {name: value for name, value in os.environ.items() if name != "SUPERVISOR_TOKEN"}
    with subprocess.Popen(COMMAND, env=environ | settings(options, cache)) as daemon:
        signal.signal(signal.SIGTERM, lambda number, frame: daemon.terminate())
        if token := os.environ.get("SUPERVISOR_TOKEN"):
            while daemon.poll() is None and not is_ready():
                time.sleep(POLL_S)
            if daemon.poll() is None:
                announce(token)
        return daemon.wait()


def settings(options: Mapping[str, str], cache: Path) -> dict[str, str]:
    """Return the daemon's environment. Without a token only Wyoming's port, which knows none, is open to others."""
    chosen = {OPTIONS[name]: value for name, value in options.items() if value}
    return {
        "HOME": str(cache),
        "XDG_CACHE_HOME": str(cache),
        "XDG_DATA_HOME": str(cache),
        "STREAMER_LOG_FORMAT": "text",
        "STREAMER_SERVER_TOKEN_FILE": "",
        "STREAMER_SERVER_HOST": "0.0.0.0" if options.get("token") else "127.0.0.1",
        "STREAMER_SERVER_PORT": str(HTTP_PORT),
        "STREAMER_SERVER_WYOMING_HOST": "0.0.0.0",
        "STREAMER_SERVER_WYOMING_PORT": str(WYOMING_PORT),
        **chosen,
    }


def become_user(cache: Path) -> None:
    """Go on as the image's user, who may write to the cache, and with the groups of GPU and NPU."""
    os.chown(cache, USER, USER)
    nodes = [*Path("/dev").glob("dri/renderD*"), *Path("/dev").glob("accel/accel*")]
    os.setgroups(sorted({node.stat().st_gid for node in nodes}))
    os.setgid(USER)
    os.setuid(USER)


def is_ready() -> bool:
    """Return whether the model is loaded: before that, clients wait."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{HTTP_PORT}/healthz", timeout=TIMEOUT_S).close()
    except OSError:
        return False
    return True


def announce(token: str) -> None:
    """Let Home Assistant offer its integration Wyoming Protocol for this port."""
    found = {"service": "wyoming", "config": {"uri": f"tcp://{socket.gethostname()}:{WYOMING_PORT}"}}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{SUPERVISOR}/discovery", json.dumps(found).encode("utf-8"), headers)
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
    except OSError as error:
        print(f"Home Assistant is not told ({error}): add the integration Wyoming Protocol by hand", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
