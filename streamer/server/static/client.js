// A client of a streamer daemon (docs/protocol.md): its captions, and those of one's own audio. Connections that break are
// made again, and nothing is lost or comes twice. No dependencies; for browsers and Node 22 or later.

const FIRST_DELAY_MS = 250; // before the first attempt to reconnect; doubled after each failure
const MAX_DELAY_MS = 10000;
const REFUSALS = [1002, 1003, 1007, 1008, 1009, 1010, 4000]; // close codes that a new connection would repeat
const KEPT_S = 120; // of audio that was sent, and would be sent again
const MAX_KEPT_ITEMS = 20000; // pieces of audio and commands among it
const MESSAGE_BYTES = 2 ** 16;
const MAX_BUFFERED_BYTES = 2 ** 18; // in the browser; what is behind that waits here
const POLL_MS = 50;

// The next state, by the present one and what happens: docs/protocol.md, *Writing a client*.
const LEAVE = { gone: "waiting", refused: "failed", stop: "closed" };
const READ = { ...LEAVE, event: "open", end: "ended", stopped: "waiting" };
const TRANSITIONS = {
  connecting: { ...LEAVE, opened: "open", start: "starting", resume: "resuming" },
  starting: READ,
  resuming: { ...READ, event: "resuming", resumed: "open", forgotten: "connecting" },
  open: { ...READ, resumed: "open" },
  waiting: { retry: "connecting", stop: "closed" },
  ended: { retry: "connecting" },
  failed: { retry: "connecting" },
  closed: {},
};

// Follow the captions of the daemon's own input, or of a `room`. `onEvent` is given each event once; `onState` what becomes of the
// connection: {state: "connecting" | "open" | "lost" | "refused" | "ended", attempt, status, code, message}. `status` is that
// of HTTP, 0 without an answer. "refused" (for 401, the token is missing or wrong) and "ended" stay so until `retry` is
// called; after "lost" it is tried again. `after`: 0 for everything from the start; else only what comes.
// Returns {retry(), close()}.
export function listen(options) {
  const client = new Client(options);
  client.connect();
  return { retry: () => client.retry(), close: () => client.move("stop") };
}

// Send audio and read what is said in it. `start` has the keys of the protocol's `start` message (format, sample_rate,
// channels, language, ...); times in events are those of all the audio, also where a daemon had to begin anew.
// `onState`: "connecting", "open", "lost" (it is tried again), "ended" (all is said), or "failed" with {code, message}.
// Returns {send(audio), flush(), pause(), resume(), clear(), set(options), finish(), close(), waiting}: `audio` is an
// ArrayBuffer or a typed array of whole samples; `waiting` counts the bytes that are not sent yet, which the caller bounds.
export function stream({ start = {}, ...options }) {
  const client = new Stream(options, start);
  const command = (type) => () => client.add({ type });
  client.connect();
  return {
    send: (audio) => client.send(audio),
    ...{ flush: command("flush"), pause: command("pause"), resume: command("resume"), clear: command("clear") },
    set: (chosen) => client.add({ ...chosen, type: "set" }),
    finish: () => client.finish(),
    close: () => client.move("stop"),
    get waiting() {
      return client.waiting;
    },
  };
}

// A client that reads captions, over one connection after another. A subclass sends audio, too.
class Client {
  path = "v1/captions";
  failed = "refused"; // reported to the program if the client has failed
  waits = true; // whether to wait for a daemon that is away: always, once it was there
  state = "connecting";
  session = ""; // of the newest event
  seq = 0;
  error = null; // that ends the session
  socket = null; // the present connection
  #ended = false; // whether the newest event is `end`
  #attempt = 0; // connections in a row that failed
  #timer = 0;

  constructor({ url, token = "", room = "", after, onEvent, onState = () => {} }) {
    if (!globalThis.WebSocket) throw new Error("this JavaScript has no WebSocket: expected a browser, or Node 22 or later");
    this.url = new URL(url ?? ".", globalThis.location?.href);
    this.token = typeof token === "function" ? token : () => token;
    Object.assign(this, { room, after, onEvent, report: onState });
  }

  // Go to the next state, for a reason that is reported to the program.
  move(input, why) {
    const before = this.state;
    this.state = TRANSITIONS[before][input] ?? before;
    if (["event", "resumed"].includes(input)) this.#attempt = 0; // a connection alone may still be refused
    if (this.state === "open") this.waits = true;
    if (this.state === before || ["starting", "resuming", "open"].includes(this.state)) return;
    clearTimeout(this.#timer);
    const { socket } = this;
    this.socket = null;
    socket?.close(1000); // gives up a stream, if the connection is still there
    if (this.state === "connecting") this.connect();
    if (this.state === "ended") this.report({ state: "ended" });
    if (this.state === "failed") this.report({ ...why, state: this.failed });
    if (this.state !== "waiting") return;
    const delay = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#attempt);
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.move("retry"), delay * (0.5 + Math.random() / 2)); // not all clients at the same moment
    this.report({ ...why, state: "lost" });
  }

  // Try at once, as if nothing had failed or ended.
  retry() {
    this.#attempt = 0;
    this.move("retry");
  }

  // Move on a new event.
  take(event) {
    if (event.type === "resumed") {
      this.move("resumed");
    } else if (event.type === "error" && !event.session) {
      this.lose(event);
    } else {
      this.onEvent(event);
      if (event.type !== "end") this.move("event");
      else if (this.error) this.lose(this.error);
      else this.move("end");
    }
  }

  // Move on the loss of the connection, by its close code, the HTTP status or the daemon's error.
  lose(why) {
    const { code, status, message } = this.error ?? why;
    const hopeless = typeof code === "string" ? !["busy", "stopping"].includes(code) : REFUSALS.includes(code) || [401, 403].includes(status);
    if (code === 1000 && this.#ended) this.move("end");
    else this.move(hopeless || this.error || !this.waits ? "refused" : "gone", { code, status, message: message || `close code ${code}` });
  }

  // What the address of the next connection says of it.
  query() {
    const room = this.room && { room: this.room };
    if (this.session) return { ...room, after: this.seq, session: this.session };
    return { ...room, ...(this.after !== undefined && { after: this.after }) };
  }

  // Begin to use a new connection.
  greet() {
    this.move("opened");
  }

  connect() {
    this.report({ state: "connecting", attempt: this.#attempt });
    if (this.state !== "connecting") return; // its program has left
    const token = this.token();
    if (!/^[ -~]*$/.test(token)) {
      this.lose({ status: 401, message: "invalid characters in the token: expected printable ASCII; copy it again" });
      return;
    }
    const address = new URL(this.path, this.url);
    address.search = new URLSearchParams(this.query());
    const socket = openSocket(address, token);
    this.socket = socket;
    socket.onopen = () => {
      if (this.socket === socket) this.report({ state: "open" });
      if (this.socket === socket) this.greet();
    };
    socket.onmessage = ({ data }) => this.socket === socket && this.#receive(data);
    const closed = new Promise((resolve) => {
      socket.onclose = resolve;
      socket.onerror = () => resolve({ code: 1006 }); // Node 22 fires no `close` when it cannot connect
    });
    closed.then(async ({ code, reason }) => {
      if (this.socket !== socket) return;
      const why = this.state === "connecting" ? await whyNot(address, token) : {};
      if (this.socket === socket) this.lose({ code, message: reason, ...why });
    });
  }

  #receive(data) {
    const event = parsed(data);
    if (!event) this.lose({ code: "peer", message: "the daemon sent an invalid event; do both have the same version?" });
    else if (event.type === "resumed" || !event.session || this.#isNew(event)) this.take(event);
  }

  // Advance to an event, unless it was there before. Errors that are no events of the session repeat the last number.
  #isNew({ type, session, seq, fatal }) {
    if (session === this.session && seq <= this.seq) return type === "error" && !fatal && seq === this.seq;
    Object.assign(this, { session, seq });
    this.#ended = type === "end";
    return true;
  }
}

// A client that sends audio. Positions count samples of all the audio.
class Stream extends Client {
  path = "v1/stream";
  failed = "failed";
  waits = false;
  #sent;
  #base = 0; // where the session began
  #final = 0; // up to where its text is final
  #processed = null; // samples of the session that a stopping daemon processes
  #timer = 0;

  constructor(options, start) {
    super(options);
    this.format = start.format;
    this.rate = start.sample_rate ?? 16000;
    this.frameBytes = (start.format === "f32le" ? 4 : 2) * (start.channels ?? 1);
    this.#sent = new Sent({ ...start, type: "start" }, this.frameBytes, KEPT_S * this.rate);
  }

  get waiting() {
    return this.#sent.waiting + (this.socket?.bufferedAmount ?? 0);
  }

  send(audio) {
    const bytes = bytesOf(audio, this.format);
    const { frameBytes } = this;
    if (bytes.length % frameBytes) throw new RangeError(`${bytes.length} bytes of audio: expected whole samples of ${frameBytes} bytes`);
    const step = MESSAGE_BYTES - (MESSAGE_BYTES % frameBytes);
    for (let first = 0; first < bytes.length; first += step) this.add(bytes.subarray(first, first + step));
  }

  finish() {
    if (!this.#sent.finished) this.add({ type: "finish" });
  }

  add(item) {
    if (this.#sent.finished) throw new Error("the stream is finished: nothing can follow");
    this.#sent.add(item);
    this.#pump();
  }

  query() {
    return {};
  }

  greet() {
    if (this.session) {
      this.move("resume");
      this.#write({ type: "resume", session: this.session, after: this.seq });
      return;
    }
    this.#beginAnew(this.#base);
    this.move("start");
    this.#sent.opening().forEach((message) => this.#write(message));
    this.#pump();
  }

  take(event) {
    const { type, session, code } = event;
    const base = this.#base;
    if (type === "resumed" && this.state === "resuming") {
      this.#base += this.#rewind(base + event.heard_samples); // what is lost takes its time all the same
      this.move("resumed");
      this.#pump();
      return;
    }
    if (type === "error" && !session && code === "unknown_session" && this.state === "resuming") {
      this.#beginAnew(this.#final);
      this.move("forgotten");
      return;
    }
    if (type === "error" && session && event.fatal) this.error = event;
    if (type === "error" && session && code === "stopping") this.#processed = event.heard_samples ?? this.#final - base;
    if (type === "final" || type === "gap") this.#final = base + Math.round(event.end * this.rate);
    if (type === "end" && this.#isCutShort()) {
      this.#beginAnew(base + this.#processed);
      this.move("stopped", { message: "the daemon stops" });
      return;
    }
    super.take(session && base ? shifted(event, base / this.rate) : event);
  }

  // Whether the session has ended before all audio was processed, and another is to go on.
  #isCutShort() {
    if (this.error || this.#processed === null) return false;
    return !this.#sent.finished || this.#base + this.#processed < this.#sent.position;
  }

  // Continue in another session at a position.
  #beginAnew(position) {
    this.#base = this.#final = Math.min(position + this.#rewind(position), this.#sent.position);
    Object.assign(this, { session: "", seq: 0 });
    this.#processed = null;
  }

  // Send again from a position on. Returns how many samples behind it are not kept any more.
  #rewind(position) {
    const lost = Math.max(0, this.#sent.first - position);
    if (lost) this.report({ state: "lost", message: "audio that is not kept any more has no text" });
    this.#sent.rewind(position);
    return lost;
  }

  #write(message) {
    this.socket?.send(JSON.stringify(message));
  }

  #pump() {
    clearTimeout(this.#timer);
    while (["starting", "open"].includes(this.state) && this.socket.readyState === 1) {
      if (this.socket.bufferedAmount > MAX_BUFFERED_BYTES) {
        this.#timer = setTimeout(() => this.#pump(), POLL_MS);
        return;
      }
      const item = this.#sent.take();
      if (item === undefined) return;
      if (item instanceof Uint8Array) this.socket.send(item);
      else this.#write(item);
    }
  }
}

// What was sent in a stream and may have to be sent again: audio and commands, in order. Positions count samples of all the
// audio that was given. What was sent is kept for so many samples; what was not, until it is.
class Sent {
  #items = []; // {position, item, opening}, see `opening`
  #nSent = 0;
  #opening; // behind the last item
  position = 0; // behind the last audio
  first = 0; // of what is forgotten, the end
  finished = false;
  waiting = 0; // bytes that are not sent

  constructor(start, frameBytes, keptSamples) {
    this.#opening = [start];
    this.frameBytes = frameBytes;
    this.keptSamples = keptSamples;
  }

  add(item) {
    this.#items.push({ position: this.position, item, opening: this.#opening });
    this.position += this.#length(item);
    this.waiting += item.length ?? 0;
    this.finished = item.type === "finish";
    const [start, ...pause] = this.#opening;
    if (item.type === "set") this.#opening = [{ ...start, ...item, type: "start" }, ...pause];
    if (item.type === "pause") this.#opening = [start, item];
    if (item.type === "resume") this.#opening = [start];
    while (this.#nSent && (this.#items.length > MAX_KEPT_ITEMS || this.position - this.#items[0].position > this.keptSamples)) {
      const { position, item: old } = this.#items.shift();
      this.#nSent -= 1;
      this.first = position + this.#length(old);
    }
  }

  // What is to be sent next; undefined where all is sent.
  take() {
    const item = this.#items[this.#nSent]?.item;
    if (item === undefined) return undefined;
    this.#nSent += 1;
    this.waiting -= item.length ?? 0;
    return item;
  }

  // Send again the audio from a position on, with the commands that stand there or later.
  rewind(position) {
    this.#nSent = this.#items.filter((kept) => kept.position < position).length;
    const last = this.#items[this.#nSent - 1];
    const cut = last && (position - last.position) * this.frameBytes;
    if (cut < last?.item.length) {
      const [sent, rest] = [last.item.subarray(0, cut), last.item.subarray(cut)];
      this.#items.splice(this.#nSent - 1, 1, { ...last, item: sent }, { ...last, position, item: rest });
    }
    this.waiting = this.#items.slice(this.#nSent).reduce((sum, { item }) => sum + (item.length ?? 0), 0);
  }

  // The messages that open a session which goes on where we are.
  opening() {
    return this.#items[this.#nSent]?.opening ?? this.#opening;
  }

  #length(item) {
    return (item.length ?? 0) / this.frameBytes;
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
export function ask(address, token, method = "GET", body = null) {
  const url = new URL(address);
  url.protocol = url.protocol.replace("ws", "http");
  return fetch(url, { method, body, cache: "no-store", headers: token ? { Authorization: `Bearer ${token}` } : {} });
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

// An event, or null if a message is not one.
function parsed(data) {
  try {
    const event = JSON.parse(data);
    return typeof event.type === "string" && typeof event.session === "string" && Number.isInteger(event.seq) ? event : null;
  } catch {
    return null;
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
