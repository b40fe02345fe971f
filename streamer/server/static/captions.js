// The captions page: the daemon's own input, or this browser's microphone, a file, an earlier session.

import { keepToken, roomOf, takeToken } from "./address.js";
import { openMicrophone } from "./capture.js";
import { ask, listen, stream } from "./client.js";
import { recall, remember, setUpDisplay } from "./display.js";
import { linesOf, time } from "./formats.js";
import { Player } from "./play.js";
import { transcribe } from "./recordings.js";
import { listSessions } from "./sessions.js";
import { Transcript } from "./transcript.js";
import { View, setLanguage } from "./view.js";

const ENDED_RETRY_MS = 15000; // a daemon whose input has ended may be started again
const LATE_S = 3; // text that is so far behind is told to be late
const SPEAK_MS = 200; // finals that come within this are spoken together
const MAX_SPOKEN = 3; // of these, the newest
const MAX_UNSENT_BYTES = 8 * 2 ** 20; // microphone audio that the daemon has not taken; over a minute of it

// What the page shows, one of
//   {kind: "live", client, connection, asksToken, input}: the daemon's own input. `connection` is as client.js reports it, `input`
//     as the daemon does: {paused, kept, audio}
//   {kind: "microphone", client, connection, capture, paused, muted, stopping}: that of this browser; off where `capture` is null
//   {kind: "file", name, job, progress}: done where `job` is null
//   {kind: "past", title}: a session that the daemon has kept
// and with each {transcript, model, empty, message, asking, notice, scopes, history}: what was said; the event `ready`; what is
// shown if there is no text; what went wrong; whether the browser asks its user for the microphone; what the daemon has to say of
// its model; what the token allows, as far as it is known; whether text can be kept.
const room = roomOf(location.search); // whose captions are shown; empty: those of the daemon's own input
let state = {
  ...{ transcript: new Transcript(), asking: false, notice: "", history: false },
  scopes: room ? ["read"] : ["read", "stream", "control"],
};
let token = takeToken(); // what the daemon asks its clients for; empty where none is known

const $ = (id) => document.getElementById(id);
const base = new URL(".", location.href);
const main = $("captions");
const view = new View(state.transcript);
const player = new Player({ url: base, token: () => token, show: (entry) => view.change(entry), fail: (text) => say(text, { asked: true }) });
view.onPlay = (entry) => player.toggle(entry);
const unspoken = []; // entries that a screen reader is about to speak

// --- the state, and the page -----------------------------------------------------------------------------------------

function update(changes) {
  state = { ...state, ...changes };
  render(state);
}

// Show something else.
function open(next) {
  const { asking, notice, scopes, history } = state;
  state.client?.close();
  player.stop();
  state = { asking, notice, scopes, history, transcript: new Transcript(), model: null, message: "", connection: { state: "connecting", attempt: 0 }, ...next };
  view.open(state.transcript, () => false);
  render(state);
}

function render(shown) {
  const { kind, transcript, connection, input, capture, job, progress, model, empty, message, asking, notice, scopes } = shown;
  const isLive = kind === "live";
  const listens = isLive && connection.state === "open" && !transcript.ended; // the daemon, and this page to it
  const captures = Boolean(capture);
  const mayStream = scopes.includes("stream");
  const mayPause = isLive ? listens && !room && scopes.includes("control") : captures && !shown.stopping;
  const isPaused = isLive ? input.paused : Boolean(shown.paused);

  const [dot, status] = statusOf(shown);
  $("status").dataset.state = dot;
  write("status-text", status);
  write("details", model ? [model.model, [...new Set(Object.values(model.device))].join(" + "), model.language].filter(Boolean).join(" · ") : "");
  $("details").title = model ? Object.entries(model.device).map(([stage, device]) => `${stage}: ${device}`).join(", ") : "";

  $("pause").hidden = !mayPause;
  $("pause").dataset.paused = isPaused;
  write("pause-text", (isPaused ? "Resume" : "Pause") + (isLive ? " for everybody" : "")); // who listens to the daemon's input
  $("microphone").hidden = Boolean(job) || !mayStream;
  $("microphone").disabled = asking || (captures && shown.stopping && !connection.away); // who waits for a daemon may leave
  $("microphone").setAttribute("aria-pressed", String(captures));
  write("microphone-text", captures ? "Stop captioning" : room ? "Speak in this room" : "Use my microphone");
  $("mute").hidden = !captures || shown.stopping;
  $("mute").setAttribute("aria-pressed", String(Boolean(shown.muted)));
  $("choose").hidden = Boolean(job) || captures || !mayStream || Boolean(room);
  $("back").hidden = isLive || Boolean(job) || captures;

  $("job").hidden = !job;
  write("job-text", progress?.text ?? "");
  if (progress?.part === undefined) $("job-progress").removeAttribute("value"); // it moves, without a share
  else $("job-progress").value = progress.part;

  $("token-form").hidden = !shown.asksToken;
  write("token-text", token ? "This token is wrong, revoked or expired." : "This daemon asks for a token.");
  write("empty", empty);
  $("empty").hidden = Boolean(shown.asksToken) || transcript.entries.length > 0 || transcript.partial !== null;
  $("kept").hidden = !isLive || !input.kept; // audio of this browser's microphone or file is not kept
  $("kept-audio").hidden = !input?.audio;
  write("message", message);
  $("message").hidden = !message;
  write("notice-text", notice);
  $("notice").hidden = !notice;
}

// Texts that are written anew are read anew.
function write(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// Colour and text of the line that says what goes on.
function statusOf({ kind, connection, input, transcript, capture, paused, muted, stopping, job, name, title }) {
  const behind = transcript.behind(clock());
  const late = behind >= LATE_S ? `${Math.round(behind)} s behind` : "";
  switch (kind) {
    case "microphone":
      if (!capture) return ["ended", "Microphone off"];
      if (connection.away) return ["connecting", "Reconnecting…"];
      if (stopping) return ["recording", "Finishing…"];
      return paused ? ["paused", "Paused"] : ["recording", muted ? "Muted" : late || "Your microphone"];
    case "file":
      return job ? ["recording", "Transcribing"] : ["ended", name];
    case "past":
      return ["ended", title];
  }
  const { state: now, status, code } = connection;
  const why = { 0: "No connection", 404: "No input", 429: "Wait" }[status];
  if (now === "lost") return [why ? "failed" : "connecting", why ?? "Reconnecting…"];
  if (now === "refused" && !isAboutToken({ status, code })) return ["failed", status === 403 ? "Not allowed" : "Failed"];
  if (now === "refused") return ["failed", token ? "Wrong token" : "Token required"];
  if (transcript.ended) return ["ended", "Ended"];
  if (now === "connecting") return ["connecting", connection.attempt ? "Reconnecting…" : "Connecting…"];
  if (input.paused) return ["paused", "Paused"];
  if (late) return ["late", late];
  return transcript.speaking ? ["speech", "Speech"] : ["live", "Live"];
}

// In seconds.
function clock() {
  return performance.now() / 1000;
}

setInterval(() => (state.transcript.speaking || state.transcript.partial) && render(state), 1000);

// What came of something that the reader has asked for takes the focus: it is no caption, and is not spoken as one.
function say(message, { asked = false } = {}) {
  update({ message });
  if (message && asked) $("message").focus();
}

// --- what is said ----------------------------------------------------------------------------------------------------

function show(event) {
  const { kind, transcript } = state;
  const shown = transcript.take(event, clock());
  shown.added.forEach((entry) => view.add(entry));
  if (["live", "microphone"].includes(kind)) { // files come faster than anybody speaks
    shown.added.filter((entry) => entry.kind === "final").forEach((entry) => speak(entry));
    if (shown.corrected) speak(shown.corrected, true);
  }
  shown.changed.forEach((entry) => view.change(entry));
  if (shown.live) view.showLive();
  if (kind === "live" && event.type === "gap" && event.reason === "paused") command(); // another client may have done it
  update({ model: shown.ready ?? state.model });
  view.follow();
}

// Let a screen reader speak a final: it speaks nothing else, and of many that come at once (a replay) the newest. One that is
// corrected meanwhile is spoken once; later it is spoken again.
function speak(entry, corrected = false) {
  if (unspoken.some((other) => other.entry === entry)) return;
  if (!unspoken.length) setTimeout(() => $("spoken").replaceChildren(...unspoken.splice(0).slice(-MAX_SPOKEN).map(spoken)), SPEAK_MS);
  unspoken.push({ entry, corrected });
}

function spoken({ entry, corrected }) {
  const text = document.createElement("p");
  const words = linesOf(entry).map(({ line }) => line).join(" ");
  text.textContent = corrected ? `Corrected: ${words}` : words;
  setLanguage(text, entry.language);
  return text;
}

// --- the daemon's captions -------------------------------------------------------------------------------------------

function openLive() {
  open({ kind: "live", asksToken: false, input: {}, empty: room ? "No speech in this room yet." : "Waiting for speech…" });
  update({ client: listen({ url: base, token: () => token, room, after: 0, onEvent: show, onState: showConnection }) });
}

function showConnection(connection) {
  const { state: now, status, message } = connection;
  update({ connection });
  if (now === "open") {
    update({ asksToken: false });
    if (!room) command();
    showHealth();
  }
  if (now === "refused") update(isAboutToken(connection) ? { asksToken: true } : { message }); // to try again is of no use
  if (status === 429) update({ message });
  if (status === 404 && !state.transcript.session) update({ empty: "The daemon has no input of its own. Use your microphone, or transcribe a file." });
  if (now === "ended") {
    update({ empty: "Nothing was said." });
    setTimeout(state.client.retry, ENDED_RETRY_MS);
  }
}

// Whether a token is missing or wrong, or was revoked.
function isAboutToken({ status, code }) {
  return status === 401 || (!status && code === 1008);
}

// Tell the daemon what to do with its input ("pause", "resume"), or nothing; show how the input is then.
async function command(name) {
  const { transcript } = state;
  let message = "The daemon cannot be reached.";
  try {
    const response = await ask(new URL(name ? `v1/input/${name}` : "v1/input", base), token, name ? "POST" : "GET");
    const answer = await response.json();
    if (state.transcript !== transcript) return; // something else is shown by now
    message = response.ok ? "" : answer.error;
    if (response.ok && Boolean(answer.audio) !== Boolean(state.input.audio)) view.open(transcript, () => answer.audio);
    if (response.ok) update({ input: answer });
  } catch {
    if (state.transcript !== transcript) return;
  }
  if (name) say(message, { asked: true });
}

// To a client that is connected, or was closed, this does nothing.
const retry = () => state.kind === "live" && state.client?.retry();
window.addEventListener("online", retry);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && !state.transcript.ended && retry());

// What everybody should know of the daemon's model, where there is something; and what this page may do.
async function showHealth() {
  const health = await ask(new URL("healthz", base), token).then((response) => response.json()).catch(() => ({}));
  const { notice = "", scopes = state.scopes, history = false } = health;
  update({ notice: notice === recall("notice", "sessionStorage") ? "" : notice, scopes, history });
  if (room && health.scopes && $("follow").hidden) showCode(health.scopes);
}

// The address of this room for phones, where it leads here and its token may do nothing but read.
async function showCode(scopes) {
  const address = new URL(`room/${room}`, base);
  if (["localhost", "127.0.0.1", "[::1]"].includes(address.hostname) || (token && String(scopes) !== "read")) return;
  write("follow-address", address.host + address.pathname);
  if (token) address.hash = new URLSearchParams({ token });
  const code = await ask(new URL("v1/qr", base), token, "POST", address.href).catch(() => null);
  if (!code?.ok) return;
  $("code").src = URL.createObjectURL(await code.blob());
  $("follow").hidden = false;
}

$("understood").addEventListener("click", () => {
  remember("notice", state.notice, "sessionStorage");
  update({ notice: "" });
  main.focus({ preventScroll: true });
});

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = keepToken($("token").value);
  $("token").value = "";
  update({ asksToken: false });
  retry();
});

function backToLive() {
  openLive();
  main.focus();
}

$("back").addEventListener("click", backToLive);

// --- this browser's microphone ---------------------------------------------------------------------------------------

async function startMicrophone() {
  update({ message: "", asking: true });
  let capture;
  try {
    capture = await openMicrophone(base);
  } catch (error) {
    say(error.message, { asked: true });
    return;
  } finally {
    update({ asking: false });
  }
  if (state.job) { // a file was dropped meanwhile
    capture.release();
    return;
  }
  open({ kind: "microphone", capture, transcript: new Transcript({ resent: true }), paused: false, muted: false, stopping: false, empty: "Listening to your microphone…" });
  const start = { format: "s16le", sample_rate: capture.sampleRate, channels: 1, ...(room && { room, keep: state.history }) };
  const client = stream({ url: base, token: () => token, start, onEvent: show, onState: showStream });
  update({ client });
  if (!state.capture) return; // refused at once
  capture.listen({
    onAudio(audio, peak) {
      if (client.waiting > MAX_UNSENT_BYTES) {
        say("The daemon cannot keep up with the microphone; captioning stops here.");
        stopMicrophone();
      } else if (audio.byteLength) {
        client.send(audio);
      }
      $("level").style.setProperty("--level", Math.min(1, Math.sqrt(peak)).toFixed(2));
    },
    onStopped() {
      client.finish();
      capture.release();
    },
    onLost() {
      say("The microphone was disconnected.");
      stopMicrophone();
    },
  });
}

function showStream(reported) {
  const { state: now, message } = reported;
  update({ connection: { ...reported, away: now === "lost" || (now === "connecting" && state.connection.away) } });
  if (now === "failed") say(state.transcript.error || message);
  if (now === "failed" || now === "ended") endMicrophone();
}

function stopMicrophone() {
  if (state.stopping) return;
  update({ stopping: true });
  state.capture.stop();
}

function endMicrophone() {
  state.capture.release();
  update({ capture: null, empty: "Nothing was said." });
}

$("microphone").addEventListener("click", () => {
  if (!state.capture) {
    startMicrophone();
  } else if (!state.stopping) {
    stopMicrophone();
  } else { // wait no more for a daemon that is away
    state.client.close();
    endMicrophone();
  }
});
$("pause").addEventListener("click", () => {
  if (state.kind === "live") {
    command(state.input.paused ? "resume" : "pause");
    return;
  }
  update({ paused: !state.paused });
  if (state.paused) state.client.pause();
  else state.client.resume();
});
$("mute").addEventListener("click", () => {
  update({ muted: !state.muted });
  state.capture.mute(state.muted);
});

// --- a file, and sessions of the past --------------------------------------------------------------------------------

async function transcribeFile(file) {
  if (!file || state.job) return;
  if (state.capture) {
    say("Stop captioning the microphone first, then drop the file again.", { asked: true });
    return;
  }
  const { name } = file;
  open({ kind: "file", name, job: null, progress: { text: name }, empty: "The first words take a moment…" });
  const job = transcribe({
    url: base,
    token,
    file,
    onFinal: (final) => show({ ...final, session: name }),
    onProgress: (done) => update({ progress: progressOf(name, done) }),
  });
  update({ job });
  let ended = { empty: "" };
  try {
    ended = { empty: (await job.finished) ? "Nothing was said." : "Cancelled." };
  } catch (error) {
    say(error.message, { asked: true });
  }
  update({ job: null, ...ended });
  if (document.activeElement === document.body) main.focus(); // the button to cancel it is gone
}

// What is said of a file, and the part of it that is done, if known.
function progressOf(name, { sent, done, length }) {
  if (sent < 1) return { text: `Sending ${name}: ${Math.round(100 * sent)} %`, part: sent };
  if (!done) return { text: `${name}: listening` };
  return length ? { text: `${name}: ${time(done)} of ${time(length)}`, part: Math.min(1, done / length) } : { text: `${name}: ${time(done)}` };
}

$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  transcribeFile($("file").files[0]);
  $("file").value = "";
});
$("job-cancel").addEventListener("click", () => state.job.cancel());

// A file may be dropped anywhere.
for (const type of ["dragover", "dragleave", "drop"]) {
  window.addEventListener(type, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.toggle("dropping", type === "dragover");
    if (type === "drop") transcribeFile(event.dataTransfer.files[0]);
  });
}

async function openPast({ id, title, live, seq }) {
  if (state.capture || state.job) {
    say("Stop what is being captioned first.", { asked: true });
    return;
  }
  if (live) {
    if (state.kind !== "live") backToLive();
    return;
  }
  open({ kind: "past", title, empty: "One moment…" });
  const { transcript } = state;
  let spans = [];
  let failure = "";
  try {
    const response = await ask(new URL(`v1/sessions/${encodeURIComponent(id)}.jsonl`, base), token);
    const text = await response.text();
    if (!response.ok) throw new Error(JSON.parse(text).error);
    ({ audio: spans = [] } = await (await ask(new URL(`v1/sessions/${encodeURIComponent(id)}`, base), token)).json());
    const events = text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
    const ready = events.map((event) => transcript.take(event).ready).findLast(Boolean);
    if (state.transcript === transcript) update({ model: ready });
  } catch (error) {
    failure = `The session cannot be read: ${error.message}`;
  }
  if (state.transcript !== transcript) return; // something else was chosen meanwhile
  view.open(transcript, ({ start, end }) => spans.some(([from, to]) => from < end && to > start));
  update({ empty: failure ? "" : "Nothing was said." });
  const found = seq && transcript.entries.find((entry) => entry.seq === seq);
  if (transcript.entries.length) view.goTo(found || transcript.entries[0], Boolean(found)); // it is read from its beginning
  main.focus({ preventScroll: true });
  say(failure, { asked: true });
}

const loadSessions = listSessions({ url: base, token: () => token, onOpen: openPast });

if (room) {
  document.title = `${room}: live captions`;
  write("title", room);
  $("title").className = "room";
}
setUpDisplay({
  onOpen: (dialog) => dialog === "sessions" && loadSessions(),
  onChange: (choice) => (choice === "doubts" ? view.open(state.transcript) : view.follow()),
  saved: () => state.transcript.saved(),
});
openLive();
