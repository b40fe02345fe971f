"""Audio is kept with its text, in its place, and goes with it; a disk that takes none of it stops nothing."""

import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from streamer.arrays import Float32Array, FloatArray
from streamer.audio import opus
from streamer.constants import SAMPLE_RATE
from streamer.engine.journal import Journal
from streamer.errors import ConfigError, HistoryError
from streamer.events import Gap
from streamer.history import audio as module
from streamer.history import database, deletion, writer
from streamer.history.writer import History, open_history
from streamer.settings.table import ServerSettings
from tests.builders import ready
from tests.unit.history.support import locked
from tests.waiting import WAIT_S, wait_until
from tests.wire.harness import numbered_final, wait_published

S = SAMPLE_RATE


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    monkeypatch.setattr(writer, "PUBLISH_TIMEOUT_S", WAIT_S)
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", WAIT_S)
    with closing(History(tmp_path / "data" / "history.db", audio=True)) as opened:
        yield opened


def melody(start_s: float, length_s: float) -> Float32Array:
    """Return a tone of another pitch in each second of a session."""
    times = np.arange(round(start_s * S), round((start_s + length_s) * S)) / S
    return (0.5 * np.sin(2 * np.pi * pitch(times) * times)).astype(np.float32)


def pitch(times: FloatArray) -> FloatArray:
    return 400 + 100 * np.floor(times)


def heard(history: History, start_s: float, session: str = "s1") -> float:
    """Return the pitch in the second of the kept audio that begins at a time; 0 for silence."""
    samples = np.concatenate(list(module.read(history, session, round(start_s * S), round((start_s + 1) * S))))
    assert len(samples) == S
    if np.abs(samples[S // 4 : -S // 4]).max() < 0.01:
        return 0.0
    return float(np.argmax(np.abs(np.fft.rfft(samples * np.hanning(S)))))


class Speaker:
    """A session that sings, and whose text is kept."""

    def __init__(self, history: History, session: str = "s1") -> None:
        self.log = Journal(session, 1000, keep=history.keeper(source="mic"))
        self.log.append(ready())
        wait_published(self.log)
        self.history, self._keep, self._session = history, history.audio_keeper(session), session
        self.now_s = 0.0

    def sing(self, length_s: float) -> "Speaker":
        for _ in range(round(length_s / 0.5)):
            self._keep(round(self.now_s * S), melody(self.now_s, 0.5))
            self.now_s += 0.5
        return self

    def say(self, text: str, length_s: float = 3.0) -> "Speaker":
        """Say something, and wait until it and its audio are in the file."""
        start_s = self.now_s
        self.sing(length_s)
        event = self.log.append(numbered_final(self.log.last_seq, text, start=start_s))
        assert event.seq
        wait_published(self.log)
        until = round(self.now_s * S)
        wait_until(lambda: any(end >= until for _, end in module.find_spans(self.history, self._session)))
        return self


def rows(history: History, columns: str = "session, start, end") -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(history.path)) as connection:
        return connection.execute(f"SELECT {columns} FROM audio ORDER BY id").fetchall()


def test_audio_is_found_at_the_positions_of_its_session(history: History) -> None:
    speaker = Speaker(history).say("one")
    assert rows(history) == [("s1", 0, 3 * S)], "that of a final is in the file with it"
    speaker.sing(3.0)
    speaker.now_s += 5.0  # a pause, or a loss
    speaker.say("three", 12.0).sing(1.0).log.close()
    wait_until(lambda: module.find_spans(history, "s1") == [(0, 6 * S), (11 * S, 24 * S)])
    assert [heard(history, second) for second in range(24)] == [
        400 + 100 * second if second < 6 or second >= 11 else 0 for second in range(24)
    ]
    assert max(int(str(end)) - int(str(start)) for _, start, end in rows(history)) < 11 * S


def test_a_session_whose_text_is_written_late_has_its_audio(history: History) -> None:
    keep = history.audio_keeper("s1")
    log = Journal("s1", 1000, keep=history.keeper(source="mic"))
    with locked(history.path):
        log.append(ready())
        keep(0, melody(0.0, 1.0))
        log.close()
        wait_until(lambda: history.audio is not None and history.audio.n_waiting == 0)
    history.close()
    assert rows(history) == [("s1", 0, S)]


def test_audio_goes_with_its_session_and_nothing_of_it_is_left(history: History) -> None:
    Speaker(history).say("one").log.close()
    other = Speaker(history, "s2")
    other.now_s = 20.0
    other.say("two")
    (data,) = next(iter(rows(history, "opus")))
    assert isinstance(data, bytes)
    session = history.session("s1")
    assert session is not None
    history.delete(session)
    assert rows(history) == [("s2", 20 * S, 23 * S)]
    for path in history.path.parent.iterdir():
        assert data[200:400] not in path.read_bytes()


def test_audio_of_a_session_that_was_deleted_meanwhile_is_not_written(history: History) -> None:
    speaker = Speaker(history)
    session = history.session("s1")
    assert session is not None
    speaker.sing(2.0)
    history.delete(session)
    history.close()
    assert rows(history) == []


def test_audio_goes_with_the_part_of_a_session_that_goes(history: History) -> None:
    speaker = Speaker(history).say("one").say("two")
    history.delete_before(time.time())
    assert rows(history) == []
    speaker.sing(1.0)  # what is said between the deletion and the final
    speaker.say("three")
    assert [heard(history, second) for second in (0.0, 5.0, 8.0)] == [0, 0, 1200]


def test_audio_that_waits_while_its_text_is_deleted_is_not_written(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = threading.Event()
    monkeypatch.setattr(opus, "encode", lambda samples: deleted.wait(WAIT_S) and b"of one")
    speaker = Speaker(history).sing(3.0)
    speaker.log.append(numbered_final(2, "one"))
    wait_published(speaker.log)
    history.delete_before(time.time())
    deleted.set()
    speaker.sing(2.0).log.append(numbered_final(3, "two"))
    history.close()
    assert rows(history) == [("s1", 3 * S, 5 * S)]


def test_what_a_client_clears_has_no_audio(history: History) -> None:
    speaker = Speaker(history).say("one").sing(12.0)
    speaker.log.append(Gap(start=3.0, end=14.25, reason="cleared"))
    speaker.say("two")
    history.close()
    assert module.find_spans(history, "s1") == [(0, 3 * S), (round(14.25 * S), 18 * S)]
    assert [heard(history, second) for second in (2.0, 3.0, 14.0 - 1.0, 15.0)] == [600, 0, 0, 1900]


def test_old_audio_goes_by_itself_and_so_does_the_oldest_before_any_text(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "PRUNE_PIECES", 1)
    speaker = Speaker(history)
    for i in range(10):
        speaker.say(f"text {i}", 4.0)
    history.close()
    with closing(sqlite3.connect(history.path)) as connection, connection:
        connection.execute("UPDATE audio SET at = at - 3 * 86400 WHERE start < ?", (8 * S,))
    with closing(History(history.path, days=2.0)) as again:
        wait_until(lambda: module.find_spans(again, "s1") == [(8 * S, 40 * S)])
    n_bytes = history.path.stat().st_size - 12_000  # a second of the tone has 3000 or so
    with closing(History(history.path, megabytes=n_bytes / 1e6)) as again:
        wait_until(lambda: module.find_spans(again, "s1") != [(8 * S, 40 * S)])
        again.close()
    ((start, end),) = module.find_spans(again, "s1")
    assert 8 * S < start < end == 40 * S
    session = again.session("s1")
    assert session is not None
    assert session.n_events == 10


def test_a_disk_that_is_nearly_full_ends_audio_and_no_text(
    history: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    speaker = Speaker(history).say("one")
    usage = shutil.disk_usage(history.path.parent)
    assert history.audio is not None
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**8))
        for i in range(3):
            speaker.sing(2.0).log.append(numbered_final(i + 2, "more"))
            wait_published(speaker.log)
        wait_until(lambda: bool(caplog.records))
        speaker.log.append(numbered_final(9, "still kept"))
        wait_published(speaker.log)
        history.audio.note(speaker.log.append(numbered_final(10, "and this")))
    (line,) = [record.message for record in caplog.records]
    assert "audio is no longer kept" in line
    assert "100 MB are free" in line
    speaker.say("room again")
    wait_until(lambda: caplog.records[-1].message == "audio is kept again")
    assert len(history.events("s1", 0)) == 8
    assert heard(history, 0.0) == 400


def test_a_disk_that_takes_too_long_loses_audio_and_holds_up_nothing(
    history: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_SAMPLES", 4 * S)
    speaker = Speaker(history)
    for i in range(3):
        with locked(history.path):
            speaker.sing(3.0 if i == 0 else 0.5).log.append(numbered_final(i + 2, "one"))
            wait_until(lambda: history.audio is not None and history.audio.n_waiting == 0)
            speaker.sing(20.0 if i == 0 else 5.0)
        wait_until(lambda: history.audio is not None and history.audio.n_waiting == 0)
    speaker.say("two")
    assert [heard(history, second) for second in (1.0, 5.0, 20.0, 36.0)] == [500, 900, 0, 4000]
    history.close()
    slow, again = (record.message for record in caplog.records)
    assert "the disk is too slow" in slow
    assert again == "audio is kept again"


def test_a_file_that_another_program_locks_holds_up_the_end_once(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[object] = []

    def fail(work: object, *values: object) -> None:
        failed.append(values)
        closing_down.wait(WAIT_S)
        raise HistoryError("locked")

    closing_down = threading.Event()
    monkeypatch.setattr(history, "change", fail)
    speaker = Speaker(history)
    for i in range(20):
        speaker.sing(0.5).log.append(numbered_final(2 + i, "more"))
    wait_until(lambda: bool(failed))
    assert history.audio is not None
    end = threading.Thread(target=history.audio.close)
    end.start()
    wait_until(lambda: history.audio is not None and history.audio.closed)
    closing_down.set()
    end.join()
    assert len(failed) == 1


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE audio SET opus = 'text'",
        "UPDATE audio SET opus = x'00'",
        "UPDATE audio SET opus = 7",
        "UPDATE audio SET opus = zeroblob(1000000)",
        "UPDATE audio SET start = -5",
        "UPDATE audio SET end = 4611686018427387904",
        "UPDATE audio SET start = 'a', end = 'b'",
        "DELETE FROM audio",
    ],
)
def test_audio_that_is_damaged_or_gone_is_silent(history: History, damage: str) -> None:
    Speaker(history).say("one").log.close()
    history.close()
    with closing(sqlite3.connect(history.path)) as connection, connection:
        connection.execute(damage)
    assert heard(history, 1.0) == 0
    assert sum(end - start for start, end in module.find_spans(history, "s1")) <= 3 * S


def test_no_audio_is_kept_unless_it_is_asked_for(tmp_path: Path) -> None:
    settings = ServerSettings(history=str(tmp_path / "history.db"))
    with open_history(settings) as history:
        assert history is not None
        speaker = Speaker(history).sing(5.0)
        speaker.log.append(numbered_final(2, "one"))
        speaker.log.close()
    assert rows(history) == []
    with pytest.raises(ConfigError):  # noqa: SIM117
        with open_history(ServerSettings(history_audio="own")):
            pass
