// This browser's microphone.

// Open it. Returns {sampleRate, listen, mute, stop, release}; fails with a sentence for the user.
export async function openMicrophone(base) {
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) throw new Error(unavailable());
  let sound = null;
  let context = null;
  let node = null;

  function release() {
    sound?.getTracks().forEach((track) => {
      track.onended = null;
      track.stop();
    });
    if (node) node.port.onmessage = null; // audio may be on its way, and there is no stream for it
    if (context && context.state !== "closed") context.close();
  }

  try {
    sound = await navigator.mediaDevices.getUserMedia({
      audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true },
    });
    context = new AudioContext();
    await context.audioWorklet.addModule(new URL("microphone.js", base));
    await context.resume();
  } catch (error) {
    release();
    throw new Error(refusal(error));
  }
  return {
    sampleRate: context.sampleRate,
    // `onAudio` is given s16le and its peak, 0 to 1; `onStopped` is called behind the last, `onLost` where it is unplugged.
    listen({ onAudio, onStopped, onLost }) {
      node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
      node.port.onmessage = ({ data }) => (data ? onAudio(data.audio, data.peak) : onStopped());
      context.createMediaStreamSource(sound).connect(node);
      sound.getAudioTracks()[0].onended = onLost;
    },
    // Give silence instead of sound, or sound again.
    mute(muted) {
      sound.getAudioTracks()[0].enabled = !muted;
    },
    stop: () => node.port.postMessage("stop"), // it answers with what is left, then null
    release,
  };
}

function unavailable() {
  if (window.isSecureContext) return "This browser gives pages no access to a microphone. A current Firefox, Chrome, Edge or Safari does.";
  return `Browsers give a page the microphone only at a secure address. Open http://localhost:${location.port || 80}/ on the machine that runs the daemon, or have it started with server.tls: self-signed.`;
}

function refusal({ name, message }) {
  switch (name) {
    case "NotAllowedError":
      return "The microphone was refused. Allow it for this page in the browser's address bar, then try again.";
    case "NotFoundError":
      return "This device has no microphone. Connect one, then try again.";
    case "NotReadableError":
      return "The microphone is in use by another program. Close that, then try again.";
    default:
      return `The microphone cannot be opened (${name}: ${message}).`;
  }
}
