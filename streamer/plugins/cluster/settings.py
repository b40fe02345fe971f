"""Settings of clusters."""

import msgspec

from streamer.settings.setting import section, setting


@section
class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Many machines joined by NATS: gateways, workers, `transcribe --nats` (docs/cluster.md)."""

    nats: tuple[str, ...] = setting(
        (),
        "NATS servers with JetStream, such as nats://10.0.0.1:4222; empty: none",
        metavar="URL",
        commands=("transcribe",),
    )
    replicas: int = setting(0, "copies of each session's log in NATS; 0: 3, or 1 on a single server", within=(0, 5))
    name: str = setting("", "of this gateway or worker, unique; empty: made of the machine's", metavar="N")
    nkey_file: str = setting("", "file with the seed of an NKey that NATS knows; empty: none", metavar="FILE")
    credentials: str = setting("", "NATS credentials file (JWT and seed); empty: none", metavar="FILE")
    ca: str = setting("", "PEM file of who signed the certificates; empty: whom this machine trusts", metavar="FILE")
    certificate: str = setting("", "PEM file with a certificate to show to NATS; empty: none", metavar="FILE")
    key: str = setting("", "PEM file with its private key; empty: it is in certificate", metavar="FILE")
    keep_s: float = setting(
        3600.0, "time for which a session's log is kept for clients that come back", unit="s", within=(60.0, 604_800.0)
    )
    max_recordings: int = setting(1, "recordings that a worker transcribes at once; 0: none", within=(0, 64))
