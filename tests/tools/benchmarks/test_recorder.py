"""Events become a timeline."""

from streamer.events import Final, Gap, Partial, Speech, Word
from tools.benchmarks.recorder import Recorder
from tools.benchmarks.timeline import Revision


def partial(text: str, stable: str, end: float) -> Partial:
    return Partial(segment=0, start=0.0, end=end, text=text, stable=len(stable), words=())


def final(text: str, start: float, end: float) -> Final:
    words = tuple(Word(word=f" {word}", start=start, end=end, probability=0.9, stable=True) for word in text.split())
    return Final(
        segment=0, start=start, end=end, text=text, words=words, language="en", no_speech_prob=0.0, avg_logprob=0.0
    )


def test_finals_and_the_newest_partial_are_on_screen() -> None:
    recorder = Recorder(wait_s=0.5)
    recorder.take(Speech(state="start", time=0.2), 0.3)
    recorder.take(partial("Good mor", "", 1.0), 1.1)
    recorder.take(partial("Good morning to", "Good", 1.5), 1.7)
    recorder.take(final("Good morning", 0.2, 1.4), 2.1)
    recorder.take(partial("to you", "", 2.0), 2.1)
    recorder.take(Gap(start=2.0, end=3.0, reason="overload"), 3.5)
    timeline = recorder.timeline("ours", "slt", 4.0, cpu_s=1.0, peak_rss_mb=2.0, encoder_calls=3)
    assert timeline.revisions == [
        Revision(1.1, 1.0, ("Good", "mor"), 0),
        Revision(1.7, 1.5, ("Good", "morning", "to"), 1),
        Revision(2.1, 1.5, ("Good", "morning"), 2),
        Revision(2.1, 2.0, ("Good", "morning", "to", "you"), 2),
    ]
    assert timeline.speech == [(0.3, "start", 0.2)]
    assert timeline.gaps == [(2.0, 3.0)]
    assert timeline.finals == [(0.2, 1.4)]
    assert (timeline.encoder_calls, timeline.decoder_calls) == (3, None)


def test_the_end_of_speech_is_known_when_the_silence_was_heard() -> None:
    recorder = Recorder(wait_s=0.5)
    recorder.take(Speech(state="end", time=2.0), 2.6)
    recorder.take(final("Bye", 1.0, 2.0), 2.7)
    assert recorder.timeline("ours", "slt", 9.0, cpu_s=0, peak_rss_mb=0).revisions[0].audio_s == 2.5
    # The audio ended earlier than that: nobody waited.
    assert recorder.timeline("ours", "slt", 2.2, cpu_s=0, peak_rss_mb=0).revisions[0].audio_s == 2.2


def test_a_word_is_promised_when_all_of_it_is() -> None:
    for stable, n_stable in (("", 0), ("Good", 1), ("Good ", 1), ("Good mor", 1), ("Good morning", 2)):
        recorder = Recorder(wait_s=0.5)
        recorder.take(partial("Good morning", stable, 1.0), 1.0)
        assert recorder.timeline("ours", "slt", 2.0, cpu_s=0, peak_rss_mb=0).revisions[0].n_stable == n_stable
