"""Models to compare, as the command line names them."""

import csv
import re
from collections.abc import Sequence

from streamer.errors import UsageError

# What is said of a candidate: a model, and behind each @ a setting.
_SETTING = re.compile(r"@(?=\w+\.\w+=)")

# Of what a candidate may have its own settings.
SECTIONS = ("model", "decoding", "speech", "stream")


def parse_candidates(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read lists of candidates: `MODEL[@SECTION.KEY=VALUE]...`, separated by commas; quoted if a comma is in it.

    Returns of each, by this text, the settings by dotted name, the model's name among them. Raises UsageError if one is
    empty, is there twice, or has a setting of another section than `SECTIONS`.
    """
    candidates: dict[str, dict[str, str]] = {}
    try:
        lists = list(csv.reader(texts, skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise UsageError(f"cannot read --models ({error}): expected names separated by commas") from None
    for names in lists:
        for name in map(str.strip, names):
            model, *given = _SETTING.split(name)
            if not model:
                raise UsageError(f"no model in {name!r:.80}: expected MODEL, or MODEL@SECTION.KEY=VALUE")
            settings = {"model.name": model}
            for item in given:
                setting, _, value = item.partition("=")
                if setting.partition(".")[0] not in SECTIONS or setting == "model.name":
                    raise UsageError(
                        f"{name!r:.80} sets {setting}: expected settings of {', '.join(SECTIONS)} behind the name of"
                        " the model"
                    )
                settings[setting] = value
            if settings in candidates.values():
                raise UsageError(f"{name!r:.80} is listed twice: remove one, or give it different settings")
            candidates[name] = settings
    if not candidates:
        raise UsageError("--models is empty: expected names such as nano.en,base.en")
    return candidates
