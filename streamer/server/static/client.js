// A client of a streamer daemon (docs/protocol.md): its captions, and those of one's own audio. Connections that break are
// made again, and nothing is lost or comes twice. No dependencies; for browsers and Node 22 or later.

const RETRY_MS = [500, 1000, 2000, 4000, 8000, 15000]; // from one attempt to connect to the next
const REFUSALS = [1002, 1003, 1007, 1008, 1009, 1010, 4000]; // close codes after which a stream cannot go on
const KEPT_S = 120; // of audio that was sent, and would be sent again
const MAX_KEPT_ITEMS = 20000; // pieces of audio and commands among it
const MESSAGE_BYTES = 2 ** 16;
const MAX_BUFFERED_BYTES = 2 ** 18; // in the browser; what is behind that waits here
const POLL_MS = 50;
const ABNORMAL = 1006; // the close code of a connection that ended without one (RFC 6455, 7.4.1)
const POLICY = 1008; // that of a client which is refused

// Follow the captions of the daemon's own input. `onEvent` is given each event once; `onState` what becomes of the
// connection: {state: "connecting" | "open" | "lost" | "refused" | "ended", attempt, status, message}. `status` is that of
// HTTP, 0 where nobody answers. "refused" (the token is missing or wrong) and "ended" stay so until `retry` is called;
// after "lost" it is tried again. `after`: 0 for everything from the start; else only what comes.
// Returns {retry(), close()}.
export function listen({ url, token, after, onEvent, onState }) {
  const place = new Place();
  let ended = false;
  const line = new Line({ url, token, path: "v1/captions", onState }, {
    query: () => (place.session ? { after: place.seq, session: place.session } : { after }),
    opened() {},
    message(event) {
      if (!place.moved(event)) return;
      ended = event.type === "end";
      onEvent(event);
    },
    lost({ code, status, message }) {
      if (ended && code === 1000) line.report({ state: "ended" });
      else if (status === 401) line.report({ state: "refused", status, message });
      else line.later({ status, message });
    },
  });
  line.open();
  return { retry: () => line.retry(), close: () => line.drop() };
}

// Send audio and read what is said in it. `start` has the keys of the protocol's `start` message (format, sample_rate,
// channels, language, ...); times in events are those of all the audio, also where a daemon had to begin anew.
// `onState`: "connecting", "open", "lost" (it is tried again), "ended" (all is said), or "failed" with {code, message}.
// Returns {send(audio), flush(), pause(), resume(), clear(), set(options), finish(), close(), waiting}: `audio` is an
// ArrayBuffer or a typed array of whole samples; `waiting` counts the bytes that are not sent yet, which the caller bounds.
export function stream({ url, token, start = {}, onEvent, onState }) {
  const rate = start.sample_rate ?? 16000;
  const frameBytes = (start.format === "f32le" ? 4 : 2) * (start.channels ?? 1);
  const sent = new Sent({ ...start, type: "start" }, frameBytes, KEPT_S * rate);
  let place = new Place();
  let known = false; // whether there ever was a session
  let base = 0; // where the session began, in samples of all the audio
  let settled = 0; // up to where its text is known
  let heard = null; // what a daemon that stops has heard
  let fatal = null; // the error that ends the session
  let ready = false; // whether audio may be sent over the present connection
  let timer = 0;

  const line = new Line({ url, token, path: "v1/stream", onState }, {
    query: () => ({}),
    opened(socket) {
      ready = !place.session;
      if (!ready) {
        socket.send(JSON.stringify({ type: "resume", session: place.session, after: place.seq })); // `resumed` comes first
        return;
      }
      beginAnew(base);
      for (const message of sent.opening()) socket.send(JSON.stringify(message));
      pump();
    },
    message(event) {
      if (event.type === "resumed") {
        if (!ready) sent.rewind(base + event.heard_samples);
        ready = true;
        pump();
        return;
      }
      if (event.type === "error" && !event.session) {
        refused(event);
        return;
      }
      if (!place.moved(event)) return;
      known = true;
      if (event.type === "final" || event.type === "gap") settled = base + Math.round(event.end * rate);
      else if (event.type === "error" && event.fatal) fatal = event;
      else if (event.type === "error" && event.code === "stopping") heard = event.heard_samples ?? settled - base;
      if (event.type === "end" && heard !== null && !(sent.finished && base + heard >= sent.position)) {
        beginAnew(base + heard);
        line.again("the daemon stops");
        return;
      }
      onEvent(base ? shifted(event, base / rate) : event);
      if (event.type === "end") over(fatal ?? undefined);
    },
    lost({ code, reason, status, message }) {
      const final = fatal || !known || REFUSALS.includes(code) || status === 401 || status === 403;
      if (final) over(fatal ?? { code, message: message || reason || `close code ${code}` });
      else line.later({ status, message: message || reason });
    },
  });

  function refused(error) {
    if (error.code === "unknown_session" && place.session) {
      beginAnew(settled);
      line.drop();
      line.open();
    } else if (known && ["busy", "stopping"].includes(error.code)) line.again(error.message);
    else over(error);
  }

  function beginAnew(position) {
    if (position < sent.first) line.report({ state: "lost", message: "audio that is not kept any more has no text" });
    sent.rewind(position);
    base = settled = Math.min(Math.max(position, sent.first), sent.position);
    place = new Place();
    heard = null;
  }

  function over(error) {
    clearTimeout(timer);
    line.drop();
    line.report(error ? { state: "failed", code: error.code, message: error.message } : { state: "ended" });
  }

  function pump() {
    clearTimeout(timer);
    const { socket } = line;
    while (ready && socket?.readyState === 1) {
      if (socket.bufferedAmount > MAX_BUFFERED_BYTES) {
        timer = setTimeout(pump, POLL_MS);
        return;
      }
      const item = sent.take();
      if (item === undefined) return;
      socket.send(item instanceof Uint8Array ? item : JSON.stringify(item));
    }
  }

  function add(item) {
    if (sent.finished) throw new Error("the stream is finished: nothing can follow");
    sent.add(item);
    pump();
  }

  line.open();
  return {
    send(audio) {
      const bytes = bytesOf(audio, start.format);
      if (bytes.length % frameBytes) throw new RangeError(`${bytes.length} bytes of audio: expected whole samples of ${frameBytes} bytes`);
      const step = MESSAGE_BYTES - (MESSAGE_BYTES % frameBytes);
      for (let first = 0; first < bytes.length; first += step) add(bytes.subarray(first, first + step));
    },
    flush: () => add({ type: "flush" }),
    pause: () => add({ type: "pause" }),
    resume: () => add({ type: "resume" }),
    clear: () => add({ type: "clear" }),
    set: (options) => add({ ...options, type: "set" }),
    finish: () => sent.finished || add({ type: "finish" }),
    close() {
      clearTimeout(timer);
      line.drop();
    },
    get waiting() {
      return sent.waiting + (line.socket?.bufferedAmount ?? 0);
    },
  };
}

// Session and number of the newest event.
class Place {
  session = "";
  seq = 0;

  // Advance to an event; return whether it is new. Errors that are no events of the session repeat the last number.
  moved(event) {
    const between = event.type === "error" && !event.fatal && event.seq === this.seq;
    if (event.session === this.session && event.seq <= this.seq && !between) return false;
    ({ session: this.session, seq: this.seq } = event);
    return true;
  }
}

// What was sent in a stream and may have to be sent again: audio and commands, in order. Positions count samples of all the
// audio that was given. What was sent is kept for so many samples; what was not, until it is.
class Sent {
  #start; // the `start` message as it would be in front of the first item, with what was set before
  #paused = false; // whether the stream was paused there
  #items = []; // {position, item}
  #nSent = 0;
  position = 0; // behind the last audio
  first = 0; // of what is forgotten, the end
  finished = false;
  waiting = 0; // bytes that are not sent

  constructor(start, frameBytes, keptSamples) {
    this.#start = start;
    this.frameBytes = frameBytes;
    this.keptSamples = keptSamples;
  }

  add(item) {
    this.#items.push({ position: this.position, item });
    this.position += this.#length(item);
    this.waiting += item.length ?? 0;
    this.finished = item.type === "finish";
    while (this.#nSent && (this.#items.length > MAX_KEPT_ITEMS || this.position - this.#items[0].position > this.keptSamples)) {
      const { position, item: old } = this.#items.shift();
      [this.#start, this.#paused] = obeyed(old, this.#start, this.#paused);
      this.#nSent -= 1;
      this.first = position + this.#length(old);
    }
  }

  // What is to be sent next; undefined where all is sent.
  take() {
    if (this.#nSent === this.#items.length) return undefined;
    const { item } = this.#items[this.#nSent++];
    this.waiting -= item.length ?? 0;
    return item;
  }

  // Send again the audio from a position on, with the commands that stand there or later.
  rewind(position) {
    this.#nSent = this.#items.filter((kept) => kept.position < position).length;
    const last = this.#items[this.#nSent - 1];
    const cut = last && (position - last.position) * this.frameBytes;
    if (cut < last?.item.length) {
      const rest = { position, item: last.item.subarray(cut) };
      this.#items.splice(this.#nSent - 1, 1, { position: last.position, item: last.item.subarray(0, cut) }, rest);
    }
    this.waiting = this.#items.slice(this.#nSent).reduce((sum, { item }) => sum + (item.length ?? 0), 0);
  }

  // The messages that open a session which goes on where we are.
  opening() {
    let [start, paused] = [this.#start, this.#paused];
    for (const { item } of this.#items.slice(0, this.#nSent)) [start, paused] = obeyed(item, start, paused);
    return paused ? [start, { type: "pause" }] : [start];
  }

  #length(item) {
    return (item.length ?? 0) / this.frameBytes;
  }
}

// The `start` message that would do what a command did, and whether the stream is paused behind it.
function obeyed(item, start, paused) {
  if (item.type === "set") return [{ ...start, ...item, type: "start" }, paused];
  return [start, item.type === "pause" || (paused && item.type !== "resume")];
}

// One connection after another to the same address.
class Line {
  #timer = 0;
  #attempt = 0; // connections in a row that failed
  #client;
  socket = null;

  constructor({ url, token = "", path, onState = () => {} }, client) {
    this.url = new URL(url ?? ".", globalThis.location?.href);
    this.token = typeof token === "function" ? token : () => token;
    this.path = path;
    this.report = onState;
    this.#client = client;
    if (!globalThis.WebSocket) throw new Error("this JavaScript has no WebSocket: expected a browser, or Node 22 or later");
  }

  open() {
    clearTimeout(this.#timer);
    if (this.socket) return;
    this.report({ state: "connecting", attempt: this.#attempt });
    const token = this.token();
    if (!/^[ -~]*$/.test(token)) {
      this.#client.lost({ code: POLICY, status: 401, message: "invalid characters in the token: expected printable ASCII; copy it again" });
      return;
    }
    const address = new URL(this.path, this.url);
    for (const [key, value] of Object.entries(this.#client.query())) {
      if (value !== undefined) address.searchParams.set(key, value);
    }
    const socket = openSocket(address, token);
    this.socket = socket;
    let opened = false;
    socket.onopen = () => {
      if (this.socket !== socket) return;
      opened = true;
      this.report({ state: "open" });
      this.#client.opened(socket);
    };
    socket.onmessage = ({ data }) => {
      if (this.socket !== socket) return;
      this.#attempt = 0;
      this.#client.message(JSON.parse(data));
    };
    // Node 22 fires no `close` when it cannot connect.
    const closed = new Promise((resolve) => {
      socket.onclose = resolve;
      socket.onerror = () => resolve({ code: ABNORMAL, reason: "" });
    });
    closed.then(async ({ code, reason }) => {
      if (this.socket !== socket) return;
      const refusal = opened ? {} : await whyNot(address, token);
      if (this.socket !== socket) return;
      this.socket = null;
      this.#client.lost({ code, reason, ...refusal });
    });
  }

  // Try at once, as if nothing had failed.
  retry() {
    this.#attempt = 0;
    this.open();
  }

  // Say that the connection is lost, and try again later.
  later(state) {
    this.report({ state: "lost", ...state });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.open(), RETRY_MS[Math.min(this.#attempt, RETRY_MS.length - 1)]);
    this.#attempt += 1;
  }

  again(message) {
    this.drop();
    this.later({ message });
  }

  drop() {
    clearTimeout(this.#timer);
    const { socket } = this;
    this.socket = null;
    socket?.close(1000);
  }
}

// A browser sends no header with a WebSocket, and an address lies in the logs of proxies: the token goes as a
// subprotocol, which cannot have every character and so is encoded.
function openSocket(address, token) {
  const url = new URL(address);
  url.protocol = url.protocol.replace("http", "ws");
  const encoded = btoa(token).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return new WebSocket(url, token ? ["streamer.v1", `streamer.token.${encoded}`] : []);
}

// Ask the daemon over HTTP.
export function ask(address, token, method = "GET") {
  const url = new URL(address);
  url.protocol = url.protocol.replace("ws", "http");
  return fetch(url, { method, cache: "no-store", headers: token ? { Authorization: `Bearer ${token}` } : {} });
}

// A browser does not tell a page why a WebSocket was refused; the same address asked over HTTP does.
async function whyNot(address, token) {
  try {
    const response = await ask(address, token);
    return response.status === 426 ? {} : { status: response.status, message: (await response.json()).error };
  } catch {
    return { status: 0, message: "the daemon cannot be reached, or may not say why" };
  }
}

// Audio as bytes of its own. Floats are rounded to 16 bits unless the format is f32le.
function bytesOf(audio, format) {
  if (audio instanceof Float32Array && format !== "f32le") {
    audio = Int16Array.from(audio, (sample) => Math.round(Math.max(-1, Math.min(1, sample)) * 32767));
  }
  const view = ArrayBuffer.isView(audio) ? new Uint8Array(audio.buffer, audio.byteOffset, audio.byteLength) : new Uint8Array(audio);
  return view.slice();
}

// An event, or a word, with times that are later.
function shifted(value, byS) {
  const later = { ...value };
  for (const name of ["time", "start", "end"]) {
    if (name in value) later[name] = Math.round((value[name] + byS) * 1000) / 1000;
  }
  if (value.words) later.words = value.words.map((word) => shifted(word, byS));
  return later;
}
