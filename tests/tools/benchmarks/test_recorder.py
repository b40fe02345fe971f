"""Events become a timeline."""

import pytest

from streamer.events import Gap
from streamer.events import Revision as Correction
from tests.builders import final, partial
from tools.benchmarks.recorder import Recorder
from tools.benchmarks.timeline import Revision


def test_finals_and_the_newest_partial_are_on_screen() -> None:
    recorder = Recorder()
    recorder.add(partial("Good mor"), 1.1)
    recorder.add(partial("Good morning to", len("Good")), 1.7)
    recorder.add(final("Good morning", seq=3), 2.1)
    recorder.add(partial("to you"), 2.1)
    recorder.add(Gap(start=2.0, end=3.0, reason="overload"), 3.5)
    recorder.add(Correction(of=3, by="glossary", text="Good mourning", words=(), edits=()), 3.6)
    timeline = recorder.timeline("ours", "slt", 4.0, cpu_s=1.0, peak_rss_mb=2.0, encoder_calls=3)
    assert timeline.revisions == [
        Revision(1.1, ("Good", "mor"), 0),
        Revision(1.7, ("Good", "morning", "to"), 1),
        Revision(2.1, ("Good", "morning"), 2),
        Revision(2.1, ("Good", "morning", "to", "you"), 2),
    ]
    assert timeline.gaps == [(2.0, 3.0)]
    assert timeline.corrected == "Good mourning"
    assert (timeline.encoder_calls, timeline.decoder_calls) == (3, None)


@pytest.mark.parametrize(
    ("stable", "n_stable"), [("", 0), ("Good", 1), ("Good ", 1), ("Good mor", 1), ("Good morning", 2)]
)
def test_a_word_is_promised_when_all_of_it_is(stable: str, n_stable: int) -> None:
    recorder = Recorder()
    recorder.add(partial("Good morning", len(stable)), 1.0)
    assert recorder.timeline("ours", "slt", 2.0, cpu_s=0, peak_rss_mb=0).revisions[0].n_stable == n_stable
