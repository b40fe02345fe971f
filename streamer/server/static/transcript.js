// What the page knows of what was said: events in, changes out. No DOM, no network.

import { cuesOf, time } from "./formats.js";

export const MAX_ENTRIES = 20000; // finals and marks that are kept: more than a day of speech

// Words less probable than these are shown as doubtful, where that is asked for.
const DOUBTS = [0.8, 0.5];

const GAP_REASONS = {
  overrun: "audio was lost before it could be read",
  overload: "the daemon could not keep up",
  device: "the audio device was away",
  paused: "captions were paused",
  cleared: "what was said was dropped",
};

export class Transcript {
  #resent; // whether audio without a final is sent again to a new session, as `stream` does
  #base = 0; // where the present session begins, in seconds of the transcript
  #end = 0; // of the last entry
  #speaker = ""; // of the last final

  constructor({ resent = false } = {}) {
    this.#resent = resent;
    this.session = null; // the one that the newest event belongs to
    this.language = ""; // of what is being said, as far as it is known
    this.partial = null; // what the open segment reads so far: {segment, start, end, stable, unstable, words}
    this.entries = []; // the newest ones, see #keep
    this.nEntries = 0; // of all that ever were
    this.speaking = false;
    this.ended = false;
    this.error = ""; // what ended the session, where something did
  }

  // Take one event in. Returns what is to be shown: {added: entries, live: bool, ready: event|null}.
  take(event) {
    const shown = { added: [], live: false, ready: null };
    const restarted = this.session !== null && event.session !== this.session;
    if (event.session !== this.session) {
      if (restarted && !this.#resent) {
        const open = this.#settled();
        if (open) shown.added.push(this.#keep("final", open.text, open));
        this.#base = this.#end;
      }
      this.session = event.session;
      this.partial = null;
      this.speaking = false;
      this.ended = false;
    }
    switch (event.type) {
      case "ready":
        shown.ready = event;
        shown.live = true;
        this.language = event.language === "auto" ? this.language : event.language;
        if (restarted) shown.added.push(this.#keep("break", "the daemon was restarted"));
        break;
      case "speech":
        this.speaking = event.state === "start";
        break;
      case "partial":
        this.partial = { ...event, ...split(event.text, event.stable) };
        shown.live = true;
        break;
      case "final":
        if (this.partial && this.partial.segment <= event.segment) this.partial = null;
        shown.live = true;
        this.language = event.language || this.language;
        if (event.text.trim()) shown.added.push(this.#keep("final", event.text.trim(), event));
        break;
      case "gap":
        if (event.reason === "cleared") {
          this.partial = null; // no final comes of it
          shown.live = true;
        }
        shown.added.push(this.#keep("gap", `${time(event.start)} – ${time(Math.ceil(event.end))} missing: ${GAP_REASONS[event.reason] ?? event.reason}`, event));
        break;
      case "error":
        if (event.fatal) this.error = event.message;
        if (event.code === "history_lost") shown.added.push(this.#keep("gap", "earlier captions are no longer kept"));
        else shown.added.push(this.#keep("error", event.message));
        break;
      case "end":
        this.ended = true;
        this.speaking = false;
        break;
    }
    return shown;
  }

  // What can be saved: the entries, and behind them what has settled of the open segment, which no final can change.
  saved() {
    const open = this.#settled();
    return open ? [...this.entries, this.#entry("final", open.text, open)] : this.entries;
  }

  #settled() {
    if (!this.partial?.stable.trim()) return null;
    const words = this.partial.words.filter((word) => word.stable);
    return { ...this.partial, text: this.partial.stable.trim(), end: words.at(-1)?.end ?? this.partial.end, words };
  }

  #keep(kind, text, event) {
    const entry = this.#entry(kind, text, event);
    this.#end = Math.max(this.#end, entry.end);
    if (kind === "final") this.#speaker = entry.speaker;
    this.nEntries += 1;
    this.entries.push(entry);
    if (this.entries.length > MAX_ENTRIES) this.entries.shift();
    return entry;
  }

  // kind: "final", "gap", "error" or "break" (between sessions). `turn`: whether somebody else spoke before.
  #entry(kind, text, event = {}) {
    const { start = this.#end - this.#base, end = start, speaker = "", words = [], task, seq } = event;
    const language = (task === "translate" ? "en" : event.language) || this.language;
    const entry = { number: this.nEntries, kind, text, start: this.#base + start, end: this.#base + end, seq, language, speaker };
    if (kind !== "final") return entry;
    return { ...entry, turn: speaker !== this.#speaker, doubts: doubtsOf(text, words), cues: cuesOf({ ...entry, words, base: this.#base }) };
  }
}

// Where a text is doubtful: [from, to, level], in its UTF-16 units. The words themselves would take too much memory.
function doubtsOf(text, words) {
  const spoken = words.map(({ word }) => word).join("");
  let from = spoken.trimStart().length - spoken.length;
  if (spoken.trim() !== text) return [];
  const doubts = [];
  for (const { word, probability } of words) {
    const to = from + word.length;
    const level = DOUBTS.filter((limit) => probability < limit).length;
    if (level) doubts.push([Math.max(0, to - word.trimStart().length), Math.min(to, text.length), level]);
    from = to;
  }
  return doubts;
}

// `stable` counts characters as Python does, by code points; JavaScript's strings count UTF-16 units.
export function split(text, stable) {
  const points = Array.from(text);
  return { stable: points.slice(0, stable).join(""), unstable: points.slice(stable).join("") };
}
