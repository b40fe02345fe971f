// What the page knows of one session: events in, changes out. No DOM, no network.

export const MAX_ENTRIES = 500; // paragraphs and marks on the page; older ones leave it
export const MAX_TEXTS = 20000; // finals kept for the saved transcript: more than a day of speech

const GAP_REASONS = {
  overrun: "audio was lost before it could be read",
  overload: "the daemon could not keep up",
  device: "the audio device was away",
  paused: "captions were paused",
  cleared: "what was said was dropped",
};

export class Transcript {
  constructor() {
    this.seq = 0; // number of the newest event; what a reconnection asks to continue after
    this.session = null; // the session it belongs to
    this.partial = null; // what the open segment reads so far: {segment, stable, unstable}
    this.texts = []; // finals and gaps, as lines of the saved transcript
    this.speaking = false;
    this.ended = false;
    this.error = ""; // what ended the session, where something did
  }

  // Take one event in. Returns what is to be shown: {add: entry|null, live: bool, ready: event|null}, where an entry is
  // {kind: "final"|"gap"|"error"|"break", text} ("break": between sessions); null where the event brings nothing new.
  take(event) {
    let restarted = false;
    if (event.session !== this.session) {
      restarted = this.session !== null;
      this.session = event.session;
      this.partial = null;
      this.speaking = false;
      this.ended = false;
    } else if (event.seq <= this.seq) {
      return null;
    }
    this.seq = event.seq;
    const shown = { add: null, live: false, ready: null };
    switch (event.type) {
      case "ready":
        shown.ready = event;
        shown.live = true;
        if (restarted) shown.add = this.#keep("break", "the daemon was restarted");
        break;
      case "speech":
        this.speaking = event.state === "start";
        break;
      case "partial":
        this.partial = { segment: event.segment, ...split(event.text, event.stable) };
        shown.live = true;
        break;
      case "final":
        if (this.partial && this.partial.segment <= event.segment) this.partial = null;
        shown.live = true;
        if (event.text.trim()) shown.add = this.#keep("final", event.text.trim());
        break;
      case "gap":
        if (event.reason === "cleared") {
          this.partial = null; // no final comes of it
          shown.live = true;
        }
        shown.add = this.#keep("gap", `${time(event.start)} – ${time(Math.ceil(event.end))} missing: ${GAP_REASONS[event.reason] ?? event.reason}`);
        break;
      case "error":
        if (event.fatal) this.error = event.message;
        if (event.code === "history_lost") shown.add = { kind: "gap", text: "earlier captions are no longer kept" };
        else shown.add = this.#keep("error", event.message);
        break;
      case "end":
        this.ended = true;
        this.speaking = false;
        break;
    }
    return shown;
  }

  // The address to connect to, so that nothing is missed and nothing is shown twice.
  url(base, token) {
    const url = new URL("v1/captions", base);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    url.search = "";
    if (this.session !== null) {
      url.searchParams.set("after", this.seq);
      url.searchParams.set("session", this.session);
    } else {
      url.searchParams.set("after", 0);
    }
    if (token) url.searchParams.set("token", token);
    return url.href;
  }

  asText() {
    return this.texts.map((line) => line + "\n").join("");
  }

  #keep(kind, text) {
    this.texts.push(kind === "final" ? text : `[${text}]`);
    if (this.texts.length > MAX_TEXTS) this.texts.shift();
    return { kind, text };
  }
}

// `stable` counts characters as Python does, by code points; JavaScript's strings count UTF-16 units.
export function split(text, stable) {
  const points = Array.from(text);
  return { stable: points.slice(0, stable).join(""), unstable: points.slice(stable).join("") };
}

export function time(seconds) {
  const whole = Math.floor(seconds);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60].map((n) => String(n).padStart(2, "0"));
  return (whole < 3600 ? parts.slice(1) : parts).join(":");
}
