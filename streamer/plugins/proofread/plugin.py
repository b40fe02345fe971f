"""What proofreading adds: a corrector."""

from collections.abc import Callable, Sequence

from streamer.after.correct.corrector import Corrector
from streamer.plugins.proofread.settings import ProofreadSettings
from streamer.settings.table import Settings


def make_corrector(settings: Settings, terms: Callable[[], Sequence[str]]) -> Corrector | None:
    """Return the language model of the settings; None if they name none. Raises ConfigError.

    terms : returns the terms of the glossary, as they are now
    """
    wanted = settings.of(ProofreadSettings)
    if not wanted.to:
        return None
    from streamer.plugins.proofread.language_model import LanguageModel

    return LanguageModel(wanted, settings.correction.deadline_s, terms)
