"""What is added to a session's events, as the settings ask for it."""

from pathlib import Path
from unittest.mock import MagicMock

import msgspec
import pytest

from streamer.after.postprocessing import PostProcessing
from streamer.errors import ConfigError
from streamer.events import Final, Partial, Revision
from streamer.plugins.proofread.language_model import LanguageModel
from streamer.settings.table import CorrectionSettings, Settings
from tests.builders import final, partial, words
from tests.unit.after.live import Live


def post_processing_of(glossary: Path) -> PostProcessing:
    model, engine = MagicMock(), MagicMock()
    model.tokenizer.encode.return_value = [99_999]  # no usual word
    return PostProcessing(Settings(correction=CorrectionSettings(glossary=str(glossary))), model, engine)


def test_a_glossary_spells_texts_before_they_are_published_and_revises_finals_where_that_was_too_late(
    tmp_path: Path,
) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text("- Port Dravenholt\n- Quorbix\n- {mask: damn}", encoding="utf-8")
    processing = post_processing_of(path)
    live = Live(language="en", translated=False)
    live.follow(*processing.followers(live.session, live.log))
    text = "damn quarbex at pord"
    live.publish(partial(text, len(text), segment=1, words=words(text, step=1.0)))
    text += " draven hold"
    late = final(text, segment=1, words=words(text, step=1.0))
    live.publish(late)
    told = [(event.type, event.text) for event in live.finish() if isinstance(event, Partial | Final | Revision)]
    assert told == [
        ("partial", "**** Quorbix at pord"),
        ("final", "**** Quorbix at pord draven hold"),
        ("revision", "**** Quorbix at Port Dravenholt"),
    ]
    (revision,) = live.revisions
    assert (revision.of, revision.by) == (2, "glossary")

    path.write_text("- Other", encoding="utf-8")
    processing.reread()()
    new = msgspec.structs.replace(late, segment=2)
    again = Live(language="en", translated=False)
    again.follow(*processing.followers(again.session, again.log))
    again.publish(new)
    (event,) = again.events
    assert isinstance(event, Final)
    assert event.text == new.text


def test_a_glossary_with_errors_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "terms.yaml").write_text("- {find: a}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"terms\.yaml:1"):
        post_processing_of(tmp_path / "terms.yaml")


def test_the_endpoint_is_told_the_terms_that_the_glossary_has_by_now(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text("- Quorbix", encoding="utf-8")
    wanted = Settings().having({"correction.glossary": str(path), "correction.to": "http://127.0.0.1:1/v1"})
    processing = PostProcessing(wanted, MagicMock(), MagicMock())
    path.write_text("- Grafana", encoding="utf-8")
    processing.reread()()
    assert processing.corrections is not None
    (endpoint,) = processing.corrections.slow
    assert isinstance(endpoint, LanguageModel)
    assert list(endpoint._terms()) == ["Grafana"]
