// Runs in the browser's audio thread: mixes what the microphone gives to one channel and hands it over as s16le.

const FRAME_MS = 100; // of audio in one message: little overhead, no delay that anybody notices

class MicrophoneProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.frame = new Int16Array(Math.round((sampleRate * FRAME_MS) / 1000));
    this.filled = 0;
    this.peak = 0;
    this.stopped = false;
    this.port.onmessage = () => {
      this.flush();
      this.stopped = true;
      this.port.postMessage(null);
    };
  }

  process(inputs) {
    const channels = inputs[0];
    for (let i = 0; channels.length && i < channels[0].length; i++) {
      let sample = 0;
      for (const channel of channels) sample += channel[i] / channels.length;
      sample = Math.max(-1, Math.min(1, sample));
      this.peak = Math.max(this.peak, Math.abs(sample));
      this.frame[this.filled++] = Math.round(sample * 32767);
      if (this.filled === this.frame.length) this.flush();
    }
    return !this.stopped;
  }

  flush() {
    const view = new DataView(new ArrayBuffer(this.filled * 2));
    for (let i = 0; i < this.filled; i++) view.setInt16(2 * i, this.frame[i], true);
    this.port.postMessage({ audio: view.buffer, peak: this.peak }, [view.buffer]);
    this.filled = 0;
    this.peak = 0;
  }
}

registerProcessor("microphone", MicrophoneProcessor);
