"""The names under which tests of other folders know parts of `tests.wire.harness`."""

from streamer.events import Final, Partial
from tests import builders
from tests.builders import ready as ready
from tests.waiting import WAIT_S as WAIT_S
from tests.wire.harness import SESSION as SESSION
from tests.wire.harness import RecordingStream as RecordingStream
from tests.wire.harness import Running as Running
from tests.wire.harness import added as added
from tests.wire.harness import as_json as as_json
from tests.wire.harness import closing as closing
from tests.wire.harness import deaf_socket as deaf_socket
from tests.wire.harness import events_until as events_until
from tests.wire.harness import heard as heard
from tests.wire.harness import next_event as next_event
from tests.wire.harness import opened_log as opened_log
from tests.wire.harness import serving as serving
from tests.wire.harness import vanish as vanish
from tests.wire.harness import wait_published as wait_published
from tests.wire.harness import within as within


def _numbered_partial(segment: int, text: str, stable: int = 0, start: float = 0.0) -> Partial:
    words = builders.words(text, start, step=0.3, n_stable=len(text[:stable].split()))
    return builders.partial(text, stable, start=start, segment=segment, words=words)


def _numbered_final(segment: int, text: str, start: float = 0.0) -> Final:
    return builders.final(text, start=start, segment=segment, words=builders.words(text, start, step=0.3))


partial, final = _numbered_partial, _numbered_final
