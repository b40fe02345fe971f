// What the page knows of what was said: events in, changes out. No DOM, no network.

import { cuesOf, time } from "./formats.js";

export const MAX_ENTRIES = 20000; // finals and marks that are kept: more than a day of speech

// Words less probable than these are shown as doubtful, where that is asked for.
const DOUBTS = [0.8, 0.5];

// A paragraph ends with a silence this long, in seconds, or with a sentence once it has this many characters.
const SILENCE_S = 2;
const PARAGRAPH = 500;
const MISSING_S = 1; // so much text is missing at the end of speech, or it is only a word's end
const SLOW_S = 5; // after so long it is known whether a recording is played slowly
const SENTENCE = /[.?!…。！？]["'”’»)]?$/;

const GAP_REASONS = {
  overrun: "audio was lost before it could be read",
  overload: "the daemon could not keep up",
  device: "the audio device was away",
  paused: "captions were paused",
  cleared: "what was said was dropped",
  unclear: "what was said is unclear",
};

const LOST = "captions are missing here: they are no longer kept, or cannot be read";

export class Transcript {
  #resent; // whether audio without a final is sent again to a new session, as `stream` does
  #base = 0; // where the present session begins, in seconds of the transcript
  #end = 0; // of the last entry
  #names = new Map(); // what speakers of the present session are called by now
  #clock = Infinity; // when the present session's audio began, by the events that came soonest after what they tell of
  #told = 0; // up to where there is text for what was said, in seconds of the session
  #spoken = 0; // end of the newest speech that is over, in seconds of the session
  #began = null; // [time of the clock, seconds of the session] of its first event, and of the one that `#told` comes from
  #toldAt = null;

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

  // Take one event in, at a time of the clock in seconds. Returns what is to be shown: {added: entries, changed: entries,
  // corrected: entry|null, live: bool, ready: event|null}. Of `changed`, `corrected` is the one that has other words.
  take(event, now = 0) {
    const shown = { added: [], changed: [], corrected: null, live: false, ready: null };
    const restarted = this.session !== null && event.session !== this.session;
    if (event.session !== this.session) {
      if (restarted && !this.#resent) {
        const open = this.#settled();
        if (open) shown.added.push(this.#keep("final", open.text, open));
        this.#base = this.#end;
      }
      this.session = event.session;
      this.#names.clear();
      this.#clock = Infinity;
      this.#told = this.#spoken = 0;
      this.#began = null;
      this.partial = null;
      this.speaking = false;
      this.ended = false;
    }
    const until = event.time ?? event.end;
    if (until !== undefined) {
      this.#clock = Math.min(this.#clock, now - until);
      this.#began ??= [now, until];
      // Speech that begins or ends says nothing of the text that is still to come of what was said before. Behind a long silence
      // it may have been no words.
      const missing = this.partial || (this.#spoken - this.#told >= MISSING_S && until - this.#spoken < SILENCE_S);
      if (event.state === "end") this.#spoken = until;
      else if (until >= this.#told && !(event.state && missing)) [this.#told, this.#toldAt] = [until, now];
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
      case "revision":
        this.#revise(event, shown);
        break;
      case "speakers":
        shown.changed = this.#rename(...event.same);
        break;
      case "translation": {
        const entry = this.entries[this.#find(event.of)];
        if (!entry) break;
        entry.translation = { text: event.text.trim(), language: event.language };
        shown.changed = [entry];
        break;
      }
      case "gap":
        if (event.reason === "cleared") {
          this.partial = null; // no final comes of it
          shown.live = true;
        }
        shown.added.push(this.#keep("gap", `${time(event.start)} – ${time(Math.ceil(event.end))} missing: ${GAP_REASONS[event.reason] ?? event.reason}`, event));
        break;
      case "error":
        if (event.fatal) this.error = event.message;
        if (event.code !== "history_lost") shown.added.push(this.#keep("error", event.message));
        else if (this.entries.at(-1)?.text !== LOST) shown.added.push(this.#keep("gap", LOST)); // history and daemon may both report it
        break;
      case "end":
        this.ended = true;
        this.speaking = false;
        break;
    }
    return shown;
  }

  // How far the text is behind what is said, or was said and is no final yet, in seconds, at a time of the clock; 0 for a
  // recording that is played slowly.
  behind(now) {
    if (!this.speaking && !(this.partial && this.#spoken - this.#told >= MISSING_S)) return 0;
    const [then, from] = this.#began;
    const passed = this.#toldAt - then;
    const slow = passed > SLOW_S && this.#told - from < passed / 2;
    return slow ? 0 : Math.max(0, now - this.#clock - this.#told);
  }

  // Whether what the open segment reads is a paragraph of its own.
  get partialBegins() {
    return this.#begins(this.entries.at(-1), this.#base + this.partial.start);
  }

  // Whether what is said from a time on, in seconds of the transcript, begins a paragraph behind an entry.
  #begins(before, start) {
    if (before?.kind !== "final" || start - before.end >= SILENCE_S) return true;
    return before.length >= PARAGRAPH && SENTENCE.test(before.text);
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
    const before = this.entries.at(-1);
    entry.begins = this.#begins(before, entry.start);
    entry.length = text.length + (entry.begins ? 0 : before.length); // of the paragraph, up to its end
    this.#end = Math.max(this.#end, entry.end);
    this.nEntries += 1;
    this.entries.push(entry);
    this.#tellTurns(this.entries.length - 1);
    if (this.entries.length > MAX_ENTRIES) this.entries.shift();
    return entry;
  }

  // kind: "final", "gap", "error" or "break" (between sessions). Of finals, `first` is what was written first, where that
  // reads otherwise, and `changes` the places of `text` that are new.
  #entry(kind, text, event = {}) {
    const { start = this.#end - this.#base, end = start, speaker = "", words = [], task, seq } = event;
    const language = (task === "translate" ? "en" : event.language) || this.language;
    const entry = { number: this.nEntries, kind, text, start: this.#base + start, end: this.#base + end, session: this.session, seq, language };
    if (kind !== "final") return entry;
    Object.assign(entry, { speaker, first: null, changes: [], translation: null });
    return Object.assign(entry, this.#reading(entry, text, words));
  }

  // What becomes of an entry by its words. The words themselves would take too much memory.
  #reading({ start, end, speaker }, text, words) {
    const named = words.map((word) => ({ ...word, speaker: this.#names.get(word.speaker) ?? word.speaker }));
    const runs = runsOf(text, named, { speaker, start, base: this.#base });
    const cues = runs.flatMap((run) =>
      cuesOf({ start, end, text, words: run.words, base: this.#base }).map((cue) => ({ ...cue, speaker: run.speaker })),
    );
    runs.forEach((run) => delete run.words);
    return { text, doubts: doubtsOf(text, words), runs, cues };
  }

  #find(seq) {
    return this.entries.findLastIndex((entry) => entry.kind === "final" && entry.seq === seq && entry.session === this.session);
  }

  #revise({ of, text, words, edits }, shown) {
    const index = this.#find(of);
    const entry = this.entries[index];
    if (!entry || !text.trim()) return;
    const before = entry.text;
    const first = entry.first ?? before;
    Object.assign(entry, this.#reading(entry, text.trim(), words));
    entry.first = entry.text === first ? null : first;
    entry.changes = entry.first === null ? [] : changesOf(entry.text, edits);
    shown.changed = [...new Set([entry, ...this.#tellTurns(index)])];
    if (entry.text !== before) shown.corrected = entry;
  }

  // A label is another's: whoever was called so is called otherwise from now on, here and in what was said.
  #rename(label, other) {
    const name = this.#names.get(other) ?? other;
    for (const [known, now] of this.#names) if (now === label) this.#names.set(known, name);
    this.#names.set(label, name);
    const changed = new Set();
    for (const entry of this.entries) {
      if (entry.session !== this.session || !entry.runs?.some(({ speaker }) => speaker === label)) continue;
      for (const part of [...entry.runs, ...entry.cues]) if (part.speaker === label) part.speaker = name;
      entry.runs = joined(entry.runs);
      changed.add(entry);
    }
    return [...new Set([...changed, ...this.#tellTurns(0)])];
  }

  // Note in each run whether somebody else spoke before, from an entry on. Returns the entries where that changed.
  #tellTurns(index) {
    let speaker = this.entries.findLast(({ kind }, i) => i < index && kind === "final")?.runs.at(-1).speaker ?? "";
    return this.entries.slice(index).filter(({ runs = [] }) => {
      let changed = false;
      for (const run of runs) {
        const turn = run.speaker !== speaker;
        changed ||= turn !== run.turn;
        Object.assign(run, { turn });
        speaker = run.speaker;
      }
      return changed;
    });
  }
}

// What each speaker says of a text: {speaker, from, to, start, words}, its place in UTF-16 units. Words of which nobody knows
// who says them belong to those before. Where no word has a speaker, `speaker` says all of it.
function runsOf(text, words, { speaker, start, base }) {
  const spoken = words.map(({ word }) => word).join("");
  let label = words.find((word) => word.speaker)?.speaker;
  if (!label || spoken.trim() !== text) return [{ speaker, from: 0, to: text.length, start, words }];
  let at = spoken.trimStart().length - spoken.length;
  return joined(words.map((word) => {
    const from = at + word.word.length - word.word.trimStart().length;
    at += word.word.length;
    label = word.speaker ?? label;
    return { speaker: label, from: Math.max(0, from), to: Math.min(at, text.length), start: base + word.start, words: [word] };
  }));
}

function joined(runs) {
  const found = [];
  for (const run of runs) {
    const last = found.at(-1);
    if (last?.speaker !== run.speaker) found.push(run);
    else Object.assign(last, { to: run.to }, last.words && { words: [...last.words, ...run.words] });
  }
  return found;
}

// Where a revised text is new: [from, to], in its UTF-16 units. `edits` count code points of the text before.
function changesOf(text, edits) {
  const points = Array.from(text);
  const units = (point) => points.slice(0, point).join("").length;
  let shift = 0;
  return edits.map(({ start, end, text: put }) => {
    const from = start + shift;
    const to = from + Array.from(put).length;
    shift += to - from - (end - start);
    return [units(from + put.length - put.trimStart().length), units(to)];
  });
}

// Where a text is doubtful: [from, to, level], in its UTF-16 units.
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
