// Captions over a picture: a page for OBS's browser source, or whatever shows a page with a transparent ground.

import { cssColour, cssFont, parse, takeToken } from "./address.js";
import { listen } from "./client.js";
import { Rolling } from "./rolling.js";

const ROLL_MS = 300;
const FADE_MS = 600; // as in overlay.css
const ROLLING = 8; // lines at most that are on their way up

const $ = (id) => document.getElementById(id);
let options; // what the address says, see address.js
let rolling;
let rows = 0; // of `rolling`, when it was drawn
let timer = 0; // until the words fade, or are gone
let connected = false; // whether there ever was a connection

function apply(query) {
  const given = parse(query);
  if (given.words !== options?.words) rolling = new Rolling(fits, given.words === "all");
  options = given;
  const { style } = document.documentElement;
  style.setProperty("--lines", options.lines);
  style.setProperty("--size", `${options.size}px`);
  style.setProperty("--font", cssFont(options.font));
  style.setProperty("--color", cssColour(options.color));
  style.setProperty("--background", cssColour(options.background));
  document.body.dataset.position = options.position;
  document.body.classList.toggle("outlined", /^(transparent|...0|.{6}00)$/i.test(options.background));
}

function fits(text) {
  $("probe").textContent = text;
  return $("probe").getBoundingClientRect().width <= $("lines").clientWidth;
}

function take(event) {
  const { language } = event;
  if (language && language !== "auto") document.documentElement.lang = language;
  if (!rolling.take(event)) return;
  draw(true);
  clearTimeout(timer);
  $("captions").classList.remove("gone");
  if (Number(options.fade)) timer = setTimeout(fade, 1000 * options.fade);
}

function fade() {
  $("captions").classList.add("gone");
  timer = setTimeout(() => {
    rolling.clear();
    draw(false);
    $("captions").classList.remove("gone");
  }, FADE_MS);
}

function draw(smoothly) {
  $("lines").replaceChildren(...rolling.shown().slice(-options.lines - ROLLING).map(drawn));
  const n = rolling.rows - rows;
  if (smoothly && rows && n > 0 && n <= ROLLING) roll(n);
  rows = rolling.rows;
}

function drawn({ settled, open }) {
  const line = document.createElement("p");
  line.className = "line";
  line.dir = "auto";
  if (!settled && !open) return line;
  const text = line.appendChild(document.createElement("span"));
  text.className = "text";
  for (const [name, part] of [["settled", settled], ["open", open]]) {
    const span = text.appendChild(document.createElement("span"));
    span.className = name;
    span.textContent = part;
  }
  return line;
}

// Move the lines up to where they are, from `n` lines below; or more, where they are on their way already.
function roll(n) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const lines = $("lines");
  const below = new DOMMatrix(getComputedStyle(lines).transform).m42 + n * lines.lastElementChild.getBoundingClientRect().height;
  for (const before of lines.getAnimations()) before.cancel();
  lines.animate([{ transform: `translateY(${below}px)` }, { transform: "none" }], { duration: ROLL_MS, easing: "ease-out" });
}

// Only while it is being set up: nobody who watches a stream should read of it.
function say(text) {
  $("message").textContent = text;
  $("message").hidden = !text || connected;
}

function showConnection({ state, status, message }) {
  connected ||= state === "open";
  if (state === "refused" && status === 401) say("The daemon asks for a token: its page /settings makes an address with one.");
  else say(state === "refused" || (state === "lost" && status) ? message : "");
}

// Lines that have another width, or words another font: OBS's own styles come when the page is there, fonts later.
const sizes = new ResizeObserver(() => {
  rolling.again();
  draw(false);
});

try {
  const token = takeToken();
  apply(location.search);
  sizes.observe($("captions"));
  sizes.observe($("sample"));
  // The page of settings shows this one in a frame, and says what is to be seen.
  if (location.hash !== "#preview") listen({ url: new URL(".", location.href), token, room: options.room, onEvent: take, onState: showConnection });
  else addEventListener("message", ({ origin, data }) => origin === location.origin && (data.type ? take(data) : apply(data.query)));
} catch (error) {
  say(`This address cannot be used: ${error.message}.`);
}
