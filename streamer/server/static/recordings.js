// A file on its way to text: sent, and read segment by segment. Fetch does not tell how much is sent; this does.

// Transcribe a file. `onProgress` is given {sent} from 0 to 1, then {done} seconds of its {length}, which is 0 where the
// browser cannot tell; `onFinal` each final. Returns {finished, cancel()}: a promise of whether all is done, which fails with
// what went wrong.
export function transcribe({ url, token, file, onProgress, onFinal }) {
  const request = new XMLHttpRequest();
  const finished = new Promise((resolve, reject) => {
    let [done, length] = [0, 0];
    lengthOf(file).then((seconds) => {
      length = seconds;
      if (done) onProgress({ done, length });
    });
    let read = 0; // characters of the answer
    const readOn = () => {
      if (request.status !== 200) return;
      for (let end; (end = request.responseText.indexOf("\n\n", read)) >= 0; read = end + 2) {
        const data = request.responseText.slice(read, end).replace(/^data: /, "");
        const event = data === "[DONE]" ? {} : JSON.parse(data);
        if (event.error) reject(new Error(event.error.message));
        if (!event.final) continue;
        onFinal(event.final);
        done = event.final.end;
        onProgress({ done, length });
      }
    };
    request.upload.onprogress = ({ loaded, total }) => onProgress({ sent: loaded / total });
    request.onprogress = readOn;
    request.onload = () => {
      readOn();
      if (request.status === 200) resolve(true);
      else reject(new Error(messageOf(request)));
    };
    request.onerror = () => reject(new Error("the connection to the daemon broke"));
    request.onabort = () => resolve(false);
  });
  const form = new FormData();
  form.append("stream", "true");
  form.append("response_format", "verbose_json");
  form.append("file", file);
  request.open("POST", new URL("v1/audio/transcriptions", url));
  if (token) request.setRequestHeader("Authorization", `Bearer ${token}`);
  request.send(form);
  return { finished, cancel: () => request.abort() };
}

function messageOf(request) {
  try {
    const { error } = JSON.parse(request.responseText);
    return error.message ?? error;
  } catch {
    return `the daemon answered ${request.status}`;
  }
}

// Seconds of audio in a file, 0 where this browser does not play it.
function lengthOf(file) {
  const sound = new Audio();
  const address = URL.createObjectURL(file);
  return new Promise((resolve) => {
    sound.onloadedmetadata = () => resolve(Number.isFinite(sound.duration) ? sound.duration : 0);
    sound.onerror = () => resolve(0);
    sound.preload = "metadata";
    sound.src = address;
  }).finally(() => URL.revokeObjectURL(address));
}
