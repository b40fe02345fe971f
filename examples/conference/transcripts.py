"""Saves what was said in the rooms, a text file a talk: python transcripts.py ADDRESS [FOLDER]

ADDRESS is that of the box's page, such as http://10.0.0.5:8765; STREAMER_TOKEN has a token that may read.
"""

import os
import re
import sys
from datetime import datetime
from pathlib import Path

import httpx


def main(address: str, folder: str = ".") -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    token = os.environ.get("STREAMER_TOKEN", "")
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"} if token else {}) as box:
        before: int | None = None
        while True:
            page = box.get("/v1/sessions", params={"limit": 200} | ({"before": before} if before else {}))
            page.raise_for_status()
            for session in page.json()["sessions"]:
                room = re.fullmatch(r"room ([A-Za-z0-9][\w.-]*)", session["source"], re.ASCII)
                if room is None or session["ended"] is None:
                    continue
                begun = datetime.fromisoformat(session["started"]).astimezone()
                text = box.get(f"/v1/sessions/{session['session']}.txt")
                text.raise_for_status()
                path = Path(folder) / f"{begun:%Y-%m-%d-%H%M%S}-{room[1]}.txt"
                path.write_text(text.text, encoding="utf-8")
                print(path)
            before = page.json()["before"]
            if before is None:
                return


try:
    main(*sys.argv[1:])
except (httpx.HTTPError, httpx.InvalidURL) as error:
    sys.exit(f"transcripts.py: {error}")
