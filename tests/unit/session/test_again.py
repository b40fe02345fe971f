"""What is decoded again, and how: loops, speech without words, and what is in another language."""

import pytest

from tests.unit.session.scene import Scene


def test_a_window_on_its_way_with_words_that_led_into_a_loop_is_replaced() -> None:
    scene = Scene()
    for step in ("talk 2", "rest 2.3", "read hello. .5 1", "rest 4", "talk 6", "ask en 0", "talk 6.6"):
        scene.act(*step.split(" ", 1))
    waiting = scene.session.next_span(0.0)
    assert waiting is not None
    assert waiting.start == 0
    scene.read("on .5 .8", looped=True)
    assert scene.session.task(waiting) is None
    again = scene.ask().span
    assert (again.start > 3 * 16_000, again.end) == (True, waiting.end)


@pytest.mark.parametrize("speaking_on_s", [0, 30])
def test_a_loop_that_stays_ends_with_what_was_known(speaking_on_s: int) -> None:
    """Its window begins within the open segment, whose words before the window are its prompt."""
    scene = Scene(trim_after_s=60.0, window_s=8.0, policy="alignatt")
    for i in range(20):
        scene.talk(0.5 * i + 1.0)
        if scene.session.due:
            first = round(scene.ask().span.start / 8_000)
            scene.read(" / ".join(f"w{j} {0.5 * j + 0.1} {0.5 * j + 0.5}" for j in range(first, i + 1)))
    scene.talk(11.7 + speaking_on_s)
    assert scene.ask().request.prompt
    events = scene.tell(scene.session.finish(scene.session.now.received))
    for _ in range(20):
        if not scene.session.now.finished:
            events += scene.read("on .5 .8", looped=True)
    assert scene.session.now.finished, "it is decoded again and again"
    assert any(final.text.endswith("w19") for final in scene.promises.finals)
