// @ts-check
/** A container's log, followed. */

import { isAborted, lines } from "./api.js";
import { h, onFrame, replace } from "./dom.js";

/** What is kept; older lines go. */
const MOST = 5000;

/** @param {HTMLElement} place @param {any} pod @param {AbortSignal} signal */
export function logsPanel(place, pod, signal) {
  const { name, namespace } = pod.metadata;
  const containers = [...(pod.spec.initContainers ?? []), ...pod.spec.containers].map((one) => one.name);
  const chosen = h("select", { id: "container", onchange: () => begin() }, containers.map((one) => h("option", { value: one }, one)));
  chosen.value = pod.spec.containers[0]?.name ?? containers[0];
  const filter = h("input", { type: "search", placeholder: "Filter…", "aria-label": "Filter lines", oninput: () => fill() });
  const follows = h("input", { type: "checkbox", id: "follow", checked: true });
  const before = h("input", { type: "checkbox", id: "previous", onchange: () => begin() });
  const wraps = h("input", { type: "checkbox", id: "wrap", checked: true, onchange: () => text.classList.toggle("wrap", wraps.checked) });
  const text = h("pre.log.wrap", { tabindex: 0, role: "log", "aria-live": "off", "aria-label": `Log of ${name}` });
  const state = h("span.muted", { role: "status" });
  replace(place,
    h("div.tools", null, h("label", { for: "container" }, "Container"), chosen, filter,
      h("label", null, follows, " Follow"), h("label", null, wraps, " Wrap"), h("label", null, before, " Previous container"), state),
    text);
  /** @type {string[]} */
  let all = [];
  /** @type {string[]} */
  let fresh = [];
  let reading = new AbortController();
  signal.addEventListener("abort", () => reading.abort());
  const isWanted = (/** @type {string} */ line) => line.toLowerCase().includes(filter.value.toLowerCase());

  function fill() {
    fresh = [];
    replace(text, all.filter(isWanted).map((line) => line + "\n").join(""));
    if (follows.checked) text.scrollTop = text.scrollHeight;
  }

  const grow = onFrame(() => {
    const shown = fresh.filter(isWanted);
    fresh = [];
    if (shown.length) text.append(shown.map((line) => line + "\n").join(""));
    if (all.length > MOST * 1.2) {
      all = all.slice(-MOST);
      fill();
    }
    if (follows.checked) text.scrollTop = text.scrollHeight;
  });

  async function begin() {
    reading.abort();
    const mine = (reading = new AbortController());
    all = [];
    fill();
    replace(state, "loading…");
    const query = new URLSearchParams({ container: chosen.value, tailLines: "1000", ...(before.checked ? { previous: "true" } : { follow: "true" }) });
    try {
      for await (const line of lines(`/api/v1/namespaces/${namespace}/pods/${name}/log?${query}`, mine.signal, { accept: "text/plain, application/json" })) {
        all.push(line);
        fresh.push(line);
        grow();
        if (all.length === 1) replace(state, before.checked ? "" : "live");
      }
      replace(state, "ended");
    } catch (error) {
      if (!isAborted(error)) replace(state, /** @type {Error} */ (error).message);
    }
  }
  begin();
}
