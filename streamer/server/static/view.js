// A transcript on the page: its newest entries, the line that is being said, and the search in it.

import { time } from "./formats.js";

const SHOWN = 500; // entries on the page; earlier ones on request
const NEAR_BOTTOM_PX = 60; // this close to the bottom, the page follows
const N_COLOURS = 6; // for speakers
const CODES = { jw: "jv" }; // Whisper's codes that are not BCP 47's

const $ = (id) => document.getElementById(id);

export class View {
  #main = $("captions");
  #finals = $("finals");
  #following = true; // whether the page keeps to the bottom
  #frame = 0; // the one in which the page follows next
  #first = 0; // number of the oldest entry on the page
  #speakers = []; // in the order in which they spoke first, for their colours
  #transcript;
  #hits = []; // entries with what is searched for
  #hit = -1; // which of them is being looked at
  #plays = () => false; // whether an entry can be played
  onPlay = () => {};

  constructor(transcript) {
    this.open(transcript);
    this.#main.addEventListener("scroll", () => {
      if (this.#frame) return; // there is text below that nobody could see yet
      this.#following = this.#main.scrollHeight - this.#main.scrollTop - this.#main.clientHeight < NEAR_BOTTOM_PX;
      $("jump").hidden = this.#following;
      this.#hideCutLine();
    }, { passive: true });
    new ResizeObserver(() => this.follow()).observe(this.#main);
    $("jump").addEventListener("click", () => {
      this.#following = true;
      this.follow();
      this.#main.focus({ preventScroll: true });
    });
    $("earlier").addEventListener("click", () => this.#reveal(this.#first - SHOWN));
    $("find").addEventListener("click", () => this.#openSearch($("search").hidden));
    $("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#go(event.submitter === $("later") ? 1 : -1);
    });
    $("query").addEventListener("input", () => this.#search());
    $("search").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#openSearch(false);
      if (event.key === "Enter" && event.shiftKey) {
        event.preventDefault();
        this.#go(1);
      }
    });
  }

  // Show another transcript, from its newest entries on; `plays` says which of them can be played.
  open(transcript, plays = this.#plays) {
    this.#transcript = transcript;
    this.#plays = plays;
    this.#following = true;
    this.#speakers = [];
    this.#finals.replaceChildren();
    this.#first = transcript.nEntries;
    this.#reveal(this.#first - SHOWN);
    this.showLive();
    if (!$("search").hidden) this.#search();
    this.follow();
  }

  add(entry) {
    this.#finals.append(this.#paragraph(entry));
    while (this.#finals.childElementCount > SHOWN && (this.#following || this.#first < this.#oldest())) {
      this.#finals.firstElementChild.remove();
      this.#first += 1;
    }
    $("earlier").hidden = this.#first <= this.#oldest();
    if (!$("search").hidden) this.#search();
  }

  // Show an entry as it is now, where it is on the page.
  change(entry) {
    const before = this.#finals.children[entry.number - this.#first];
    if (entry.number < this.#first || !before) return;
    const after = this.#paragraph(entry);
    after.classList.toggle("current", before.classList.contains("current"));
    const focused = before.contains(document.activeElement) && document.activeElement.classList[0];
    before.replaceWith(after);
    if (focused) after.querySelector(`button.${focused}`)?.focus();
    if (!$("search").hidden) this.#search();
  }

  showLive() {
    const { partial, language } = this.#transcript;
    $("live").hidden = partial === null;
    if (partial === null) return;
    $("live").classList.toggle("begins", this.#transcript.partialBegins);
    $("live-when").textContent = time(partial.start);
    setLanguage($("live-text"), language);
    $("stable").textContent = partial.stable.trimStart();
    $("unstable").textContent = partial.stable ? partial.unstable : partial.unstable.trimStart();
  }

  // Once a frame: a replay of hours brings thousands of entries, and to lay each out takes milliseconds.
  follow() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      if (this.#following) this.#main.scrollTop = this.#main.scrollHeight;
      $("jump").hidden = this.#following || this.#main.scrollHeight <= this.#main.clientHeight;
      this.#hideCutLine();
    });
  }

  // Half a line at the top is read wrongly: it is hidden.
  #hideCutLine() {
    const { top } = this.#main.getBoundingClientRect();
    const crosses = (box) => box.top < top && box.bottom > top;
    const paragraph = [$("live"), ...[...this.#finals.children].reverse()].find((p) => crosses(p.getBoundingClientRect()));
    const range = document.createRange();
    if (paragraph) range.selectNodeContents(paragraph);
    const cut = Math.min(...[...range.getClientRects()].filter(crosses).map(({ bottom }) => bottom - top));
    this.#main.style.setProperty("--cut", Number.isFinite(cut) ? `${cut}px` : "");
  }

  // Bring an entry before the reader's eyes; `marked`: as what was looked for.
  goTo(entry, marked = true) {
    this.#following = false;
    this.#reveal(entry.number - 20);
    this.#finals.querySelector(".current")?.classList.remove("current");
    const paragraph = this.#finals.children[entry.number - this.#first];
    paragraph.classList.toggle("current", marked);
    paragraph.scrollIntoView({ block: "center" });
  }

  #oldest() {
    return this.#transcript.nEntries - this.#transcript.entries.length;
  }

  // Put earlier entries on the page; what is being read stays where it is.
  #reveal(number) {
    const oldest = this.#oldest();
    const from = Math.max(oldest, number);
    const below = this.#main.scrollHeight - this.#main.scrollTop;
    if (from < this.#first) {
      const entries = this.#transcript.entries.slice(from - oldest, this.#first - oldest);
      this.#finals.prepend(...entries.map((entry) => this.#paragraph(entry)));
      this.#first = from;
      this.#main.scrollTop = this.#main.scrollHeight - below;
      this.#highlight();
    }
    $("earlier").hidden = this.#first <= oldest;
  }

  #paragraph(entry) {
    const paragraph = document.createElement("p");
    if (entry.kind !== "final") {
      paragraph.className = `mark ${entry.kind}`;
      paragraph.append(element("span", "text", entry.text));
      return paragraph;
    }
    paragraph.classList.toggle("begins", entry.begins);
    if (entry.begins) paragraph.append(element("span", "pause"));
    paragraph.append(element("time", "when", time(entry.start)));
    // Few unless all are asked for: some screen readers stop at each of them.
    const doubts = document.documentElement.dataset.doubts ? entry.doubts : entry.doubts.filter(([, , level]) => level === 2);
    const marks = [...doubts.map(([from, to, level]) => [from, to, `doubt${level}`]), ...entry.changes.map((place) => [...place, "changed"])];
    paragraph.append(...entry.runs.flatMap((run) => [" ", this.#run(entry, run, marks)])); // copied with its spaces
    if (this.#plays(entry) && !entry.silent) paragraph.querySelector(".text").prepend(this.#playButton(entry));
    if (entry.translation) paragraph.append(foreign("translation", entry.translation));
    if (entry.first !== null) this.#addFirst(paragraph, entry);
    return paragraph;
  }

  #playButton(entry) {
    const button = element("button", "play");
    button.type = "button";
    button.title = entry.playing ? "Stop" : "Play";
    button.setAttribute("aria-label", `${button.title} what was said at ${time(entry.start)}`);
    button.classList.toggle("playing", Boolean(entry.playing));
    button.append($("play-mark").content.cloneNode(true));
    button.addEventListener("click", () => this.onPlay(entry));
    return button;
  }

  // What one speaker says of an entry.
  #run({ text: whole, language }, { speaker, turn, from, to }, marks) {
    const run = element("span", turn && speaker ? "run turn" : "run");
    if (speaker) {
      if (!this.#speakers.includes(speaker)) this.#speakers.push(speaker);
      run.dataset.speaker = this.#speakers.indexOf(speaker) % N_COLOURS;
      if (turn) run.append(element("span", "who", speaker));
    }
    const text = foreign("text", { text: "", language });
    const cuts = marks.flatMap(([first, last]) => [first, last]).filter((cut) => cut > from && cut < to);
    const places = [...new Set([from, ...cuts, to])].sort((a, b) => a - b);
    for (const [i, end] of places.slice(1).entries()) {
      const classes = marks.filter(([first, last]) => first <= places[i] && last >= end).map(([, , name]) => name);
      const part = whole.slice(places[i], end);
      text.append(classes.length ? element("span", classes.join(" "), part) : part);
    }
    run.append(text);
    return run;
  }

  // What was written first, on request.
  #addFirst(paragraph, entry) {
    const first = element("span", "first", "At first: ");
    const button = element("button", "revised");
    first.append(foreign("", { text: entry.first, language: entry.language }));
    first.id = `first-${entry.number}`;
    button.type = "button";
    button.title = "What was written first";
    button.append($("pencil").content.cloneNode(true));
    button.setAttribute("aria-label", "Corrected: show what was written first");
    button.setAttribute("aria-controls", first.id);
    const open = (opened) => {
      first.hidden = !opened;
      button.setAttribute("aria-expanded", String(opened));
      entry.opened = opened;
    };
    button.addEventListener("click", () => {
      open(!entry.opened);
      this.follow();
    });
    open(Boolean(entry.opened));
    [...paragraph.querySelectorAll(".text")].at(-1).append(button);
    paragraph.append(first);
  }

  // --- the search ---

  #openSearch(shown) {
    $("search").hidden = !shown;
    $("find").setAttribute("aria-expanded", String(shown));
    $("query").value = "";
    this.#search();
    (shown ? $("query") : $("find")).focus();
    if (!shown) this.#finals.querySelector(".current")?.classList.remove("current");
  }

  #search() {
    const query = $("query").value.trim().toLowerCase();
    const before = this.#hits[this.#hit];
    this.#hits = query ? this.#transcript.entries.filter(({ text }) => text.toLowerCase().includes(query)) : [];
    this.#hit = this.#hits.indexOf(before);
    this.#showHit(query);
    this.#highlight();
  }

  // Go to a later hit, or an earlier one; at first, to the newest.
  #go(step) {
    if (!this.#hits.length) return;
    const n = this.#hits.length;
    this.#hit = this.#hit < 0 ? n - 1 : (this.#hit + step + n) % n;
    this.goTo(this.#hits[this.#hit]);
    this.#showHit(true);
  }

  #showHit(query) {
    const n = this.#hits.length;
    $("hits").textContent = !query ? "" : !n ? "not found" : this.#hit < 0 ? `${n} found` : `${this.#hit + 1} of ${n}`;
    $("previous").disabled = $("later").disabled = !n;
  }

  #highlight() {
    if (!CSS.highlights) return; // the entry that is looked at is marked all the same
    const query = $("query").value.trim().toLowerCase();
    const ranges = query ? [...this.#finals.querySelectorAll(".text")].flatMap((text) => rangesOf(text, query)) : [];
    CSS.highlights.set("found", new Highlight(...ranges));
  }
}

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function foreign(className, { text, language }) {
  const made = element("span", className, text);
  setLanguage(made, language);
  return made;
}

// Whoever reads a text aloud, breaks its lines or sets its type has to know its language and direction.
export function setLanguage(element, language) {
  element.lang = CODES[language] ?? language;
  element.dir = "auto";
}

// Where a text is found in an element, whose text may lie in several nodes.
function rangesOf(element, query) {
  const text = element.textContent.toLowerCase();
  const ranges = [];
  for (let from = text.indexOf(query); from >= 0; from = text.indexOf(query, from + query.length)) {
    const range = document.createRange();
    range.setStart(...placeIn(element, from));
    range.setEnd(...placeIn(element, from + query.length));
    ranges.push(range);
  }
  return ranges;
}

function placeIn(element, offset) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let node = walker.nextNode();
  while (offset > node.length && walker.nextNode()) {
    offset -= node.length;
    node = walker.currentNode;
  }
  return [node, Math.min(offset, node.length)];
}
