// The captions page: shows the daemon's captions, or those of this browser's microphone.

import { MAX_ENTRIES, Transcript } from "./transcript.js";

const RETRY_MS = [500, 1000, 2000, 4000, 8000, 15000]; // from one attempt to connect to the next
const TEXT_SCALES = [0.6, 0.75, 0.9, 1, 1.2, 1.4, 1.7, 2, 2.5];
const NEAR_BOTTOM_PX = 60; // this close to the bottom, the page follows
const MAX_UNSENT_BYTES = 8 * 2 ** 20; // microphone audio that the daemon has not taken; over a minute of it

const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token") ?? "";
const base = new URL(".", location.href);

const main = $("captions");
let transcript = new Transcript(); // what is on the page
let following = true; // whether the page keeps to the bottom
let socket = null; // the connection to the daemon's captions
let attempt = 0; // connections in a row that failed
let retryTimer = 0;
let paused = false; // whether the daemon's own input is
let microphone = null; // the running capture: {socket, stream, context, node, paused, stopping}

// --- showing ---------------------------------------------------------------------------------------------------------

function show(event) {
  const shown = transcript.take(event);
  if (shown === null) return;
  if (shown.ready) showReady(shown.ready);
  if (shown.add) addEntry(shown.add);
  if (shown.live) showLive();
  if (event.type === "speech") showState();
  if (event.type === "gap" && event.reason === "paused" && !microphone) command(); // somebody else may have done it
  follow();
}

function showReady(event) {
  const devices = [...new Set(Object.values(event.device))].join(" + ");
  $("details").textContent = [event.model, devices, event.language].filter(Boolean).join(" · ");
  $("details").title = Object.entries(event.device).map(([stage, device]) => `${stage}: ${device}`).join(", ");
}

function addEntry(entry) {
  const paragraph = document.createElement("p");
  if (entry.kind === "final") {
    paragraph.textContent = entry.text;
  } else {
    paragraph.className = `mark ${entry.kind}`;
    const label = document.createElement("span");
    label.textContent = entry.text;
    paragraph.append(label);
  }
  const finals = $("finals");
  finals.append(paragraph);
  while (finals.childElementCount > MAX_ENTRIES) {
    const height = finals.scrollHeight;
    finals.firstElementChild.remove();
    if (!following) main.scrollTop -= height - finals.scrollHeight; // what is being read stays where it is
  }
  $("empty").hidden = true;
}

function showLive() {
  const { partial } = transcript;
  $("live").hidden = partial === null;
  $("stable").textContent = partial ? partial.stable.trimStart() : "";
  $("unstable").textContent = partial ? (partial.stable ? partial.unstable : partial.unstable.trimStart()) : "";
  if (partial) $("empty").hidden = true;
}

function showState(state, text) {
  if (state === undefined) {
    if (microphone?.stopping) [state, text] = ["recording", "Finishing…"];
    else if (microphone) [state, text] = microphone.paused ? ["paused", "Paused"] : ["recording", "Your microphone"];
    else if (socket?.readyState !== WebSocket.OPEN) return;
    else if (paused) [state, text] = ["paused", "Paused"];
    else [state, text] = transcript.speaking ? ["speech", "Speech"] : ["live", "Live"];
  }
  showPause();
  $("status").dataset.state = state;
  if ($("status-text").textContent !== text) $("status-text").textContent = text;
}

function showPause() {
  const isPaused = microphone ? microphone.paused : paused;
  $("pause").hidden = microphone ? microphone.stopping : socket?.readyState !== WebSocket.OPEN || transcript.ended;
  $("pause").dataset.paused = isPaused;
  $("pause-text").textContent = isPaused ? "Resume" : "Pause";
}

function showMessage(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
}

function clear(placeholder) {
  transcript = new Transcript();
  $("finals").replaceChildren();
  $("empty").textContent = placeholder;
  $("empty").hidden = false;
  showLive();
}

function follow() {
  if (following) main.scrollTop = main.scrollHeight;
  $("jump").hidden = following;
}

main.addEventListener("scroll", () => {
  following = main.scrollHeight - main.scrollTop - main.clientHeight < NEAR_BOTTOM_PX;
  $("jump").hidden = following;
}, { passive: true });
new ResizeObserver(follow).observe(main);
$("jump").addEventListener("click", () => {
  following = true;
  follow();
  main.focus({ preventScroll: true });
});

// --- the daemon's captions -------------------------------------------------------------------------------------------

function connect() {
  clearTimeout(retryTimer);
  if (microphone || socket) return;
  if (!transcript.ended) showState("connecting", attempt ? "Reconnecting…" : "Connecting…");
  const connection = new WebSocket(transcript.url(base, token));
  socket = connection;
  let opened = false;
  connection.onopen = () => {
    opened = true;
    if (!transcript.ended) showState();
    command();
  };
  connection.onmessage = ({ data }) => {
    attempt = 0;
    show(JSON.parse(data));
  };
  connection.onclose = async ({ code }) => {
    if (socket !== connection) return;
    socket = null;
    if (transcript.ended && code === 1000) {
      showState("ended", "Ended");
      $("empty").textContent = "Nothing was said.";
      retryLater(RETRY_MS.at(-1)); // the daemon may be started again
      return;
    }
    const why = opened ? "" : await whyNot();
    if (microphone || socket) return;
    showState(why ? "failed" : "connecting", why || "Reconnecting…");
    retryLater(RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]);
    attempt += 1;
  };
}

function retryLater(ms) {
  clearTimeout(retryTimer);
  retryTimer = setTimeout(connect, ms);
}

// Tell the daemon what to do with its input ("pause", "resume"), or nothing; show how the input is then.
async function command(name) {
  try {
    const url = new URL(name ? `v1/input/${name}` : "v1/input", base);
    if (token) url.searchParams.set("token", token);
    const response = await fetch(url, { method: name ? "POST" : "GET", cache: "no-store" });
    const answer = await response.json();
    if (response.ok) paused = answer.paused;
    if (name) showMessage(response.ok ? "" : answer.error);
  } catch {
    if (name) showMessage("The daemon cannot be reached.");
  }
  if (!transcript.ended) showState();
}

// A browser does not tell a page why a WebSocket was refused; the same address asked over HTTP does.
async function whyNot() {
  try {
    const url = new URL(transcript.url(base, token));
    url.protocol = location.protocol;
    const response = await fetch(url, { cache: "no-store" });
    if (response.status === 404) {
      if (!transcript.session) $("empty").textContent = "The daemon has no input of its own. Caption your microphone below.";
      return "No input";
    }
    if (response.status === 401) return "Token required";
    if (response.status === 403) return "Not allowed";
    return "";
  } catch {
    return "No connection";
  }
}

window.addEventListener("online", () => {
  attempt = 0;
  connect();
});
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && !socket && !transcript.ended) connect();
});

// --- this browser's microphone ---------------------------------------------------------------------------------------

async function startMicrophone() {
  showMessage("");
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) {
    showMessage(
      window.isSecureContext
        ? "This browser gives pages no access to a microphone. A current Firefox, Chrome, Edge or Safari does."
        : `Browsers give a page the microphone only at a secure address. Open http://localhost:${location.port || 80}/ on the machine that runs the daemon, or put HTTPS in front of it.`,
    );
    return;
  }
  $("microphone").disabled = true;
  const capture = { socket: null, stream: null, context: null, node: null, paused: false, stopping: false };
  try {
    capture.stream = await navigator.mediaDevices.getUserMedia({
      audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true },
    });
    capture.context = new AudioContext();
    await capture.context.audioWorklet.addModule(new URL("microphone.js", base));
    await capture.context.resume();
  } catch (error) {
    release(capture);
    showMessage(refusal(error));
    return;
  } finally {
    $("microphone").disabled = false;
  }

  microphone = capture;
  socket?.close();
  socket = null;
  clearTimeout(retryTimer);
  clear("Listening to your microphone…");
  $("details").textContent = "";
  following = true;
  setPressed(true);
  showState();
  openStream(capture);
}

function openStream(capture) {
  const url = new URL("v1/stream", base);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.search = token ? new URLSearchParams({ token }).toString() : "";
  const connection = new WebSocket(url);
  capture.socket = connection;
  connection.onopen = () => {
    const { context, stream } = capture;
    connection.send(JSON.stringify({ type: "start", format: "s16le", sample_rate: context.sampleRate, channels: 1 }));
    capture.node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
    capture.node.port.onmessage = ({ data }) => passOn(capture, data);
    context.createMediaStreamSource(stream).connect(capture.node);
    stream.getAudioTracks()[0].onended = () => {
      showMessage("The microphone was disconnected.");
      stopMicrophone();
    };
    if (capture.paused) connection.send(JSON.stringify({ type: "pause" }));
    if (capture.stopping) finish(capture);
  };
  connection.onmessage = ({ data }) => show(JSON.parse(data));
  connection.onclose = ({ code, reason }) => {
    if (microphone !== capture) return;
    if (transcript.error) showMessage(transcript.error);
    else if (!transcript.ended) showMessage(reason || `The connection to the daemon was lost (code ${code}).`);
    release(capture);
    microphone = null;
    setPressed(false);
    showState("ended", "Microphone off");
    $("empty").textContent = "Nothing was said.";
    $("back").hidden = false;
  };
}

function passOn(capture, data) {
  const connection = capture.socket;
  if (connection.readyState !== WebSocket.OPEN) return;
  if (data === null) {
    connection.send(JSON.stringify({ type: "finish" }));
    release(capture);
    return;
  }
  if (connection.bufferedAmount > MAX_UNSENT_BYTES) {
    showMessage("The daemon cannot keep up with the microphone; captioning stops here.");
    stopMicrophone();
    return;
  }
  if (data.audio.byteLength) connection.send(data.audio);
  $("level").style.setProperty("--level", Math.min(1, Math.sqrt(data.peak)).toFixed(2));
}

function stopMicrophone() {
  const capture = microphone;
  if (!capture || capture.stopping) return;
  capture.stopping = true;
  $("microphone").disabled = true;
  showState();
  if (capture.socket.readyState === WebSocket.OPEN && capture.node) finish(capture);
}

function finish(capture) {
  capture.node.port.postMessage("stop"); // it answers with what is left, then null
}

function release(capture) {
  capture.stream?.getTracks().forEach((track) => {
    track.onended = null;
    track.stop();
  });
  if (capture.context && capture.context.state !== "closed") capture.context.close();
}

function setPressed(pressed) {
  $("microphone").setAttribute("aria-pressed", String(pressed));
  $("microphone").disabled = false;
  $("microphone-text").textContent = pressed ? "Stop captioning" : "Caption this browser's microphone";
  $("back").hidden = true;
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

$("microphone").addEventListener("click", () => (microphone ? stopMicrophone() : startMicrophone()));
$("pause").addEventListener("click", () => {
  const capture = microphone;
  if (!capture) {
    command(paused ? "resume" : "pause");
    return;
  }
  capture.paused = !capture.paused;
  if (capture.socket.readyState === WebSocket.OPEN) {
    capture.socket.send(JSON.stringify({ type: capture.paused ? "pause" : "resume" }));
  }
  showState();
});
$("back").addEventListener("click", () => {
  $("back").hidden = true;
  showMessage("");
  clear("Waiting for speech…");
  attempt = 0;
  connect();
});

// --- tools -----------------------------------------------------------------------------------------------------------

function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // a browser that keeps nothing still shows captions
  }
}

function recall(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

let scale = Number(recall("text-scale")) || 1;

function setScale(step) {
  const next = step > 0 ? TEXT_SCALES.find((s) => s > scale) : TEXT_SCALES.findLast((s) => s < scale);
  scale = step ? (next ?? scale) : scale;
  document.documentElement.style.setProperty("--text-scale", scale);
  $("smaller").disabled = scale <= TEXT_SCALES[0];
  $("larger").disabled = scale >= TEXT_SCALES.at(-1);
  if (step) remember("text-scale", scale);
  follow();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme === "light" ? "light" : "dark";
}

$("smaller").addEventListener("click", () => setScale(-1));
$("larger").addEventListener("click", () => setScale(+1));
$("theme").addEventListener("click", () => {
  setTheme(document.documentElement.dataset.theme === "light" ? "dark" : "light");
  remember("theme", document.documentElement.dataset.theme);
});

$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(transcript.asText());
  } catch {
    copyByHand(transcript.asText()); // no clipboard at an insecure address
  }
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1500);
});

function copyByHand(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

$("download").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([transcript.asText()], { type: "text/plain;charset=utf-8" }));
  link.download = `transcript-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.txt`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
});

setTheme(recall("theme"));
setScale(0);
connect();
