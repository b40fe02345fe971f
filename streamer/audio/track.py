"""An audio track to 16 kHz mono samples: of a file, of what can only be read on, or of an address."""

from collections.abc import Callable, Iterator

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.container import HEAD_BYTES, Container, NoAudioError, Opening, speakers
from streamer.audio.links import Links, Readable
from streamer.audio.pcm import silence_bad_samples
from streamer.audio.resample import Resampler
from streamer.audio.wav import WAV_CHUNK, is_placeholder
from streamer.constants import TRUNCATED_S
from streamer.errors import AudioFileError, StreamerError, TruncatedAudioError

# Float files may go a little over full scale, and decoders of lossy formats do; beyond this it is another scale.
MAX_PEAK = 16.0

OnError = Callable[[StreamerError], None]


class AudioTrack:
    """An audio track, read from its beginning to its end, also if the file is several, one behind another."""

    def __init__(self, source: str | Readable, opening: Opening | None = None, *, name: str = "the audio") -> None:
        """Open an address, a file, or what can only be read on, at its beginning. `name` is what errors call it.

        Raises ValueError if it has no audio that can be decoded.
        """
        self._name = name
        self._opening = opening or Opening()
        # An address is FFmpeg's to read.
        self._source = source if isinstance(source, str) else Links(source)
        # Seconds decoded so far.
        self.found_s = 0.0
        # Seconds before this link, and those at which it should end; None if no header says.
        self._link_from_s = 0.0
        self._announced_s: float | None = None
        # Seconds that could not be decoded, and seconds behind what the headers of WAV files announce; and where the
        # first of each were.
        self._lost_s = self._lost_at_s = 0.0
        self._ignored_s = self._ignored_at_s = 0.0
        # What keeps it from being read on; empty if nothing does.
        self._failure = ""

        # The file that is read, or the link of it.
        self.container = self._begin()
        # How long it is, as far as that is known before it is read.
        self.duration_s = self._announced_s or self.container.known_s

    def blocks(self, on_error: OnError | None = None) -> Iterator[Float32Array]:
        """Yield the audio, 16 kHz mono, shape (n,).

        `on_error` is called, once for each, with what is wrong but does not stop the reading: NaN or infinite samples,
        taken as silence, samples far out of range, clipped, audio that cannot be decoded, or that a header leaves out.

        Raises TruncatedAudioError behind the last block if that is not the end of the audio.
        """
        reported: set[str] = set()

        def report(fact: str, expectation: str, at_s: float) -> None:
            if on_error is not None and fact not in reported:
                reported.add(fact)
                text = f"{self._name} has {fact}, first at {at_s:.1f} s: expected {expectation}"
                on_error(AudioFileError(f"{text}; convert the file again"))

        resampler: Resampler | None = None
        kind = ("", 0)
        going_on = True
        while going_on:
            for frames in self.container.blocks():
                samples = frames.samples
                self.found_s += len(samples) / frames.sample_rate
                if not np.abs(samples).max(initial=0.0) <= MAX_PEAK:  # nor is NaN
                    if silence_bad_samples(samples):
                        report("NaN or infinite samples, replaced by silence", "-1 to 1", self.found_s)
                    if np.abs(samples).max() > MAX_PEAK:
                        report(f"samples beyond {MAX_PEAK:g}, which were clipped", "-1 to 1", self.found_s)
                        np.clip(samples, -1.0, 1.0, out=samples)
                if resampler is None or kind != (frames.layout.name, frames.sample_rate):
                    if resampler is not None:
                        yield resampler.flush()
                    kind = frames.layout.name, frames.sample_rate
                    resampler = Resampler(frames.sample_rate, samples.shape[1], *speakers(frames.layout))
                if len(block := resampler.process(samples)):
                    yield block
            going_on = self._next()
        if resampler is not None and len(block := resampler.flush()):
            yield block
        if self._lost_s > TRUNCATED_S:
            fact = f"{self._lost_s:.2f} s that cannot be decoded and are missing from the text"
            report(fact, "intact packets", self._lost_at_s)
        if self._ignored_s > TRUNCATED_S:
            fact = f"{self._ignored_s:.2f} s of audio beyond the length in its header, which were ignored"
            report(fact, "none", self._ignored_at_s)
        if self._announced_s is not None and self._announced_s - self.found_s > TRUNCATED_S:
            raise TruncatedAudioError(self._name, self.found_s, self._announced_s)
        if self._failure:
            raise TruncatedAudioError(self._name, self.found_s, reason=self._failure)

    def close(self) -> None:
        """Let go of the file."""
        self.container.close()

    def _begin(self) -> Container:
        """Open the first link from here on that has audio. Raises ValueError."""
        while True:
            try:
                container = Container(self._source, self._opening)
            except NoAudioError:
                if isinstance(self._source, str) or self._source.skip() is None or not self._source.next():
                    raise
                continue
            self._link_from_s = self.found_s
            known_s = container.announced_s
            self._announced_s = None if known_s is None else self.found_s + known_s
            return container

    def _next(self) -> bool:
        """Go on to the next link that has audio, and return whether there is one."""
        container = self.container
        if container.lost_s:
            self._lost_at_s = self._lost_at_s if self._lost_s else self._link_from_s + container.lost_at_s
            self._lost_s += container.lost_s
        self._failure = container.failure
        if container.undecoded_s > TRUNCATED_S:
            self._failure = self._failure or "it cannot be decoded"
        if isinstance(self._source, str) or self._failure:
            return False
        self._end_link(self._source)
        self._failure = self._source.failure
        if self._failure or not self._source.next():
            return False
        self.close()
        try:
            self.container = self._begin()
        except NoAudioError:
            return False
        except ValueError as error:
            self._failure = str(error)
            return False
        return True

    def _end_link(self, links: Links) -> None:
        """Read over what is behind the audio of a link, and see what its header's length is worth."""
        n_bytes = links.skip()
        if self._announced_s is None:
            return
        wav, bytes_per_s = self.container.wav, self.container.bytes_per_s
        announced_s, found_s = (until_s - self._link_from_s for until_s in (self._announced_s, self.found_s))
        if is_placeholder(announced_s * bytes_per_s, found_s * bytes_per_s):
            self._announced_s = None
        if wav is not None and wav.data_bytes is not None and n_bytes is not None:
            links.seek(end := wav.start_bytes + wav.data_bytes)
            if (rest := links.read(HEAD_BYTES)) and not WAV_CHUNK.match(rest):
                self._ignored_at_s = self._ignored_at_s if self._ignored_s else self.found_s
                self._ignored_s += (n_bytes - end) / bytes_per_s
