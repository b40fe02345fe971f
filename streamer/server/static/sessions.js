// The sessions that the daemon has kept: a list of them, and a search in all.

import { ask } from "./client.js";
import { time } from "./formats.js";

const TYPING_MS = 250; // somebody who types is not answered letter by letter

const $ = (id) => document.getElementById(id);

// Fill the dialog. `onOpen` is given {id, title, live, seq}: `live` where it is the one that is open now, `seq` that of the
// final which was found, where one was. Returns what brings the list up to date.
export function listSessions({ url, token, onOpen }) {
  let turn = 0; // of several questions the last counts
  let timer = 0;

  async function load(before) {
    const mine = ++turn;
    const query = $("sessions-query").value.trim();
    const address = new URL("v1/sessions", url);
    if (query) address.searchParams.set("q", query);
    if (before) address.searchParams.set("before", before);
    let answer;
    try {
      const response = await ask(address, token());
      answer = await response.json();
    } catch {
      answer = { error: "The daemon cannot be reached." };
    }
    if (mine !== turn) return;
    const items = (answer.sessions ?? answer.hits ?? []).map(answer.hits ? hitItem : sessionItem);
    if (before) $("sessions-list").append(...items);
    else $("sessions-list").replaceChildren(...items);
    $("sessions-more").hidden = !answer.before;
    $("sessions-more").onclick = () => load(answer.before);
    $("sessions-text").textContent = answer.error ?? (items.length || before ? "" : query ? "Nothing was found." : "Nothing is kept yet.");
    $("sessions-query").disabled = Boolean(answer.error) && !query;
  }

  function sessionItem({ session, source, model, language, started, ended, end, own }) {
    const title = when(started);
    const lasted = end ? time(end) : "";
    const about = [own && !ended && "now", source, lasted, language && language !== "auto" && languageName(language), model];
    return item([title], about.filter(Boolean).join(" · "), { id: session, title, live: own && !ended });
  }

  function hitItem({ session, seq, time: at, snippet }) {
    const parts = snippet.split(/[\x02\x03]/).map((text, i) => {
      if (i % 2 === 0) return text;
      const mark = document.createElement("mark");
      mark.textContent = text;
      return mark;
    });
    return item(parts, when(at), { id: session, title: when(at), seq });
  }

  function item(title, about, chosen) {
    const [button, first, second] = ["button", "span", "span"].map((name) => document.createElement(name));
    button.type = "button";
    first.append(...title);
    first.dir = "auto";
    second.className = "about";
    second.textContent = about;
    button.append(first, second);
    button.onclick = () => {
      $("sessions").close();
      onOpen(chosen);
    };
    const entry = document.createElement("li");
    entry.append(button);
    return entry;
  }

  $("sessions-query").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(load, TYPING_MS);
  });
  return load;
}

function when(utc) {
  return new Date(utc).toLocaleString(undefined, { weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}

function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}
