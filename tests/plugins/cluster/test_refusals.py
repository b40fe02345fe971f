"""Settings, commands and messages of a cluster that are refused, each with its sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np

from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.gateway import run_gateway
from streamer.plugins.cluster.messages import Leave, decoded, unpack_samples
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.plugins.cluster.worker import run_worker
from streamer.settings.table import ServerSettings, Settings, SpeakersSettings
from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE, Outcome
from tests.refusals import Refusal, refusals


@refusals("cluster")
async def test_refused(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("nothing of use", encoding="utf-8")
    with refusal.expected(tmp_path):
        match refusal.given:
            case {"connect": dict() as given}:
                given = {name: str(value).replace("DIR", str(tmp_path)) for name, value in given.items()}
                servers = given.pop("nats", "nats://127.0.0.1:1").split()
                settings = ClusterSettings(nats=tuple(servers), **given)
                await Bus.connect(settings, settings.name or "a")
            case {"gateway": dict() as server}:
                await run_gateway(Settings(server=ServerSettings(**server)))
            case {"worker": dict() as speakers}:
                await run_worker(Settings(speakers=SpeakersSettings(**speakers)), lambda: cast(WhisperModel, None))
            case {"message": str() as text}:
                decoded(bytes.fromhex(text), Leave)
            case {"audio_bytes": int() as n_bytes, "wide": bool() as wide}:
                unpack_samples(bytes(n_bytes), wide=wide)
            case {"audio": float() as sample}:
                unpack_samples(np.array([0.0, sample], "<f4").tobytes(), wide=True)
            case unknown:
                raise AssertionError(unknown)


@refusals("cluster_commands")
def test_commands_end_with_one_line(refusal: Refusal, run_here: Callable[..., Outcome], tmp_path: Path) -> None:
    refusal.check_command(run_here(*[str(SAMPLE) if word == "SAMPLE" else word for word in refusal.given]))
