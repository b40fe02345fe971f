"""static/transcript.js and static/formats.js in a real browser: events in, entries and files out."""

import json
import re
from typing import Any

import msgspec
import pytest

from streamer.after.correct.pipeline import edits
from streamer.events import Event, Final, Revision, Speakers, Speech, Translation, Word
from tests.browser import browse
from tests.builders import ready
from tests.unit.outputs.finals import labelled
from tests.wire.support import final, partial, serving
from tests.wire.test_protocol_document import blocks

# In the page: takes events, and returns the transcript as data and in each format.
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


def spoken(text: str, start: float, probability: float = 0.9) -> Final:
    """A final whose words take 0.3 s each."""
    words = [
        Word(word=f" {word}", start=start + 0.3 * i, end=start + 0.3 * (i + 1), probability=probability, stable=True)
        for i, word in enumerate(text.split())
    ]
    return msgspec.structs.replace(final(1, text, start), words=tuple(words), end=words[-1].end)


async def test_a_transcript_is_kept_and_written() -> None:
    async with serving() as running, browse(running.url) as page:

        async def take(*events: Event, sessions: str = "", resent: bool = False) -> dict[str, Any]:
            stamped = [
                event.stamped(seq, session)
                for seq, (event, session) in enumerate(zip(events, sessions or "a" * len(events), strict=True), 1)
            ]
            listed = ",".join(event.to_json() for event in stamped)
            found = await page.evaluate(f"{TAKE}([{listed}], {json.dumps({'resent': resent})})")
            assert isinstance(found, dict)
            return found

        # What has settled of the open segment stays, in the present session and behind a restart, but where its audio
        # is sent again; times go on behind it.
        crashed = (ready(), final(1, "one"), partial(2, "two three four", len("two three"), start=5.0))
        assert (await take(*crashed))["txt"] == "one\ntwo three\n"
        again = (*crashed, ready(), final(1, "new"))
        found = await take(*again, sessions="aaabb")
        assert found["txt"] == "one\ntwo three\n[the daemon was restarted]\nnew\n"
        assert [entry["start"] for entry in found["saved"]] == [0, 5, 5.6, 5.6]
        assert [entry["number"] for entry in found["saved"]] == [0, 1, 2, 3]
        assert (await take(*again, sessions="aaabb", resent=True))["txt"] == "one\n[the daemon was restarted]\nnew\n"

        # Cues have two lines, of a length that can be read, end where a clause does, and are there long enough.
        long = "When the vote was over, and nobody in the room had expected it to be so close, she asked for a count"
        srt = (await take(ready(), spoken(long, 1.0), final(2, "Yes.", start=3700.5)))["srt"]
        assert srt == (
            "1\n00:00:01,000 --> 00:00:06,100\n"
            "When the vote was over, and nobody in\nthe room had expected it to be so close,\n\n"
            "2\n00:00:06,100 --> 00:00:07,600\nshe asked for a count\n\n"
            "3\n01:01:40,500 --> 01:01:41,200\nYes.\n\n"
        )
        untimed = msgspec.structs.replace(
            spoken("皆さん、おはようございます。会議を始めましょう。では、議題に入ります。", 0.0), words=()
        )
        assert (await take(ready(), untimed))["srt"].split("\n")[2:4] == [
            "皆さん、おはようございます。会議を始",
            "めましょう。では、議題に入ります。",
        ]

        # What a file's syntax means is written so that it does not, and speakers are named.
        evil = msgspec.structs.replace(spoken("<b>1 --> 2 & so\non", 0.0, probability=0.4), speaker="mic")
        found = await take(ready(), evil)
        assert found["txt"] == "mic: <b>1 --> 2 & so on\n"
        assert "\n<v mic>&lt;b&gt;1 --&gt; 2 &amp; so on\n\n" in found["vtt"]

        # Who speaks is a run of words; labels that are one person become one run, and names come where they change.
        talk = labelled(spoken("hi there you too fine", 0.0), "S1", "S1", "S3", None, "S2")
        events = (ready(), talk, labelled(spoken("go on", 9.0), "S1"), spoken("who is it", 20.0))
        found = await take(*events)
        assert found["txt"] == "S1: hi there\nS3: you too\nS2: fine\nS1: go on\nwho is it\n"
        assert re.findall("<v .*", found["vtt"]) == ["<v S1>hi there", "<v S3>you too", "<v S2>fine", "<v S1>go on"]
        merged = (Speakers(same=("S3", "S2")), Speakers(same=("S2", "S1")), labelled(spoken("yes", 30.0), "S3"))
        found = await take(*events, *merged)
        assert found["txt"] == "S1: hi there you too fine\ngo on\nwho is it\nS1: yes\n"
        assert "S2" not in found["srt"] + found["vtt"]

        # The newest revision holds, with its words; what was written first stays known.
        first, second = "we met 👋 shavon there", "we met 👋 Siobhán there"
        words = labelled(spoken(second, 2.0), *["S1"] * 3, "S2").words
        newer = Revision(of=2, by="glossary", text=second, words=words, edits=edits(first, second))
        plain = Revision(of=2, by="speakers", text=first, words=words, edits=())
        gone = Revision(of=77, by="glossary", text="nothing", words=(), edits=())
        translation = Translation(of=2, text="wir trafen Siobhán", language="de")
        found = await take(ready(), spoken(first, 2.0), plain, gone, newer, translation, final(2, "ok", 9.0))
        entry = found["saved"][0]
        assert (entry["text"], entry["first"]) == (second, first)
        assert [second.encode("utf-16-le")[2 * a : 2 * b].decode("utf-16-le") for a, b in entry["changes"]] == [
            "Siobhán"
        ]
        assert entry["translation"] == {"text": "wir trafen Siobhán", "language": "de"}
        assert found["txt"] == "S1: we met 👋\nS2: Siobhán there\nok\n"
        found = await take(ready(), spoken(first, 2.0), newer, msgspec.structs.replace(newer, text=first, edits=()))
        assert (found["saved"][0]["first"], found["saved"][0]["changes"]) == (None, [])
        assert (await take(*(ready(), spoken(first, 2.0), newer), sessions="aab"))["saved"][0]["text"] == first

        # The example of the document makes the same of them.
        (example,) = blocks("js")
        told = (
            ready(),
            talk,
            *merged,
            Revision(of=2, by="glossary", text="Hi", words=talk.words, edits=()),
            translation,
        )
        listed = ",".join(event.stamped(seq, "a").to_json() for seq, event in enumerate(told, 1))
        final_now = await page.evaluate(
            f"(() => {{ {example}; [{listed}].forEach(apply);"
            " const { text, words, translation } = finals.get(2);"
            " return [text, translation, ...words.map(nameOf)]; })()"
        )
        assert final_now == ["Hi", "wir trafen Siobhán", "S1", "S1", "S1", None, "S1"]


NEW = 'const { Transcript } = await import("./transcript.js"); const known = new Transcript();'


async def test_what_is_said_flows_into_paragraphs_until_a_silence_or_a_long_one_ends() -> None:
    sentence = "a sentence of many words that goes on and on and on for a while."
    said = [final(1, "One.", 0.0), final(2, "Two.", 1.0), final(3, "Three.", 30.0)]
    said += [final(n, sentence, 27.0 + n) for n in range(4, 14)]
    stamped = [
        event.stamped(seq, "a").to_json() for seq, event in enumerate([ready(), *said, partial(14, "and", 0, 41.0)])
    ]
    async with serving() as running, browse(running.url) as page:
        begins = await page.evaluate(
            f"(async (events) => {{ {NEW}"
            " events.forEach((event) => known.take(event));"
            f" return [...known.entries.map(({{ begins }}) => begins), known.partialBegins]; }})([{','.join(stamped)}])"
        )
    assert begins[:4] == [True, False, True, False]
    assert begins.count(True) == 3  # the third where the paragraph has 500 characters


async def test_the_page_knows_how_far_the_text_is_behind() -> None:
    told = [
        (100.0, ready()),
        (101.2, Speech(state="start", time=1.0)),
        (103.0, partial(1, "and", 0, 0.5)),
        (108.5, Speech(state="end", time=8.0)),
        (108.8, Speech(state="start", time=8.4)),
        (109.0, Speech(state="end", time=8.8)),
        (109.2, final(1, "and so it goes on, they said to him, and to everybody else who was there and had time", 0.5)),
        (109.3, Speech(state="start", time=9.0)),
        (109.4, partial(2, "until", 0, 9.0)),
        (109.9, Speech(state="end", time=9.6)),
        (111.0, final(2, "until", 9.0)),
        (120.2, Speech(state="start", time=20.0)),
        (128.2, Speech(state="end", time=28.0)),
        (129.0, Speech(state="start", time=28.8)),
        (129.4, Speech(state="end", time=29.2)),
        (160.0, Speech(state="start", time=59.8)),
    ]
    timed = [f"[{now}, {event.stamped(seq, 'a').to_json()}]" for seq, (now, event) in enumerate(told)]
    async with serving() as running, browse(running.url) as page:
        behind = await page.evaluate(
            f"(async (timed) => {{ {NEW}"
            " return timed.map(([now, event]) => { known.take(event, now); return known.behind(now + 4); }); })"
            f"([{','.join(timed)}])"
        )
    assert behind[0] == 0
    assert behind[1] == 4  # nothing is known of four seconds of speech
    assert 4 < behind[2] < 6
    assert all(one > 10 for one in behind[3:6])  # a pause brings no text
    assert behind[6] == 0
    assert behind[8:11] == [pytest.approx(4.2, abs=0.3), 0, 0]  # the end of a word is no text that is missing
    assert behind[13] > 10  # of nine seconds there is no text
    assert behind[15] < 5  # those were no words
