"""static/transcript.js and static/formats.js in a real browser: events in, entries and files out."""

import json
from typing import Any

import pytest

from streamer.events import Event, Final, Speech
from tests.browser import browse
from tests.builders import final, partial, ready, words
from tests.conversations import Script, conversations
from tests.wire.harness import serving

# In the page: reads events, and returns the transcript as data and in each format.
TAKE = """
(async (events, options) => {
  const { Transcript } = await import("./transcript.js");
  const { FORMATS } = await import("./formats.js");
  const transcript = new Transcript(options);
  events.forEach((event) => transcript.take(event));
  const saved = transcript.saved();
  const files = Object.entries(FORMATS).map(([name, { write }]) => [name, write(saved)]);
  return { saved, ...Object.fromEntries(files) };
})
"""


def spoken(text: str, start: float, segment: int = 0) -> Final:
    """Return a final whose words take 0.3 s each."""
    return final(text, start=start, segment=segment, words=words(text, start, step=0.3))


async def test_what_the_page_makes_of_a_session() -> None:
    async with serving() as running, browse(running.url) as page:
        for parameter in conversations("transcripts", "clients"):
            talk: Any = parameter.values[0]
            script, events = Script(), list[str]()
            options = json.dumps({"resent": "[resent]" in talk.title})
            for step in talk.steps:
                if step.kind == "!":
                    events.append(script.event(step.text).to_json())
                else:
                    talk.expect(step.text, await page.evaluate(f"{TAKE}([{','.join(events)}], {options})"))


NEW = 'const { Transcript } = await import("./transcript.js"); const known = new Transcript();'


async def test_what_is_said_flows_into_paragraphs_until_a_silence_or_a_long_one_ends() -> None:
    sentence = "a sentence of many words that goes on and on and on for a while."
    said = [spoken("One.", 0.0), spoken("Two.", 1.0), spoken("Three.", 30.0)]
    said += [spoken(sentence, 27.0 + n) for n in range(4, 14)]
    told = [ready(), *said, partial("and", segment=14, start=41.0)]
    async with serving() as running, browse(running.url) as page:
        begins = await page.evaluate(
            f"(async (events) => {{ {NEW}"
            " events.forEach((event) => known.take(event));"
            " return [...known.entries.map(({ begins }) => begins), known.partialBegins]; })"
            f"([{','.join(event.stamped(seq, 'a').to_json() for seq, event in enumerate(told))}])"
        )
    assert begins[:4] == [True, False, True, False]
    assert begins.count(True) == 3, "the third where the paragraph has 500 characters"


def speech(state: Any, time: float) -> Event:  # noqa: ANN401 - a literal
    return Speech(state=state, time=time)


async def test_the_page_knows_how_far_the_text_is_behind() -> None:
    long = "and so it goes on, they said to him, and to everybody else who was there and had time"
    told = [
        (100.0, ready()),
        (101.2, speech("start", 1.0)),
        (103.0, partial("and", segment=1, start=0.5, end=0.8)),
        (108.5, speech("end", 8.0)),
        (108.8, speech("start", 8.4)),
        (109.0, speech("end", 8.8)),
        (109.2, spoken(long, 0.5, 1)),
        (109.3, speech("start", 9.0)),
        (109.4, partial("until", segment=2, start=9.0, end=9.3)),
        (109.9, speech("end", 9.6)),
        (111.0, spoken("until", 9.0, 2)),
        (120.2, speech("start", 20.0)),
        (128.2, speech("end", 28.0)),
        (129.0, speech("start", 28.8)),
        (129.4, speech("end", 29.2)),
        (160.0, speech("start", 59.8)),
    ]
    timed = ",".join(f"[{now}, {event.stamped(seq, 'a').to_json()}]" for seq, (now, event) in enumerate(told))
    async with serving() as running, browse(running.url) as page:
        behind = await page.evaluate(
            f"(async (timed) => {{ {NEW}"
            " return timed.map(([now, event]) => { known.take(event, now); return known.behind(now + 4); }); })"
            f"([{timed}])"
        )
    assert behind[:2] == [0, 4], "nothing is known of four seconds of speech"
    assert 4 < behind[2] < 6
    assert all(one > 10 for one in behind[3:6]), "a pause brings no text"
    assert behind[6] == 0
    assert behind[8:11] == [pytest.approx(4.2, abs=0.3), 0, 0], "the end of a word is no text that is missing"
    assert behind[13] > 10, "of nine seconds there is no text"
    assert behind[15] < 5, "those were no words"
