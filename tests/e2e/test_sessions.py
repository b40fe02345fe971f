"""The whole thing as people use it: a microphone that PortAudio records, and a browser on the captions page."""

import asyncio
import itertools
import subprocess
from pathlib import Path

import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.events import End, Error, Final, Gap, Ready, Speech
from streamer.whisper.shipped import EMBEDDED_ORIGIN, limits
from tests.browser import browse, fake_microphone_flags
from tests.daemon import SAMPLE, WAIT_S, connected, pause_after, recording, running, sample_text
from tests.promises import check_promises, transcript
from tests.virtual_mic import VirtualMicrophone
from tests.wer import wer, words_of

# The first sentence of the sample, and the first two.
ONE_S = pause_after(1)
TWO_S = pause_after(2)

# nano.en gets about one word in six wrong, and a microphone adds its own.
MAX_WER = 0.4

FINALS = "[...document.querySelectorAll('#finals .text')].map(p => p.textContent).join(' ')"
LIVE = "['live', 'speech'].includes(document.querySelector('#status').dataset.state)"


def excerpt(directory: Path, end_s: float, silence_s: float = 0.0) -> Path:
    """Write the beginning of the sample as a WAV file, with silence behind it."""
    path = directory / f"excerpt-{end_s}.wav"
    samples = recording(SAMPLE, 0.0, end_s)
    with soundfile.SoundFile(path, "w", SAMPLE_RATE, 1, subtype="PCM_16") as file:
        file.write(samples)
        file.write(0.0 * recording(SAMPLE, 0.0, silence_s))
    return path


async def play(microphone: VirtualMicrophone, path: Path, sink: str = "vmic") -> None:
    """Speak a recording into the microphone, or play it through the loudspeakers, to its end."""
    player: subprocess.Popen[bytes] = microphone.play(path, sink)
    assert await asyncio.to_thread(player.wait, WAIT_S) == 0


async def test_what_is_said_into_a_microphone_is_captioned_also_after_it_was_pulled_out(
    virtual_microphone: VirtualMicrophone, tmp_path: Path
) -> None:
    one, two = excerpt(tmp_path, ONE_S), excerpt(tmp_path, TWO_S)
    with running("--input", "mic", "--no-captions", environ=virtual_microphone.env) as daemon:
        assert daemon.health()["input"] != "none"
        async with connected(daemon.address("/v1/captions?after=0")) as (_, received):
            await received.wait_for(Ready)
            await play(virtual_microphone, two)
            await received.wait_for(Final, n=2)
            assert wer(sample_text(0.0, TWO_S), transcript(received.events)) <= MAX_WER
            assert not received.of(Error, Gap)

            virtual_microphone.unplug()
            await received.wait_for(Error)
            (error,) = received.of(Error)
            assert (error.code, error.fatal) == ("audio_device", False)
            virtual_microphone.plug()
            await received.wait_for(Gap)
            (gap,) = received.of(Gap)
            assert gap.reason == "device"

            n_before = len(received.events)
            await play(virtual_microphone, one)
            await received.wait_for(Final, n=len(received.of(Final)) + 1)
            # A sound server on a busy machine leaves bits out of what it plays, and these are a few words.
            expected = set(words_of(sample_text(0.0, ONE_S)))
            heard = transcript(received.events[n_before:])
            assert len(expected & set(words_of(heard))) >= len(expected) // 3, heard
            assert received.of(Speech)[-1].time > gap.end

            daemon.terminate()
            await received.wait_closed()
        outcome = daemon.wait()
    assert outcome.exit_code == 0, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr.count(limits(EMBEDDED_ORIGIN)) == 1
    assert received.close_code == 1000
    assert isinstance(received.events[-1], End)
    check_promises(received.events)


async def test_a_browser_shows_what_the_daemon_hears(tmp_path: Path) -> None:
    with running("--input", excerpt(tmp_path, TWO_S), "--speed", "2", "--no-captions") as daemon:
        async with browse(daemon.url) as page, connected(daemon.address("/v1/captions?after=0")) as (_, received):
            await page.wait_for(f"document.querySelector('#stable').textContent || {FINALS}")
            await received.wait_closed()
            await page.wait_for(f"{FINALS}.includes({received.of(Final)[-1].text!r})")
            shown = await page.evaluate(FINALS)
            # It may have come when the first sentence was final already: it shows what is said from then on.
            assert shown.endswith(" ".join(final.text for final in received.of(Final)[-1:]))
            assert page.problems == []
        assert daemon.stop().exit_code == 0


async def test_a_browsers_own_microphone_is_captioned(tmp_path: Path) -> None:
    # The browser plays it over and over: silence keeps the rounds apart.
    wav = excerpt(tmp_path, ONE_S, silence_s=1.5)
    with running("--input", "none") as daemon:
        async with browse(daemon.url, flags=fake_microphone_flags(wav)) as page:
            await page.wait_for("document.querySelector('#status').dataset.state !== 'connecting'")
            await page.click("#microphone")
            await page.wait_for("document.querySelector('#stable').textContent.length > 10")
            await page.wait_for(f"{FINALS}.length > 40")
            await page.click("#microphone")
            await page.wait_for("document.querySelector('#microphone').getAttribute('aria-pressed') === 'false'")
            shown = words_of(await page.evaluate(FINALS))
            expected = words_of(sample_text(0.0, ONE_S))
            assert len(set(shown) & set(expected)) >= len(set(expected)) // 2, shown
            # That this daemon has no input of its own to show is all that may have been wrong.
            assert all("/v1/captions" in problem for problem in page.problems), page.problems
        assert daemon.stop().exit_code == 0


async def test_what_the_computer_plays_is_told_from_what_is_said_into_the_microphone(
    virtual_microphone: VirtualMicrophone, tmp_path: Path
) -> None:
    one = excerpt(tmp_path, ONE_S)
    virtual_microphone.plug_speakers()
    with running("--input", "mic+system", "--no-captions", environ=virtual_microphone.env) as daemon:
        assert daemon.health()["input"] == "microphone 'default' and system sound of 'Boxes'"
        async with connected(daemon.address("/v1/captions?after=0")) as (_, received):
            await received.wait_for(Ready)
            for sink in ("speakers", "vmic"):
                await play(virtual_microphone, one, sink)
                await received.wait_for(Final, n=len(received.of(Final)) + 1)
            daemon.terminate()
            await received.wait_closed()
    assert not received.of(Error, Gap)
    finals = [final for final in received.of(Final) if final.text]
    assert [speaker for speaker, _ in itertools.groupby(final.speaker for final in finals)] == ["system", "mic"]
    # A sound server on a busy machine leaves bits out of what it plays.
    expected = set(words_of(sample_text(0.0, ONE_S)))
    for speaker in ("system", "mic"):
        heard = {word for final in finals if final.speaker == speaker for word in words_of(final.text)}
        assert len(expected & heard) >= len(expected) // 3, heard
