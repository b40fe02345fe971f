// What stands in the addresses of our pages: the token, and how an overlay looks.

const whole = (low, high) => (text) => /^\d{1,4}$/.test(text) && Number(text) >= low && Number(text) <= high;
const oneOf = (...names) => (text) => names.includes(text);

// Hexadecimal digits or a colour's name; no functions, nothing that a style sheet could run on with.
const colour = (text) =>
  /^([0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})$/i.test(text) ||
  (/^[a-z]{3,24}$/i.test(text) && !/^(inherit|initial|unset|revert)$/i.test(text) && CSS.supports("color", text));
const COLOUR = "a colour's name, or 3, 4, 6 or 8 hexadecimal digits such as ffffff or 000000b3 (the last two: how opaque)";

// Where clients' streams are read; empty: the daemon's own input is.
function isRoom(text) {
  return /^([A-Za-z0-9][\w.-]{0,63})?$/.test(text);
}

// Name -> what it is where the address does not say, whether a text can be one, and what to say where it cannot.
export const OPTIONS = {
  lines: { preset: "2", allows: whole(1, 12), expected: "a whole number from 1 to 12" },
  size: { preset: "48", allows: whole(8, 400), expected: "a whole number of pixels from 8 to 400" },
  font: {
    preset: "system-ui",
    allows: (text) => /^[\p{L}\p{N}][\p{L}\p{M}\p{N} ._-]{0,59}$/u.test(text),
    expected: "the name of one font: letters, digits, spaces, and the signs . _ -",
  },
  color: { preset: "ffffff", allows: colour, expected: COLOUR },
  background: { preset: "000000b3", allows: colour, expected: COLOUR },
  position: {
    preset: "bottom",
    allows: (text) => /^(top|middle|bottom)(-left|-right)?$/.test(text),
    expected: "top, middle or bottom, with -left or -right behind it or not",
  },
  fade: { preset: "8", allows: whole(0, 3600), expected: "a whole number of seconds without words, up to 3600; 0: never" },
  room: { preset: "", allows: isRoom, expected: "up to 64 letters, digits, dots, dashes and underscores" },
  words: { preset: "stable", allows: oneOf("stable", "all"), expected: "stable (words that have settled) or all" },
};

// Read the options of an address. Throws RangeError where there is one that cannot be; its message is one line.
export function parse(query) {
  const given = new URLSearchParams(query);
  given.delete("token");
  const options = Object.fromEntries(Object.entries(OPTIONS).map(([name, { preset }]) => [name, preset]));
  for (const name of new Set(given.keys())) {
    if (!Object.hasOwn(OPTIONS, name)) {
      throw new RangeError(`there is no ${name.slice(0, 40)}: expected some of ${Object.keys(OPTIONS).join(", ")}`);
    }
    const texts = given.getAll(name);
    if (texts.length > 1) throw new RangeError(`${name} is there ${texts.length} times: expected it once`);
    if (!OPTIONS[name].allows(texts[0])) {
      throw new RangeError(`${name} is '${texts[0].slice(0, 40)}': expected ${OPTIONS[name].expected}`);
    }
    options[name] = texts[0];
  }
  return options;
}

// What to write into a style for a colour, or a font, of `parse`.
export const cssColour = (text) => (/^[0-9a-f]+$/i.test(text) ? `#${text}` : text);
export const cssFont = (name) => `${CSS.supports("font", `1px ${name}`) ? name : `"${name}"`}, system-ui, sans-serif`;

// The room that the address of a page names; empty without one, or where none is called so.
export function roomOf(query) {
  const room = new URLSearchParams(query).get("room") ?? "";
  return isRoom(room) ? room : "";
}

// The token of this page's address, else of this tab. It is taken out of the address at once: that is shown, kept in the
// browser's history, and passed on. Behind a # it is not even sent.
export function takeToken() {
  const url = new URL(location.href);
  const fragment = new URLSearchParams(url.hash.slice(1));
  const given = fragment.get("token") ?? url.searchParams.get("token");
  if (given === null) return store((kept) => kept.getItem(key())) ?? "";
  url.searchParams.delete("token");
  if (fragment.has("token")) url.hash = "";
  history.replaceState(history.state, "", url);
  return keepToken(given);
}

// Keep a token for the pages of this tab, and return it.
export function keepToken(given) {
  const text = given.trim();
  const token = /^[ -~]*$/.test(text) ? text : "-"; // what no header can have is as wrong as any other
  store((kept) => kept.setItem(key(), token));
  return token;
}

const key = () => `token ${new URL(".", location.href).pathname}`;

function store(act) {
  try {
    return act(sessionStorage);
  } catch {
    return null; // a browser that keeps nothing still shows captions
  }
}
