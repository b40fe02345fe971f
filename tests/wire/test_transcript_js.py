"""static/transcript.js and static/formats.js in a real browser: events in, entries and files out."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from streamer.after.correct.pipeline import edits
from streamer.events import Event, Final, Revision, Speakers, Speech, Translation
from tests.browser import browse
from tests.builders import final, partial, ready, words
from tests.unit.outputs.finals import labelled
from tests.wire.support import serving
from tests.wire.test_protocol_document import blocks

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

Take = Callable[..., Awaitable[Any]]


def spoken(text: str, start: float, segment: int = 0) -> Final:
    """Return a final whose words take 0.3 s each."""
    return final(text, start=start, segment=segment, words=words(text, start, step=0.3))


def listed(events: Any, sessions: str = "") -> str:  # noqa: ANN401 - events
    """Return events as a list in JavaScript."""
    named = zip(events, sessions or "a" * len(events), strict=True)
    return ",".join(event.stamped(seq, session).to_json() for seq, (event, session) in enumerate(named, 1))


@asynccontextmanager
async def page_that_takes() -> AsyncIterator[tuple[Any, Take]]:
    """Open a page, and give it and a function that returns what events become there."""
    async with serving() as running, browse(running.url) as page:

        async def take(*events: Event, sessions: str = "", resent: bool = False) -> Any:  # noqa: ANN401 - JSON
            return await page.evaluate(f"{TAKE}([{listed(events, sessions)}], {json.dumps({'resent': resent})})")

        yield page, take


async def test_a_restart_keeps_what_was_stable_unless_its_audio_is_sent_again() -> None:
    crashed = (ready(), spoken("one", 0.0), partial("two three four", len("two three"), segment=2, start=5.0))
    again = (*crashed, ready(), spoken("new", 0.0))
    async with page_that_takes() as (_, take):
        assert (await take(*crashed))["txt"] == "one\ntwo three\n"
        found = await take(*again, sessions="aaabb")
        assert found["txt"] == "one\ntwo three\n[the daemon was restarted]\nnew\n"
        assert [(entry["number"], entry["start"]) for entry in found["saved"]] == [(0, 0), (1, 5), (2, 5.5), (3, 5.5)]
        assert (await take(*again, sessions="aaabb", resent=True))["txt"] == "one\n[the daemon was restarted]\nnew\n"


async def test_cues_can_be_read_and_what_a_format_means_is_escaped() -> None:
    long = "When the vote was over, and nobody in the room had expected it to be so close, she asked for a count"
    chinese = final("皆さん、おはようございます。会議を始めましょう。では、議題に入ります。", words=(), end=0.3)
    evil = final("<b>1 --> 2 & so\non", words=words("<b>1 --> 2 & so\non", probability=0.4), speaker="mic")
    async with page_that_takes() as (_, take):
        assert (await take(ready(), spoken(long, 1.0), final("Yes.", start=3700.5, words=(), end=3700.8)))["srt"] == (
            "1\n00:00:01,000 --> 00:00:06,100\n"
            "When the vote was over, and nobody in\nthe room had expected it to be so close,\n\n"
            "2\n00:00:06,100 --> 00:00:07,600\nshe asked for a count\n\n"
            "3\n01:01:40,500 --> 01:01:41,200\nYes.\n\n"
        )
        lines = (await take(ready(), chinese))["srt"].split("\n")
        assert lines[2:4] == ["皆さん、おはようございます。会議を始", "めましょう。では、議題に入ります。"]
        found = await take(ready(), evil)
        assert found["txt"] == "mic: <b>1 --> 2 & so on\n"
        assert "\n<v mic>&lt;b&gt;1 --&gt; 2 &amp; so on\n\n" in found["vtt"]


TALK = labelled(spoken("hi there you too fine", 0.0), "S1", "S1", "S3", None, "S2")
MERGED = (Speakers(same=("S3", "S2")), Speakers(same=("S2", "S1")))


async def test_a_speaker_is_named_for_a_run_of_words_and_labels_of_one_person_are_one() -> None:
    events = (ready(), TALK, labelled(spoken("go on", 9.0), "S1"), spoken("who is it", 20.0))
    async with page_that_takes() as (_, take):
        found = await take(*events)
        assert found["txt"] == "S1: hi there\nS3: you too\nS2: fine\nS1: go on\nwho is it\n"
        assert re.findall("<v .*", found["vtt"]) == ["<v S1>hi there", "<v S3>you too", "<v S2>fine", "<v S1>go on"]
        found = await take(*events, *MERGED, labelled(spoken("yes", 30.0), "S3"))
        assert found["txt"] == "S1: hi there you too fine\ngo on\nwho is it\nS1: yes\n"
        assert "S2" not in found["srt"] + found["vtt"]


async def test_the_newest_revision_holds_and_what_was_written_first_stays_known() -> None:
    first, second = "we met 👋 shavon there", "we met 👋 Siobhán there"
    spelt = labelled(spoken(second, 2.0), *["S1"] * 3, "S2").words
    newer = Revision(of=2, by="glossary", text=second, words=spelt, edits=edits(first, second))
    plain = Revision(of=2, by="speakers", text=first, words=spelt, edits=())
    gone = Revision(of=77, by="glossary", text="nothing", words=(), edits=())
    translation = Translation(of=2, text="wir trafen Siobhán", language="de")
    async with page_that_takes() as (page, take):
        found = await take(ready(), spoken(first, 2.0), plain, gone, newer, translation, spoken("ok", 9.0))
        entry = found["saved"][0]
        assert (entry["text"], entry["first"]) == (second, first)
        utf16 = second.encode("utf-16-le")
        assert [utf16[2 * a : 2 * b].decode("utf-16-le") for a, b in entry["changes"]] == ["Siobhán"]
        assert entry["translation"] == {"text": "wir trafen Siobhán", "language": "de"}
        assert found["txt"] == "S1: we met 👋\nS2: Siobhán there\nok\n"
        back = msgspec.structs.replace(newer, text=first, edits=())
        (entry,) = (await take(ready(), spoken(first, 2.0), newer, back))["saved"]
        assert (entry["first"], entry["changes"]) == (None, [])
        assert (await take(ready(), spoken(first, 2.0), newer, sessions="aab"))["saved"][0]["text"] == first

        # The example of the document makes the same of them.
        (example,) = blocks("js")
        corrected = Revision(of=2, by="glossary", text="Hi", words=TALK.words, edits=())
        shown = await page.evaluate(
            f"(() => {{ {example}; [{listed((ready(), TALK, *MERGED, corrected, translation))}].forEach(apply);"
            " const { text, words, translation } = finals.get(2);"
            " return [text, translation, ...words.map(nameOf)]; })()"
        )
        assert shown == ["Hi", "wir trafen Siobhán", "S1", "S1", "S1", None, "S1"]


NEW = 'const { Transcript } = await import("./transcript.js"); const known = new Transcript();'


async def test_what_is_said_flows_into_paragraphs_until_a_silence_or_a_long_one_ends() -> None:
    sentence = "a sentence of many words that goes on and on and on for a while."
    said = [spoken("One.", 0.0), spoken("Two.", 1.0), spoken("Three.", 30.0)]
    said += [spoken(sentence, 27.0 + n) for n in range(4, 14)]
    async with page_that_takes() as (page, _):
        begins = await page.evaluate(
            f"(async (events) => {{ {NEW}"
            " events.forEach((event) => known.take(event));"
            " return [...known.entries.map(({ begins }) => begins), known.partialBegins]; })"
            f"([{listed([ready(), *said, partial('and', segment=14, start=41.0)])}])"
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
    async with page_that_takes() as (page, _):
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
