"""The names under which other tests know parts of `tests.wire.harness`."""

from tests.wire.harness import SAMPLES_A_FINAL as SAMPLES_A_FINAL
from tests.wire.harness import ListeningSession as ListeningSession
from tests.wire.harness import stream_to as stream_to
from tests.wire.harness import streams_to as streams_to
