"""Settings of clusters."""

from typing import Annotated

import msgspec

from streamer.settings.setting import Help, within


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Many machines joined by NATS: gateways, workers, `transcribe --nats` (docs/cluster.md)."""

    nats: Annotated[
        tuple[str, ...],
        Help(
            "NATS servers with JetStream, such as nats://10.0.0.1:4222; empty: none",
            metavar="URL",
            commands=("transcribe",),
        ),
    ] = ()
    replicas: Annotated[
        int, within(0, 5), Help("copies of each session's log in NATS; 0: 3, or 1 on a single server")
    ] = 0
    name: Annotated[str, Help("of this gateway or worker, unique; empty: made of the machine's", metavar="N")] = ""
    nkey_file: Annotated[str, Help("file with the seed of an NKey that NATS knows; empty: none", metavar="FILE")] = ""
    credentials: Annotated[str, Help("NATS credentials file (JWT and seed); empty: none", metavar="FILE")] = ""
    ca: Annotated[
        str, Help("PEM file of who signed the certificates; empty: whom this machine trusts", metavar="FILE")
    ] = ""
    certificate: Annotated[str, Help("PEM file with a certificate to show to NATS; empty: none", metavar="FILE")] = ""
    key: Annotated[str, Help("PEM file with its private key; empty: it is in certificate", metavar="FILE")] = ""
    keep_s: Annotated[
        float, within(60.0, 604_800.0, "s"), Help("time for which a session's log is kept for clients that come back")
    ] = 3600.0
    max_recordings: Annotated[int, within(0, 64), Help("recordings that a worker transcribes at once; 0: none")] = 1
