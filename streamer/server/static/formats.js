// Transcripts as text, SubRip and WebVTT, from entries of a `Transcript`. No DOM, no network.

const LINE = 42; // characters of a line, two lines a cue, as the BBC's and Netflix's guides have it
const LEAST_S = 0.7; // that a cue is shown, where the next leaves so much time
const WIDE = /[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Hangul}]/gu; // take the room of two
const CLAUSE = /[.,;:!?…。、，！？]$/;

export const FORMATS = {
  txt: { type: "text/plain", write: asText },
  srt: { type: "application/x-subrip", write: asSrt },
  vtt: { type: "text/vtt", write: asVtt },
};

// Cut a final into cues of two lines at most, where its words say when; at the end of a clause once one line is full.
export function cuesOf({ start, end, text, words, base = 0 }) {
  const cues = [];
  for (const { word, ...at } of words.length ? words : [{ word: text, start: start - base, end: end - base }]) {
    const cue = cues.at(-1);
    if (!cue || width(cue.text + word) > 2 * LINE || (width(cue.text) > LINE && CLAUSE.test(cue.text))) {
      cues.push({ start: base + at.start, end: base + at.end, text: word.trimStart() });
    } else {
      cue.text += word;
      cue.end = base + at.end;
    }
  }
  return cues;
}

// `times`: whether each line begins with when it was said.
export function asText(entries, { times = false } = {}) {
  return entries
    .flatMap((entry) => linesOf(entry).map(({ start, line }) => `${times ? `${time(start)}  ` : ""}${line.replace(/\s+/g, " ")}\n`))
    .join("");
}

// The lines of an entry, one for each who speaks, with the name where somebody else spoke before.
export function linesOf({ kind, text, start, runs }) {
  if (kind !== "final") return [{ start, line: `[${text}]` }];
  return runs.map((run) => ({
    start: run.start,
    line: (run.turn && run.speaker ? `${run.speaker}: ` : "") + text.slice(run.from, run.to),
  }));
}

export function asSrt(entries) {
  return cuesIn(entries)
    .map(({ start, end, lines, speaker }, i) => `${i + 1}\n${stamp(start, ",")} --> ${stamp(end, ",")}\n${speaker && `${speaker}: `}${lines}\n\n`)
    .join("");
}

export function asVtt(entries) {
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const cues = cuesIn(entries).map(
    ({ start, end, lines, speaker }) => `${stamp(start, ".")} --> ${stamp(end, ".")}\n${speaker && `<v ${escaped(speaker)}>`}${escaped(lines)}\n\n`,
  );
  return `WEBVTT\n\n${cues.join("")}`;
}

function cuesIn(entries) {
  const cues = entries.flatMap((entry) => (entry.cues ?? []).map((cue) => ({ ...cue, lines: inLines(cue.text) })));
  return cues.map((cue, i) => ({ ...cue, end: Math.max(cue.end, Math.min(cue.start + LEAST_S, cues[i + 1]?.start ?? Infinity)) }));
}

// Part a text into lines, the first two as equal as its words allow.
function inLines(text) {
  const plain = text.replace(/\s+/g, " ").trim();
  if (width(plain) <= LINE) return plain;
  const middle = plain.length / 2;
  const places = [...plain.matchAll(/ /g)].map(({ index }) => index);
  const cut = places.length ? places.reduce((best, at) => (Math.abs(at - middle) < Math.abs(best - middle) ? at : best)) : Math.ceil(middle);
  return `${plain.slice(0, cut)}\n${plain.slice(cut).trimStart()}`;
}

function width(text) {
  return text.length + (text.match(WIDE)?.length ?? 0);
}

function stamp(seconds, point) {
  const ms = Math.round(seconds * 1000);
  const part = (unit, of, digits = 2) => String(Math.floor(ms / unit) % of).padStart(digits, "0");
  return `${part(3600000, Infinity)}:${part(60000, 60)}:${part(1000, 60)}${point}${part(1, 1000, 3)}`;
}

export function time(seconds) {
  const whole = Math.floor(seconds);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60].map((n) => String(n).padStart(2, "0"));
  return (whole < 3600 ? parts.slice(1) : parts).join(":");
}
