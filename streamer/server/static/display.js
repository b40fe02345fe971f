// How the text looks, what is saved of it, and the dialogs for both: choices of this browser, not of what is shown.

import { copy } from "./clipboard.js";
import { FORMATS, asText } from "./formats.js";

const TEXT_SCALES = [0.6, 0.75, 0.9, 1, 1.2, 1.4, 1.7, 2, 2.5];

const $ = (id) => document.getElementById(id);

export function remember(key, value, storage = "localStorage") {
  try {
    window[storage].setItem(key, value);
  } catch {
    // a browser that keeps nothing still shows captions
  }
}

export function recall(key, storage = "localStorage") {
  try {
    return window[storage].getItem(key);
  } catch {
    return null;
  }
}

// Set the dialogs up. `onOpen` is given the name of one that opens, `onChange` that of a choice; `saved` returns the entries of
// the transcript.
export function setUpDisplay({ onOpen, onChange, saved }) {
  for (const button of document.querySelectorAll("[data-opens]")) {
    const dialog = $(button.dataset.opens);
    button.addEventListener("click", () => {
      dialog.returnValue = "";
      dialog.showModal();
      onOpen(dialog.id);
    });
    dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside it
  }

  let scale = Number(recall("text-scale")) || 1;
  const setScale = (step) => {
    const next = step > 0 ? TEXT_SCALES.find((s) => s > scale) : TEXT_SCALES.filter((s) => s < scale).at(-1);
    scale = step ? (next ?? scale) : scale;
    document.documentElement.style.setProperty("--text-scale", scale);
    $("size").textContent = `${Math.round(100 * scale)} %`;
    $("smaller").disabled = scale <= TEXT_SCALES[0];
    $("larger").disabled = scale >= TEXT_SCALES.at(-1);
    if (step) remember("text-scale", scale);
    onChange("scale");
  };
  $("smaller").addEventListener("click", () => setScale(-1));
  $("larger").addEventListener("click", () => setScale(+1));
  setScale(0);

  // Each choice is an attribute of the page, which the style sheet heeds: data-theme, data-font, data-width, data-times, ...
  for (const control of $("display").querySelectorAll("[name]")) {
    const { name, type } = control;
    const apply = (value) => {
      if (value) document.documentElement.dataset[name] = value;
      else delete document.documentElement.dataset[name];
      onChange(name);
    };
    const kept = recall(name) ?? "";
    if (type === "checkbox") control.checked = Boolean(kept);
    else if ([...control.options].some(({ value }) => value === kept)) control.value = kept;
    apply(kept);
    control.addEventListener("change", () => {
      const value = type === "checkbox" ? (control.checked ? "on" : "") : control.value;
      remember(name, value);
      apply(value);
    });
  }

  $("save").addEventListener("close", async () => {
    const format = $("save").returnValue;
    const times = Boolean(document.documentElement.dataset.times);
    if (format === "copy") {
      await copy(asText(saved(), { times }));
    } else if (format in FORMATS) {
      const { type, write } = FORMATS[format];
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([write(saved(), { times })], { type: `${type};charset=utf-8` }));
      link.download = `transcript-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.${format}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }
  });
}
