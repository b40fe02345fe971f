// The captions page: what the daemon hears, or this browser's microphone, a file, an earlier session.

import { keepToken, takeToken } from "./address.js";
import { ask, listen, stream } from "./client.js";
import { copy } from "./clipboard.js";
import { FORMATS, asText, linesOf, time } from "./formats.js";
import { Player } from "./play.js";
import { transcribe } from "./recordings.js";
import { listSessions } from "./sessions.js";
import { Transcript } from "./transcript.js";
import { View, setLanguage } from "./view.js";

const ENDED_RETRY_MS = 15000; // a daemon whose input has ended may be started again
const TEXT_SCALES = [0.6, 0.75, 0.9, 1, 1.2, 1.4, 1.7, 2, 2.5];
const LATE_S = 3; // text that is so far behind is told to be late
const SPEAK_MS = 200; // finals that come within this are spoken together
const MAX_SPOKEN = 3; // of these, the newest
const MAX_UNSENT_BYTES = 8 * 2 ** 20; // microphone audio that the daemon has not taken; over a minute of it

const $ = (id) => document.getElementById(id);
const base = new URL(".", location.href);
let token = takeToken(); // what the daemon asks its clients for; empty where none is known

const main = $("captions");
let transcript = new Transcript(); // what is on the page
const view = new View(transcript);
const player = new Player({ url: base, token: () => token, show: (entry) => view.change(entry), fail: (text) => showMessage(text, { asked: true }) });
view.onPlay = (entry) => player.toggle(entry);
const unspoken = []; // entries that a screen reader is about to speak
let aside = null; // [state, text] of what is shown in place of live captions: a file, an earlier session
let job = null; // the file that is being transcribed
let listener = null; // to the daemon's captions
let open = false; // whether it is connected
let retryTimer = 0;
let paused = false; // whether the daemon's own input is
let late = ""; // how far the text is behind what is said, where it is
let microphone = null; // the running capture: {client, stream, context, node, lost, paused, muted, stopping}

// --- showing ---------------------------------------------------------------------------------------------------------

function show(event) {
  const shown = transcript.take(event, clock());
  if (shown.ready) showReady(shown.ready);
  shown.added.forEach((entry) => view.add(entry));
  // Files come faster than anybody speaks.
  if (!aside) shown.added.filter(({ kind }) => kind === "final").forEach((entry) => speak(entry));
  if (!aside && shown.corrected) speak(shown.corrected, true);
  shown.changed.forEach((entry) => view.change(entry));
  if (shown.live) view.showLive();
  if (event.type === "speech" || late) showState();
  if (event.type === "gap" && event.reason === "paused" && !microphone) command(); // somebody else may have done it
  view.follow();
}

// In seconds.
function clock() {
  return performance.now() / 1000;
}

setInterval(() => (transcript.speaking || transcript.partial) && showState(), 1000);

function showReady(event) {
  const devices = [...new Set(Object.values(event.device))].join(" + ");
  $("details").textContent = [event.model, devices, event.language].filter(Boolean).join(" · ");
  $("details").title = Object.entries(event.device).map(([stage, device]) => `${stage}: ${device}`).join(", ");
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

function showState(state, text) {
  const behind = transcript.behind(clock());
  late = behind >= LATE_S ? `${Math.round(behind)} s behind` : "";
  if (state === undefined) {
    if (microphone?.lost) [state, text] = ["connecting", "Reconnecting…"];
    else if (microphone?.stopping) [state, text] = ["recording", "Finishing…"];
    else if (microphone?.paused) [state, text] = ["paused", "Paused"];
    else if (microphone) [state, text] = ["recording", microphone.muted ? "Muted" : late ? late : "Your microphone"];
    else if (aside) [state, text] = aside;
    else if (!open) return;
    else if (paused) [state, text] = ["paused", "Paused"];
    else if (late) [state, text] = ["late", late];
    else [state, text] = transcript.speaking ? ["speech", "Speech"] : ["live", "Live"];
  }
  showActions();
  $("status").dataset.state = state;
  if ($("status-text").textContent !== text) $("status-text").textContent = text;
}

function showActions() {
  const isPaused = microphone ? microphone.paused : paused;
  $("pause").hidden = microphone ? microphone.stopping : !open || transcript.ended;
  $("pause").dataset.paused = isPaused;
  const whose = microphone ? "" : " for everybody"; // who listens to the daemon's input
  $("pause-text").textContent = (isPaused ? "Resume" : "Pause") + whose;
  $("mute").hidden = !microphone || microphone.stopping;
  $("mute").setAttribute("aria-pressed", String(Boolean(microphone?.muted)));
  $("microphone").hidden = job !== null;
  $("choose").hidden = job !== null || microphone !== null;
  $("back").hidden = aside === null || job !== null;
  $("job").hidden = job === null;
}

// What came of something that the reader has asked for takes the focus: it is no caption, and is not spoken as one.
function showMessage(text, { asked = false } = {}) {
  $("message").textContent = text;
  $("message").hidden = !text;
  if (text && asked) $("message").focus();
}

// Show something other than the daemon's captions: [state, text] says what.
function leaveLive(shown, placeholder, options) {
  clearTimeout(retryTimer);
  listener?.close();
  listener = null;
  open = false;
  aside = shown;
  $("kept").hidden = true;
  $("details").textContent = "";
  showMessage("");
  clear(placeholder, options);
  showState();
}

function clear(placeholder, options) {
  player.stop();
  view.plays = () => false;
  transcript = new Transcript(options);
  view.open(transcript, placeholder);
}

// --- the daemon's captions -------------------------------------------------------------------------------------------

function connect() {
  clearTimeout(retryTimer);
  listener?.close();
  listener = listen({ url: base, token: () => token, after: 0, onEvent: show, onState: showConnection });
}

function showConnection({ state, attempt, status, message }) {
  open = state === "open";
  switch (state) {
    case "connecting":
      if (!transcript.ended) showState("connecting", attempt ? "Reconnecting…" : "Connecting…");
      break;
    case "open":
      showTokenForm(false);
      if (!transcript.ended) showState();
      command();
      showNotice();
      break;
    case "ended":
      showState("ended", "Ended");
      $("empty").textContent = "Nothing was said.";
      retryTimer = setTimeout(listener.retry, ENDED_RETRY_MS);
      break;
    case "refused": // to try again with the same token is of no use
      showTokenForm(true);
      showState("failed", token ? "Wrong token" : "Token required");
      break;
    case "lost": {
      const why = { 0: "No connection", 403: "Not allowed", 404: "No input", 429: "Wait" }[status];
      if (status === 403 || status === 429) showMessage(message);
      if (status === 404 && !transcript.session) $("empty").textContent = "The daemon has no input of its own. Use your microphone, or transcribe a file.";
      showState(why ? "failed" : "connecting", why ?? "Reconnecting…");
    }
  }
}

// Tell the daemon what to do with its input ("pause", "resume"), or nothing; show how the input is then.
async function command(name) {
  try {
    const response = await ask(new URL(name ? `v1/input/${name}` : "v1/input", base), token, name ? "POST" : "GET");
    const answer = await response.json();
    if (response.ok) {
      paused = answer.paused;
      const live = microphone === null && aside === null;
      $("kept").hidden = !answer.kept || !live; // audio of this browser's microphone or file is not kept
      $("kept-audio").hidden = !answer.audio;
      if (live && view.plays() !== Boolean(answer.audio)) {
        view.plays = () => Boolean(answer.audio);
        view.open(transcript);
      }
    }
    if (name) showMessage(response.ok ? "" : answer.error, { asked: true });
  } catch {
    if (name) showMessage("The daemon cannot be reached.", { asked: true });
  }
  if (!transcript.ended) showState();
}

window.addEventListener("online", () => listener?.retry());
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && !transcript.ended) listener?.retry();
});

// What everybody should know of the daemon's model, where there is something.
async function showNotice() {
  const { notice } = await ask(new URL("healthz", base), token).then((response) => response.json()).catch(() => ({}));
  $("notice-text").textContent = notice ?? "";
  $("notice").hidden = !notice || recall("notice", "sessionStorage") === notice;
}

$("understood").addEventListener("click", () => {
  remember("notice", $("notice-text").textContent, "sessionStorage");
  $("notice").hidden = true;
  main.focus({ preventScroll: true });
});

// --- this browser's microphone ---------------------------------------------------------------------------------------

async function startMicrophone() {
  showMessage("");
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) {
    showMessage(
      window.isSecureContext
        ? "This browser gives pages no access to a microphone. A current Firefox, Chrome, Edge or Safari does."
        : `Browsers give a page the microphone only at a secure address. Open http://localhost:${location.port || 80}/ on the machine that runs the daemon, or have it started with server.tls: self-signed.`,
      { asked: true },
    );
    return;
  }
  $("microphone").disabled = true;
  const capture = { client: null, stream: null, context: null, node: null, lost: false, paused: false, muted: false, stopping: false };
  try {
    capture.stream = await navigator.mediaDevices.getUserMedia({
      audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true },
    });
    capture.context = new AudioContext();
    await capture.context.audioWorklet.addModule(new URL("microphone.js", base));
    await capture.context.resume();
  } catch (error) {
    release(capture);
    showMessage(refusal(error), { asked: true });
    return;
  } finally {
    $("microphone").disabled = false;
  }
  if (job) { // a file was dropped meanwhile
    release(capture);
    return;
  }

  microphone = capture;
  leaveLive(null, "Listening to your microphone…", { resent: true });
  setPressed(true);
  send(capture);
}

function send(capture) {
  const { context, stream: sound } = capture;
  capture.client = stream({
    url: base,
    token: () => token,
    start: { format: "s16le", sample_rate: context.sampleRate, channels: 1 },
    onEvent: show,
    onState: (state) => showStream(capture, state),
  });
  capture.node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
  capture.node.port.onmessage = ({ data }) => passOn(capture, data);
  context.createMediaStreamSource(sound).connect(capture.node);
  sound.getAudioTracks()[0].onended = () => {
    showMessage("The microphone was disconnected.");
    stopMicrophone();
  };
}

function showStream(capture, { state, message }) {
  capture.lost = state === "lost" || (state === "connecting" && capture.lost);
  if (state === "failed") showMessage(transcript.error || message);
  if (state === "failed" || state === "ended") endMicrophone(capture);
  else showState();
  $("microphone").disabled = capture.stopping && !capture.lost; // who waits for a daemon that is away may leave
}

function passOn(capture, data) {
  if (data === null) {
    capture.client.finish();
    release(capture);
    return;
  }
  if (capture.client.waiting > MAX_UNSENT_BYTES) {
    showMessage("The daemon cannot keep up with the microphone; captioning stops here.");
    stopMicrophone();
  } else if (data.audio.byteLength) {
    capture.client.send(data.audio);
  }
  $("level").style.setProperty("--level", Math.min(1, Math.sqrt(data.peak)).toFixed(2));
}

function stopMicrophone() {
  const capture = microphone;
  if (!capture || capture.stopping) return;
  capture.stopping = true;
  $("microphone").disabled = !capture.lost;
  showState();
  capture.node.port.postMessage("stop"); // it answers with what is left, then null
}

// Wait no more for a daemon that is away.
function leaveStream() {
  microphone.client.close();
  endMicrophone(microphone);
}

function endMicrophone(capture) {
  release(capture);
  microphone = null;
  aside = ["ended", "Microphone off"];
  setPressed(false);
  showState();
  $("empty").textContent = "Nothing was said.";
}

function release(capture) {
  capture.stream?.getTracks().forEach((track) => {
    track.onended = null;
    track.stop();
  });
  if (capture.node) capture.node.port.onmessage = null; // audio may be on its way, and there is no stream for it
  if (capture.context && capture.context.state !== "closed") capture.context.close();
}

function setPressed(pressed) {
  $("microphone").setAttribute("aria-pressed", String(pressed));
  $("microphone").disabled = false;
  $("microphone-text").textContent = pressed ? "Stop captioning" : "Use my microphone";
}

function refusal(error) {
  switch (error.name) {
    case "NotAllowedError":
      return "The microphone was refused. Allow it for this page in the browser's address bar, then try again.";
    case "NotFoundError":
      return "This device has no microphone. Connect one, then try again.";
    case "NotReadableError":
      return "The microphone is in use by another program. Close that, then try again.";
    default:
      return `The microphone cannot be opened (${error.name}: ${error.message}).`;
  }
}

$("microphone").addEventListener("click", () => {
  if (!microphone) startMicrophone();
  else if (microphone.stopping) leaveStream();
  else stopMicrophone();
});
$("pause").addEventListener("click", () => {
  const capture = microphone;
  if (!capture) {
    command(paused ? "resume" : "pause");
    return;
  }
  capture.paused = !capture.paused;
  if (capture.paused) capture.client.pause();
  else capture.client.resume();
  showState();
});
$("mute").addEventListener("click", () => {
  microphone.muted = !microphone.muted;
  microphone.stream.getAudioTracks()[0].enabled = !microphone.muted; // silence is sent
  showState();
});
$("back").addEventListener("click", backToLive);

function backToLive() {
  aside = null;
  showMessage("");
  clear("Waiting for speech…");
  connect();
  showState("connecting", "Connecting…");
  main.focus();
}

// --- a file, and sessions of the past --------------------------------------------------------------------------------

async function transcribeFile(file) {
  if (!file || job) return;
  if (microphone) {
    showMessage("Stop captioning the microphone first, then drop the file again.", { asked: true });
    return;
  }
  leaveLive(["recording", "Transcribing"], "The first words take a moment…");
  job = transcribe({
    url: base,
    token,
    file,
    onFinal: (final) => show({ ...final, session: file.name }),
    onProgress: ({ sent, done, length }) => {
      const percent = (part) => `${Math.round(100 * part)} %`;
      $("job-text").textContent =
        sent < 1 ? `Sending ${file.name}: ${percent(sent)}` : `${file.name}: ${!done ? "listening" : length ? `${time(done)} of ${time(length)}` : time(done)}`;
      if (sent < 1 || (done && length)) $("job-progress").value = sent < 1 ? sent : Math.min(1, done / length);
      else $("job-progress").removeAttribute("value"); // it moves, and says no more
    },
  });
  $("job-text").textContent = file.name;
  showState();
  try {
    $("empty").textContent = (await job.finished) ? "Nothing was said." : "Cancelled.";
  } catch (error) {
    $("empty").textContent = "";
    showMessage(error.message, { asked: true });
  }
  job = null;
  aside = ["ended", file.name];
  showState();
  if (document.activeElement === document.body) main.focus(); // the button to cancel it is gone
}

$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  transcribeFile($("file").files[0]);
  $("file").value = "";
});
$("job-cancel").addEventListener("click", () => job.cancel());

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
  if (microphone || job) {
    showMessage("Stop what is being captioned first.", { asked: true });
    return;
  }
  if (live) {
    if (aside) backToLive();
    return;
  }
  leaveLive(["ended", title], "One moment…");
  const opened = transcript;
  let failure = "";
  try {
    const response = await ask(new URL(`v1/sessions/${encodeURIComponent(id)}.jsonl`, base), token);
    const text = await response.text();
    if (!response.ok) throw new Error(JSON.parse(text).error);
    const { audio = [] } = await (await ask(new URL(`v1/sessions/${encodeURIComponent(id)}`, base), token)).json();
    if (transcript === opened) view.plays = ({ start, end }) => audio.some(([from, to]) => from < end && to > start);
    for (const line of text.split("\n").filter(Boolean)) {
      const { ready } = opened.take(JSON.parse(line));
      if (ready && transcript === opened) showReady(ready);
    }
  } catch (error) {
    failure = `The session cannot be read: ${error.message}`;
  }
  if (transcript !== opened) return; // something else was chosen meanwhile
  view.open(opened, failure ? "" : "Nothing was said.");
  const found = seq && opened.entries.find((entry) => entry.seq === seq);
  if (opened.entries.length) view.goTo(found || opened.entries[0], Boolean(found)); // it is read from its beginning
  main.focus({ preventScroll: true });
  showMessage(failure, { asked: true });
}

const loadSessions = listSessions({ url: base, token: () => token, onOpen: openPast });

// --- the token -------------------------------------------------------------------------------------------------------

function showTokenForm(shown) {
  $("token-form").hidden = !shown;
  $("token-text").textContent = token ? "This token is wrong, revoked or expired." : "This daemon asks for a token.";
  $("empty").hidden = shown || $("finals").childElementCount > 0 || transcript.partial !== null;
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = keepToken($("token").value);
  $("token").value = "";
  showTokenForm(false);
  listener?.retry();
});

// --- tools -----------------------------------------------------------------------------------------------------------

function remember(key, value, storage = "localStorage") {
  try {
    window[storage].setItem(key, value);
  } catch {
    // a browser that keeps nothing still shows captions
  }
}

function recall(key, storage = "localStorage") {
  try {
    return window[storage].getItem(key);
  } catch {
    return null;
  }
}

for (const button of document.querySelectorAll("[data-opens]")) {
  const dialog = $(button.dataset.opens);
  button.addEventListener("click", () => {
    dialog.returnValue = "";
    dialog.showModal();
    if (dialog.id === "sessions") loadSessions();
  });
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside it
}

let scale = Number(recall("text-scale")) || 1;

function setScale(step) {
  const next = step > 0 ? TEXT_SCALES.find((s) => s > scale) : TEXT_SCALES.filter((s) => s < scale).at(-1);
  scale = step ? (next ?? scale) : scale;
  document.documentElement.style.setProperty("--text-scale", scale);
  $("size").textContent = `${Math.round(100 * scale)} %`;
  $("smaller").disabled = scale <= TEXT_SCALES[0];
  $("larger").disabled = scale >= TEXT_SCALES.at(-1);
  if (step) remember("text-scale", scale);
  view.follow();
}

$("smaller").addEventListener("click", () => setScale(-1));
$("larger").addEventListener("click", () => setScale(+1));

// Each choice is an attribute of the page, which the style sheet heeds: data-theme, data-font, data-width, data-times, ...
for (const control of $("display").querySelectorAll("[name]")) {
  const { name, type } = control;
  const apply = (value) => {
    if (value) document.documentElement.dataset[name] = value;
    else delete document.documentElement.dataset[name];
    view.follow();
  };
  const kept = recall(name) ?? "";
  if (type === "checkbox") control.checked = Boolean(kept);
  else if ([...control.options].some(({ value }) => value === kept)) control.value = kept;
  apply(kept);
  control.addEventListener("change", () => {
    const value = type === "checkbox" ? (control.checked ? "on" : "") : control.value;
    remember(name, value);
    apply(value);
    if (name === "doubts") view.open(transcript);
  });
}

$("save").addEventListener("close", async () => {
  const format = $("save").returnValue;
  const times = Boolean(document.documentElement.dataset.times);
  if (format === "copy") {
    await copy(asText(transcript.saved(), { times }));
  } else if (format in FORMATS) {
    const { type, write } = FORMATS[format];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([write(transcript.saved(), { times })], { type: `${type};charset=utf-8` }));
    link.download = `transcript-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
});

setScale(0);
connect();
