// What was said, played again: one line at a time.

import { ask } from "./client.js";

export class Player {
  #sound = new Audio();
  #entry = null; // that is being played

  // `show` is given an entry whose `playing` or `silent` has changed, `fail` what went wrong.
  constructor({ url, token, show, fail }) {
    Object.assign(this, { url, token, show, fail });
    this.#sound.onended = () => this.stop();
  }

  // Play an entry, or stop where it is being played.
  async toggle(entry) {
    const again = entry === this.#entry;
    this.stop();
    if (again) return;
    this.#entry = entry;
    entry.playing = true;
    this.show(entry);
    try {
      const response = await ask(new URL(`v1/sessions/${encodeURIComponent(entry.session)}/${entry.seq}.wav`, this.url), this.token());
      entry.silent = response.status === 404;
      if (!response.ok) throw new Error((await response.json()).error);
      const audio = await response.blob();
      if (this.#entry !== entry) return; // another was chosen meanwhile
      this.#sound.src = URL.createObjectURL(audio);
      await this.#sound.play();
    } catch (error) {
      if (this.#entry !== entry) return;
      this.stop();
      this.fail(`This line cannot be played: ${error.message}`);
    }
  }

  stop() {
    const entry = this.#entry;
    this.#entry = null;
    this.#sound.pause();
    URL.revokeObjectURL(this.#sound.src);
    if (!entry) return;
    entry.playing = false;
    this.show(entry);
  }
}
