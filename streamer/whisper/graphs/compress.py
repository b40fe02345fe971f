"""Weight compression of the graphs: half precision by OpenVINO, 8 and 4 bits by NNCF.

Only the weights shrink: inputs, outputs and arithmetic stay as they are. With 8 bits each row of a matrix has its own
scale and zero point, with 4 bits each group of weights in a row has; the embeddings keep 8 bits, as NNCF has it.
"""

import contextlib
import difflib
import importlib
import importlib.util
import io
import logging
import sys
from collections.abc import Iterator
from types import ModuleType

import openvino as ov

from streamer.errors import ConfigError, UsageError
from streamer.whisper.graphs.ports import STAGES

# From the largest to the smallest. f32 leaves the weights as the checkpoint has them, which may be f16.
PRECISIONS = ("f32", "f16", "int8", "int4")

# Of a stage that is not named.
DEFAULT_PRECISION = "f16"

# Weights that share a scale under 4 bits: the widths of all of Whisper's sizes are multiples of it, nano.en's too.
GROUP_SIZE = 64


def parse_precisions(text: str) -> dict[str, str]:
    """Return the precision of each stage, from one for all (`int8`) or from some by name (`encoder=f16,decoder=int8`).

    A stage that is not named gets f16. Raises ConfigError for what is neither, naming the nearest that is.
    """
    if "=" not in text:
        return dict.fromkeys(STAGES, _known(text, PRECISIONS, "precision"))
    found: dict[str, str] = {}
    for part in text.split(","):
        stage, equals, precision = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"weights {text!r:.60} name a precision for {stage!r:.20}: expected STAGE=PRECISION,...")
        if _known(stage, STAGES, "stage") in found:
            raise ConfigError(f"weights {text!r:.60} name {stage} twice: give it one precision")
        found[stage] = _known(precision, PRECISIONS, "precision")
    return dict.fromkeys(STAGES, DEFAULT_PRECISION) | found


def _known(name: str, known: tuple[str, ...], what: str) -> str:
    if name in known:
        return name
    nearest = difflib.get_close_matches(name.lower(), known, n=1)
    meant = f"did you mean {nearest[0]}?" if nearest else f"use one of {', '.join(known)}"
    raise ConfigError(f"there is no {what} {name!r:.60}: {meant}")


def needs_nncf(precision: str) -> bool:
    """Tell whether a precision is NNCF's work."""
    return precision.startswith("int")


def compress(model: ov.Model, precision: str) -> ov.Model:
    """Compress the weights of a graph, in place where that saves memory, and return it.

    f16 is done while the graph is written, tensor by tensor (see `saved.save`): here the graph stays as it is. Raises
    UsageError where NNCF is needed and not installed.
    """
    assert precision in PRECISIONS, precision
    if not needs_nncf(precision):
        return model
    with _alone(), contextlib.redirect_stdout(io.StringIO()):  # where its progress bars go, whatever the log level
        nncf = _import_nncf()
        if precision == "int8":
            compressed = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
        else:
            mode = nncf.CompressWeightsMode.INT4_ASYM
            compressed = nncf.compress_weights(model, mode=mode, group_size=GROUP_SIZE, ratio=1.0)
    return compressed


def check_nncf() -> None:
    """Raise UsageError where NNCF is not installed. It is not imported: that takes memory."""
    if importlib.util.find_spec("nncf") is None:
        raise UsageError(_NO_NNCF)


def _import_nncf() -> ModuleType:
    try:
        nncf = importlib.import_module("nncf")
    except ImportError:
        raise UsageError(_NO_NNCF) from None
    logging.getLogger("nncf").setLevel(logging.ERROR)
    return nncf


_NO_NNCF = "weights of 8 and 4 bits need NNCF, which is not installed: install it with pip install nncf, or choose f16"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hide from NNCF what it would use where it finds it.

    OpenVINO's telemetry tells the network what is compressed, and torch, for models that are not ours, takes 180 MB.
    """
    hidden = ("openvino_telemetry", "torch")
    before = {name: sys.modules[name] for name in hidden if name in sys.modules}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: Python's own "cannot be imported"
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        sys.modules.update(before)
