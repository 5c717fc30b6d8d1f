// @ts-check
/** Why a pod has no node: node by node and plugin by plugin, from the scheduler's last attempt. */

import { Live, get, isAborted } from "./api.js";
import { badge, h, replace } from "./dom.js";
import { age, instant, tone } from "./format.js";
import { listPath, objectHref } from "./kinds.js";
import { mayTrace } from "./rights.js";

const POLL = 3000;
const NODES = { group: "", resource: "nodes" };

/** @param {import("./app.js").View} view */
export async function pendingView(view) {
  view.title("Pending pods");
  const traced = await mayTrace();
  const place = h("div");
  replace(view.main, h("header.page", null, h("div", null, h("h1", null, "Pending pods"), h("p.muted", null, "Pods that are not running yet, with the scheduler's result for each node."))), place);
  /** @type {Map<string, HTMLElement>} */
  const cards = new Map();
  const draw = view.throttle(() => {
    if (live.error) return replace(place, h("p.problem", { role: "alert" }, live.error.message));
    const pods = [...live.items.values()].sort((one, other) => one.metadata.creationTimestamp.localeCompare(other.metadata.creationTimestamp));
    for (const uid of cards.keys()) if (!live.items.has(uid)) cards.delete(uid);
    const shown = pods.slice(0, 100).map((pod) => {
      let card = cards.get(pod.metadata.uid);
      if (!card) {
        const panel = h("div");
        const isFirst = cards.size < 3;
        const details = h("details.card", { open: isFirst }, h("summary", null, `${pod.metadata.namespace}/${pod.metadata.name} `,
          badge(reasonOf(pod), "warn"), h("span.muted", null, ` for ${age(pod.metadata.creationTimestamp)}`)),
          h("p", null, h("a", { href: objectHref({ group: "", resource: "pods" }, pod.metadata.namespace, pod.metadata.name, "pending") }, `Open ${pod.metadata.name}`)), panel);
        const fill = () => pendingPanel(panel, live.items.get(pod.metadata.uid) ?? pod, traced, view.signal);
        if (isFirst) fill();
        else details.addEventListener("toggle", fill, { once: true });
        cards.set(pod.metadata.uid, (card = details));
      }
      return card;
    });
    replace(place, pods.length ? shown : h("p.muted", null, live.state === "loading" ? "loading…" : "No pod is pending."), pods.length > 100 ? h("p.muted", null, `and ${pods.length - 100} more`) : null);
  });
  const live = new Live(listPath({ group: "", version: "v1", resource: "pods", namespaced: true }, view.namespace), {
    query: "fieldSelector=" + encodeURIComponent("status.phase=Pending"), signal: view.signal, changed: draw,
  });
}

/** @param {any} pod @returns {any[]} */
const containersOf = (pod) => [...(pod.status?.initContainerStatuses ?? []), ...(pod.status?.containerStatuses ?? [])];

/** @param {any} pod */
function reasonOf(pod) {
  const scheduled = pod.status?.conditions?.find((/** @type {any} */ one) => one.type === "PodScheduled");
  if (scheduled?.status === "False") return scheduled.reason ?? "Unschedulable";
  if (!scheduled) return "not processed yet";
  const waiting = containersOf(pod).map((one) => one.state?.waiting?.reason).find(Boolean);
  return waiting ?? "starting";
}

/**
 * @param {HTMLElement} place @param {any} pod @param {boolean} traced whether the trace may be read @param {AbortSignal} signal
 */
export async function pendingPanel(place, pod, traced, signal) {
  const { namespace, name } = pod.metadata;
  const scheduled = pod.status?.conditions?.find((/** @type {any} */ one) => one.type === "PodScheduled");
  const message = scheduled?.status === "True" ? h("p", null, badge("scheduled", "good"), " on ", h("a", { href: objectHref(NODES, "", pod.spec.nodeName) }, pod.spec.nodeName), h("span.muted", null, ` ${age(scheduled.lastTransitionTime)} ago`))
    : h("p", null, badge(scheduled?.reason ?? "waiting", "warn"), " ", scheduled?.message ?? "No scheduler has processed this pod.");
  // One that has a node waits for its containers.
  const held = containersOf(pod).map((one) => ({ name: one.name, waiting: one.state?.waiting })).filter((one) => one.waiting?.reason)
    .map(({ name, waiting }) => h("p", null, badge(waiting.reason, tone(waiting.reason) || "warn"), ` container ${name}`, waiting.message ? `: ${waiting.message}` : null));
  const table = h("div");
  replace(place, message, held, table);
  if (!traced) return replace(table, h("p.muted", null, "The result for each node is part of the trace, which you are not allowed to read."));
  let last = "";
  const read = async () => {
    try {
      const found = await get(`/ferry/v1/trace?object=${encodeURIComponent(`pods/${namespace}/${name}`)}&direction=back`, { signal });
      const attempts = found.records.filter((/** @type {any} */ record) => record.name === "scheduler.schedule" && record.object === `pods/${namespace}/${name}`)
        .sort((/** @type {any} */ one, /** @type {any} */ other) => other.start - one.start);
      const version = `${attempts.length} ${attempts[0]?.span}`;
      if (version === last) return;
      last = version;
      replace(table, attempts.length ? attemptTable(attempts) : h("p.muted", null, "No scheduling attempt is recorded."));
    } catch (error) {
      if (!isAborted(error)) replace(table, h("p.problem", null, /** @type {Error} */ (error).message));
    }
  };
  await read();
  const timer = setInterval(() => { if (place.isConnected && !document.hidden) read(); }, POLL);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** @param {any[]} attempts the last first */
function attemptTable(attempts) {
  const attribute = (/** @type {any} */ record, /** @type {string} */ key) => record.attributes?.find((/** @type {any} */ one) => one[0] === key)?.[1];
  const [last] = attempts;
  const refusals = refused(attribute(last, "refused_nodes"));
  const scores = String(attribute(last, "scores") ?? "").split(" ").filter(Boolean);
  const facts = (last.attributes ?? []).filter((/** @type {any} */ one) => !["refused", "refused_nodes", "scores"].includes(one[0]));
  return [
    h("p.muted", null, `${attempts.length > 1 ? `Last of ${attempts.length} recorded scheduling attempts` : "Scheduling attempt"}, ${instant(last.start)}`, facts.length ? ": " + facts.map((/** @type {any} */ [key, value]) => `${key} ${value}`).join(", ") : ""),
    refusals.length ? h("div.scroll", { tabindex: 0, role: "group", "aria-label": "Refusals" }, h("table", null, h("thead", null, h("tr", null, ["Node", "Plugin", "Reason"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", null, refusals.map(({ node, plugin, reason }) => h("tr", null, h("td", null, h("a", { href: objectHref(NODES, "", node) }, node)), h("td", null, badge(plugin, "bad")), h("td", null, reason)))))) : null,
    scores.length ? h("p", null, "Scores: ", scores.map((score) => badge(score, "quiet"))) : null,
    last.error ? h("p.problem", null, last.error) : null,
  ];
}

/** `n1 NodeResourcesFit: Insufficient cpu; n2 …`. @param {string | undefined} text */
export function refused(text) {
  return String(text ?? "").split("; ").filter(Boolean).map((one) => {
    const match = /^(\S+) ([^:]+): (.*)$/.exec(one);
    return match ? { node: match[1], plugin: match[2], reason: match[3] } : { node: one.split(" ")[0], plugin: "", reason: one };
  });
}
