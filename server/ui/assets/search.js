// @ts-check
/** Search over everything: kinds, and the names and labels of all objects that one may list. */

import { metadataList } from "./api.js";
import { h, replace } from "./dom.js";
import { kinds, listHref, listPath, objectHref } from "./kinds.js";
import { listable } from "./rights.js";

/** Names are asked for again after this. */
const FRESH = 30000;
const SHOWN = 60;
/** Lists at a time. */
const TOGETHER = 6;
/** Nobody searches these, and there are many. */
const SKIPPED = new Set(["events", "events.events.k8s.io", "leases.coordination.k8s.io", "nodes.metrics.k8s.io", "pods.metrics.k8s.io", "componentstatuses"]);

/** @typedef {{ title: string, kind: string, href: string, text: string }} Entry */

/** @typedef {{ entries: Entry[], at: number, done: boolean }} Index */

/** @type {Index} */
let index = { entries: [], at: 0, done: false };

/** @param {() => void} grown */
async function gather(grown) {
  if (Date.now() - index.at < FRESH) return;
  /** @type {Index} */
  const mine = { entries: [], at: Date.now(), done: false };
  index = mine;
  const namespace = localStorage.getItem("ferry.namespace") ?? "";
  const [all, isListable] = await Promise.all([kinds(), listable(namespace)]);
  for (const kind of all.filter(isListable)) {
    mine.entries.push({ title: kind.kind, kind: kind.group || "core", href: listHref(kind), text: `${kind.kind} ${kind.resource} ${kind.short.join(" ")}`.toLowerCase() });
  }
  grown();
  const waiting = all.filter(isListable).filter((kind) => !SKIPPED.has(kind.resource + (kind.group && "." + kind.group)));
  const work = async () => {
    for (let kind = waiting.shift(); kind; kind = waiting.shift()) {
      // In all namespaces where one may; else in the chosen one.
      const read = (/** @type {string} */ where) => metadataList(listPath(/** @type {any} */ (kind), where), new AbortController().signal);
      const found = await read("").catch(() => (kind?.namespaced ? read(namespace || "default") : [])).catch(() => []);
      for (const { metadata } of found) {
        const labels = Object.entries(metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(" ");
        mine.entries.push({ title: (metadata.namespace ? metadata.namespace + "/" : "") + metadata.name, kind: kind.kind, href: objectHref(kind, metadata.namespace, metadata.name), text: `${kind.kind} ${metadata.namespace ?? ""}/${metadata.name} ${labels}`.toLowerCase() });
      }
      grown();
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, work));
  mine.done = true;
  grown();
}

/** @param {Entry} entry @param {string[]} words */
function rank(entry, words) {
  const name = entry.title.toLowerCase().split("/").pop() ?? "";
  return words.reduce((sum, word) => sum + (name === word ? 0 : name.startsWith(word) ? 1 : name.includes(word) ? 2 : 4), entry.href.startsWith("#/k/") ? -1 : 0);
}

export function openSearch() {
  if (document.getElementById("search-box")) return;
  const box = h("input", { id: "search-box", type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "search-results", "aria-label": "Search everything", placeholder: "Name, kind or label…", autocomplete: "off", oninput: () => draw() });
  const list = h("ul", { id: "search-results", role: "listbox", "aria-label": "Found" });
  const state = h("p.muted", { role: "status" });
  const dialog = h("dialog.palette", { "aria-label": "Search" }, box, list, state);
  let at = 0;
  /** @type {Entry[]} */
  let shown = [];
  const draw = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? index.entries.filter((entry) => words.every((/** @type {string} */ word) => entry.text.includes(word))) : [];
    shown = found.map((entry) => ({ entry, rank: rank(entry, words) })).sort((one, other) => one.rank - other.rank || one.entry.title.length - other.entry.title.length).slice(0, SHOWN).map((one) => one.entry);
    at = Math.min(at, Math.max(0, shown.length - 1));
    replace(list, shown.map((entry, number) => h("li", { role: "option", id: `found-${number}`, "aria-selected": String(number === at), onclick: () => go(entry) }, h("span", null, entry.title), h("small", null, entry.kind))));
    box.setAttribute("aria-activedescendant", shown.length ? `found-${at}` : "");
    list.children[at]?.scrollIntoView({ block: "nearest" });
    replace(state, words.length ? `${found.length.toLocaleString("en")} found` : `${index.entries.length.toLocaleString("en")} objects and kinds`, index.done ? "" : ", loading…");
  };
  const go = (/** @type {Entry} */ entry) => {
    dialog.close();
    location.hash = entry.href;
  };
  box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      at = Math.max(0, Math.min(shown.length - 1, at + step));
      draw();
    } else if (event.key === "Enter" && shown[at]) {
      event.preventDefault();
      go(shown[at]);
    }
  });
  dialog.addEventListener("click", (/** @type {Event} */ event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  box.focus();
  draw();
  gather(() => dialog.isConnected && draw()).catch((error) => replace(state, error.message));
}
