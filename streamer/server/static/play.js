// What was said, played again: one line at a time.

import { ask } from "./client.js";

export class Player {
  #sound = null; // that is being fetched or played
  #entry = null; // whose it is

  // `show` is given an entry whose `playing` or `silent` has changed, `fail` what went wrong.
  constructor({ url, token, show, fail }) {
    Object.assign(this, { url, token, show, fail });
  }

  // Play an entry, or stop it if it is being played.
  async toggle(entry) {
    const again = entry === this.#entry;
    this.stop();
    if (again) return;
    const sound = new Audio(); // of its own: an earlier one may still wait for an answer
    sound.onended = () => this.stop();
    this.#sound = sound;
    this.#entry = entry;
    entry.playing = true;
    this.show(entry);
    try {
      const response = await ask(new URL(`v1/sessions/${encodeURIComponent(entry.session)}/${entry.seq}.wav`, this.url), this.token());
      entry.silent = response.status === 404;
      if (!response.ok) throw new Error((await response.json()).error);
      const audio = await response.blob();
      if (this.#sound !== sound) return;
      sound.src = URL.createObjectURL(audio);
      await sound.play();
    } catch (error) {
      if (this.#sound !== sound) return;
      this.stop();
      this.fail(`This line cannot be played: ${error.message}`);
    }
  }

  stop() {
    if (!this.#sound) return;
    const entry = this.#entry;
    this.#sound.pause();
    URL.revokeObjectURL(this.#sound.src);
    this.#sound = this.#entry = null;
    entry.playing = false;
    this.show(entry);
  }
}
