// Builds the address of an overlay, and shows what it looks like.

import { cssColour, keepToken, OPTIONS, parse, takeToken } from "./address.js";
import { ask, listen } from "./client.js";
import { copy } from "./clipboard.js";

const SAMPLE =
  "Words fill a line. When one does not fit, the lines move up, and it begins the next. What has settled stays where it is, so that it can be read in peace. ";
const WORD_MS = 350; // a pace of speech
const UNSETTLED = 3; // words of the sample that have not settled

const $ = (id) => document.getElementById(id);
const form = $("options");
const base = new URL(".", location.href);
let token = takeToken();
let query = ""; // of the overlay's address
let listener = null;
let timer = 0;

// --- the address -----------------------------------------------------------------------------------------------------

function fill(options) {
  const { color, background, ...others } = options;
  for (const [name, text] of Object.entries(others)) $(name).value = text;
  [$("color").value] = hexadecimal(color);
  [$("background").value, $("opacity").value] = hexadecimal(background);
}

// A colour as its field has it, and how opaque it is, 0 to 255.
function hexadecimal(text) {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  context.fillStyle = cssColour(text);
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue, opacity] = context.getImageData(0, 0, 1, 1).data;
  return [`#${[red, green, blue].map(twoDigits).join("")}`, opacity];
}

const twoDigits = (n) => Number(n).toString(16).padStart(2, "0");

function build() {
  const chosen = Object.fromEntries(new FormData(form));
  chosen.font = chosen.font.trim();
  chosen.color = chosen.color.slice(1);
  chosen.background = chosen.background.slice(1) + twoDigits($("opacity").value);
  const others = Object.entries(chosen).filter(([name, text]) => text !== OPTIONS[name].preset);
  const built = new URLSearchParams(others).toString();
  try {
    parse(built);
  } catch (error) {
    problem(`${error.message}.`);
    return;
  }
  problem("");
  query = built;
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
  $("address").textContent = address("•".repeat(8));
  send({ query });
}

function address(shown) {
  const url = new URL("overlay", base);
  url.search = query;
  return url.href + (token ? `#token=${shown}` : "");
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

$("copy").addEventListener("click", async () => {
  await copy(address(encodeURIComponent(token)));
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1500);
});

// --- the preview -----------------------------------------------------------------------------------------------------

function send(message) {
  $("preview").contentWindow.postMessage(message, location.origin);
}

function play() {
  clearInterval(timer);
  listener?.close();
  $("state").textContent = "";
  if ($("source").value === "live") {
    listener = listen({ url: base, token: () => token, room: $("room").value, onEvent: send, onState: showState });
    return;
  }
  const words = SAMPLE.split(/(?<= )/);
  let [n, segment] = [words.length - UNSETTLED, 0];
  function say() {
    const text = words.slice(0, n).join("");
    const stable = words.slice(0, Math.max(0, n - UNSETTLED)).join("").length;
    if (n > words.length) [n, segment] = [0, segment + 1];
    else send({ type: n === words.length ? "final" : "partial", session: "sample", segment, text: text.trimEnd(), stable, language: "en" });
    n += 1;
  }
  say();
  timer = setInterval(say, WORD_MS);
}

function showState({ state, status, message }) {
  const said = { open: "Connected", connecting: "Connecting…", ended: "The input has ended" }[state];
  $("state").textContent = said ?? (state === "refused" && status === 401 ? "A token is needed" : message || "No connection");
}

new ResizeObserver(() => {
  $("picture").style.setProperty("--scale", $("picture").clientWidth / 1920);
}).observe($("picture"));

// --- the token -------------------------------------------------------------------------------------------------------

$("token").addEventListener("input", () => {
  token = keepToken($("token").value);
  build();
  if ($("source").value === "live") listener.retry();
});

async function askWhetherTokenIsNeeded() {
  const { status } = await ask(new URL("v1/input", base), "");
  $("token-field").hidden = status !== 401;
  $("token").value = token;
}

function start() {
  build();
  play();
}

try {
  fill(parse(location.search));
} catch {
  fill(parse(""));
}
form.addEventListener("input", build);
form.addEventListener("submit", (event) => event.preventDefault());
$("source").addEventListener("change", play);
askWhetherTokenIsNeeded().catch(() => {});
// The frame may have been there first.
if ($("preview").contentDocument?.readyState === "complete" && $("preview").contentWindow.location.hash) start();
else $("preview").addEventListener("load", start, { once: true });
