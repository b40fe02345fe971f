// Captions in lines that roll, as on television: words fill a line, and the first that does not fit begins the next. What has
// settled stays where it is. Events in, lines out; no DOM, no network.

const MAX_LINES = 24; // kept; more than are seen at once
const MAX_FINALS = 50; // that can be revised

// A word with the space before it. Scripts without spaces break behind each character, but not before a sign.
const SPACELESS = "\\p{sc=Han}\\p{sc=Hira}\\p{sc=Kana}\\p{sc=Thai}\\p{sc=Lao}\\p{sc=Khmr}\\p{sc=Mymr}";
const UNIT = new RegExp(`\\s*(?:\\p{Ps}*[${SPACELESS}][\\p{M}\\p{Pe}\\p{Pf}\\p{Po}ー]*|[^\\s${SPACELESS}]+)`, "gu");
const SIGNS = /^\p{P}{1,3}$/u; // that follow a word which stands already; they never begin a line

export class Rolling {
  #fits; // whether a text is no wider than a line
  #unsettled; // whether words are shown that may change
  #segment = null; // the newest, with its session
  #told = 0; // characters of its text that stand in the lines
  #lines = []; // of units that have settled, the oldest first; each {unit, open: false, segment, first}
  #finals = new Map(); // segments of the newest finals, by session and number
  #open = []; // units behind these, which may change
  #gone = 0; // lines that are not kept any more
  rows = 0; // lines since the screen was empty; they never roll back

  constructor(fits, unsettled) {
    this.#fits = fits;
    this.#unsettled = unsettled;
  }

  // Take one event in. Returns whether there are other words to see.
  take(event) {
    const open = this.#open.join("");
    let settled = false;
    if (event.type === "partial" || event.type === "final") {
      const segment = `${event.session} ${event.segment}`;
      if (segment !== this.#segment) [this.#segment, this.#told] = [segment, 0];
      // `stable` counts code points, strings UTF-16 units.
      const stable = event.type === "final" ? event.text : Array.from(event.text).slice(0, event.stable).join("");
      settled = this.#settle(event.text, stable.length);
      if (event.type === "final") this.#finals.set(`${event.session} ${event.seq}`, segment);
      if (this.#finals.size > MAX_FINALS) this.#finals.delete(this.#finals.keys().next().value);
    } else if (event.type === "revision") settled = this.#revise(this.#finals.get(`${event.session} ${event.of}`), event.text);
    else if (event.type === "ready" || event.reason === "cleared") this.#open = []; // no final comes of them
    return settled || this.#open.join("") !== open;
  }

  // The lines to be seen, the oldest first: {settled, open}.
  shown() {
    const lines = this.#lines.map((line) => [...line]);
    for (const unit of this.#open) this.#place(lines, unit, true);
    this.rows = Math.max(this.rows, this.#gone + lines.length);
    while (this.#gone + lines.length < this.rows) lines.push([]);
    return lines.map((line) => {
      const settled = written(line.filter(({ open }) => !open));
      return { settled, open: written(line).slice(settled.length) };
    });
  }

  // Begin with an empty screen.
  clear() {
    this.#lines = [];
    this.#open = [];
    this.#gone = this.rows = 0;
  }

  // Lay the same words out again: lines have another width, or words another font.
  again() {
    this.#gone = this.rows = 0;
    this.#lay(this.#lines.flat());
  }

  #lay(units) {
    this.#lines = [];
    for (const unit of units) this.#place(this.#lines, unit.unit, false, unit);
    while (this.#lines.length > MAX_LINES) this.#gone += this.#lines.splice(0, 1).length;
  }

  // Put a segment's newer text in its place, where all of it is there still.
  #revise(segment, text) {
    const units = this.#lines.flat();
    const from = units.findIndex((unit) => unit.first && unit.segment === segment);
    if (from < 0) return false;
    const behind = units.findIndex((unit, i) => i > from && unit.segment !== segment);
    const to = behind < 0 ? units.length : behind;
    const words = spaceBefore(text.match(UNIT) ?? []);
    if (units.slice(from, to).map(({ unit }) => unit).join("") === words.join("")) return false;
    this.#lay([...units.slice(0, from), ...words.map((unit, i) => ({ unit, segment, first: i === 0 })), ...units.slice(to)]);
    return true;
  }

  // Add the whole units of a text's first `length` characters; a part of a word would have to move with the rest of it.
  #settle(text, length) {
    const units = text.slice(this.#told).match(UNIT) ?? [];
    const begins = this.#told === 0;
    let n = 0;
    while (n < units.length && this.#told + units[n].length <= length) this.#told += units[n++].length;
    if (begins) spaceBefore(units);
    units.slice(0, n).forEach((unit, i) => this.#place(this.#lines, unit, false, { segment: this.#segment, first: begins && i === 0 }));
    while (this.#lines.length > MAX_LINES) this.#gone += this.#lines.splice(0, 1).length;
    this.#open = this.#unsettled ? units.slice(n) : [];
    return n > 0;
  }

  // `segment`, `first`: whose unit it is, and whether it is the first of it.
  #place(lines, unit, open, { segment, first } = {}) {
    const last = lines.at(-1);
    if (last && (SIGNS.test(unit) || this.#fits(written(last) + unit))) {
      last.push({ unit, open, segment, first });
      return;
    }
    for (let rest = unit; rest; ) {
      const piece = this.#beginning(rest);
      lines.push([{ unit: piece, open, segment, first: first && rest === unit }]);
      rest = rest.slice(piece.length);
    }
  }

  // As much of a word as fits into a line of its own.
  #beginning(unit) {
    if (this.#fits(unit.trimStart())) return unit;
    const points = Array.from(unit);
    let [low, high] = [/\s/.test(unit[0]) ? 2 : 1, points.length - 1]; // so many fit, or have to; so many might
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.#fits(points.slice(0, middle).join("").trimStart())) low = middle;
      else high = middle - 1;
    }
    return points.slice(0, low).join("");
  }
}

// The first word of a segment has a space before it, too.
function spaceBefore(units) {
  if (units.length) units[0] = ` ${units[0].trimStart()}`;
  return units;
}

function written(line) {
  return line
    .map(({ unit }) => unit)
    .join("")
    .trimStart();
}
