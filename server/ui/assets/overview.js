// @ts-check
/** The cluster at a glance. */

import { Live, get, metadataOf } from "./api.js";
import { bar, plot } from "./chart.js";
import { badge, h, replace } from "./dom.js";
import { age, bytes, cores, plural, quantity, tone } from "./format.js";
import { listHref, listPath, objectHref } from "./kinds.js";
import { eventTable, stateOf, time } from "./object.js";
import { topology } from "./topology.js";

const POLL = 15000;
/** How much of the past the plots show. */
const SHOWN = 6 * 3600 * 1000;

/** A plot that has just begun shows so much. */
const SHORTEST = 2 * 60 * 1000;

/** What all nodes used together. @typedef {{ time: number, cpu: number, memory: number }} Sample */

/** Since the page was opened; before that it is what the server has kept. @type {Sample[]} */
const history = [];

const core = (/** @type {string} */ resource, namespaced = true) => ({ group: "", version: "v1", resource, namespaced });
const apps = (/** @type {string} */ resource) => ({ group: "apps", version: "v1", resource, namespaced: true });
const WORKLOADS = [["Deployment", apps("deployments")], ["StatefulSet", apps("statefulsets")], ["DaemonSet", apps("daemonsets")]];

/** @param {import("./app.js").View} view */
export async function overviewView(view) {
  view.title("Overview");
  const place = Object.fromEntries(["cards", "usage", "nodes", "problems", "workloads", "map", "events"].map((name) => [name, h("div")]));
  const section = (/** @type {string} */ title, /** @type {string} */ name, size = "") => h("section.card" + size, { "aria-label": title }, h("h2", null, title), place[name]);
  replace(view.main,
    h("header.page", null, h("div", null, h("h1", null, "Overview"), h("p.muted", null, view.namespace ? `namespace ${view.namespace}` : "all namespaces"))),
    place.cards,
    h("div.columns", null, section("Nodes", "nodes"), section("Pods that are not ready", "problems"), section("Workloads", "workloads"), section("Usage", "usage"),
      section("Services and their endpoints", "map", ".wide"), section("Events", "events", ".wide")));
  place.cards.classList.add("figures");

  const { signal } = view;
  const draw = view.throttle(() => drawAll());
  const live = {
    nodes: new Live(listPath(core("nodes", false)), { signal, changed: draw }),
    pods: new Live(listPath(core("pods"), view.namespace), { as: "table", query: "includeObject=Metadata", signal, changed: draw }),
    services: new Live(listPath(core("services"), view.namespace), { signal, changed: draw }),
    slices: new Live(listPath({ group: "discovery.k8s.io", version: "v1", resource: "endpointslices", namespaced: true }, view.namespace), { signal, changed: draw }),
    events: new Live(listPath(core("events"), view.namespace), { signal, changed: draw }),
  };
  const workloads = WORKLOADS.map(([kind, row]) => ({ kind: /** @type {string} */ (kind), row: /** @type {any} */ (row), live: new Live(listPath(/** @type {any} */ (row), view.namespace), { as: "table", query: "includeObject=Metadata", signal, changed: draw }) }));

  /** @type {Map<string, { cpu: number, memory: number }>} */
  const used = new Map();
  const poll = async () => {
    const usage = await get("/apis/metrics.k8s.io/v1beta1/nodes", { signal }).catch(() => null);
    for (const node of usage?.items ?? []) used.set(node.metadata.name, { cpu: quantity(node.usage.cpu), memory: quantity(node.usage.memory) });
    if (usage?.items.length && Date.now() - (history.at(-1)?.time ?? 0) >= POLL / 2) {
      const sum = (/** @type {"cpu" | "memory"} */ what) => usage.items.reduce((/** @type {number} */ sum, /** @type {any} */ node) => sum + quantity(node.usage[what]), 0);
      history.push({ time: Date.now(), cpu: sum("cpu"), memory: sum("memory") });
    }
    while (history.length && history[0].time < Date.now() - SHOWN) history.shift();
    draw();
  };
  // Who may not read it sees what was used since the page was opened.
  get("/ferry/v1/usage", { signal }).then(({ samples }) => {
    const first = history[0]?.time ?? Infinity;
    const kept = samples.filter((/** @type {any} */ one) => one.time < first && one.time > Date.now() - SHOWN);
    history.unshift(...kept.map((/** @type {any} */ one) => ({ time: one.time, cpu: one.nanoCores / 1e9, memory: one.memoryBytes })));
    draw();
  }).catch(() => {});
  poll();
  const timer = setInterval(poll, POLL);
  signal.addEventListener("abort", () => clearInterval(timer));

  function drawAll() {
    const nodes = [...live.nodes.items.values()];
    const pods = rowsOf(live.pods);
    const isWell = (/** @type {any} */ pod) => tone(pod.Status) === "good" && (pod.Status !== "Running" || allReady(pod.Ready));
    const notWell = pods.filter((pod) => !isWell(pod));
    const ready = nodes.filter((node) => stateOf(node).startsWith("Ready"));
    const counts = workloads.map((one) => ({ ...one, rows: rowsOf(one.live) }));
    const warnings = [...live.events.items.values()].filter((event) => event.type === "Warning");
    const restarts = pods.reduce((sum, pod) => sum + (parseInt(pod.Restarts, 10) || 0), 0);
    const byTone = (/** @type {string} */ wanted) => pods.filter((pod) => (isWell(pod) ? "good" : tone(pod.Status) === "bad" ? "bad" : "warn") === wanted).length;
    replace(place.cards,
      figure("Nodes ready", `${ready.length}/${nodes.length}`, listHref({ group: "", resource: "nodes" }), ready.length === nodes.length ? "good" : "bad"),
      figure("Pods", pods.length.toLocaleString("en"), listHref({ group: "", resource: "pods" }), "", bar([{ name: "ready or completed", count: byTone("good"), tone: "good" }, { name: "waiting", count: byTone("warn"), tone: "warn" }, { name: "failing", count: byTone("bad"), tone: "bad" }], "Pods")),
      figure("Pods not ready", notWell.length.toLocaleString("en"), listHref({ group: "", resource: "pods" }), notWell.length ? "warn" : "good"),
      figure("Restarts", restarts.toLocaleString("en"), listHref({ group: "", resource: "pods" }), ""),
      figure("Services", live.services.items.size.toLocaleString("en"), listHref({ group: "", resource: "services" }), ""),
      figure("Warnings, last hour", warnings.length.toLocaleString("en"), listHref({ group: "", resource: "events" }), warnings.length ? "warn" : "good"));
    drawNodes(nodes, pods);
    drawUsage(nodes);
    replace(place.problems, live.pods.error ? problem(live.pods) : notWell.length ? h("ul.plain", null, notWell.slice(0, 12).map((pod) => h("li", null,
      h("a", { href: objectHref({ group: "", resource: "pods" }, pod.metadata.namespace, pod.metadata.name) }, `${pod.metadata.namespace}/${pod.metadata.name}`), " ", badge(pod.Status === "Running" ? "Running, not ready" : pod.Status, tone(pod.Status) === "bad" ? "bad" : "warn"),
      h("span.muted", null, ` ${pod.Ready} ready, ${age(pod.metadata.creationTimestamp)}`))), notWell.length > 12 ? h("li.muted", null, `and ${notWell.length - 12} more`) : null)
      : h("p.muted", null, live.pods.state === "loading" ? "loading…" : "All pods are ready."));
    replace(place.workloads, h("ul.plain", null, counts.flatMap(({ kind, row, rows, live: one }) => [
      h("li.line", null, h("a", { href: listHref(row) }, plural(rows.length, kind)), one.error ? h("span.muted", null, one.error.message) : h("span", null, rows.length ? badge(`${rows.filter((each) => isAvailable(kind, each)).length} available`, "good") : "", " ", rows.some((each) => !isAvailable(kind, each)) ? badge(`${rows.filter((each) => !isAvailable(kind, each)).length} unavailable`, "warn") : "")),
      rows.filter((each) => !isAvailable(kind, each)).slice(0, 6).map((each) => h("li.sub", null, h("a", { href: objectHref(row, each.metadata.namespace, each.metadata.name) }, `${each.metadata.namespace}/${each.metadata.name}`), ` ${each.Ready ?? ""}`)),
    ])));
    if (live.services.error) replace(place.map, problem(live.services));
    else topology(place.map, [...live.services.items.values()], [...live.slices.items.values()]);
    const events = [...live.events.items.values()].sort((one, other) => time(other).localeCompare(time(one))).slice(0, 30);
    replace(place.events, live.events.error ? problem(live.events) : events.length ? eventTable(events, true) : h("p.muted", null, "No events in the last hour."));
  }

  /** @param {any[]} nodes @param {any[]} pods */
  function drawNodes(nodes, pods) {
    if (live.nodes.error) return replace(place.nodes, problem(live.nodes));
    /** @type {Map<string, number>} */
    const placed = new Map();
    for (const pod of pods) placed.set(pod.Node, (placed.get(pod.Node) ?? 0) + 1);
    replace(place.nodes, nodes.length ? h("ul.plain.nodes", null, nodes.sort((one, other) => one.metadata.name.localeCompare(other.metadata.name)).slice(0, 50).map((node) => {
      const name = node.metadata.name, use = used.get(name), { cpu, memory, pods: room } = node.status?.allocatable ?? {};
      return h("li", null,
        h("div.line", null, h("a", { href: objectHref({ group: "", resource: "nodes" }, "", name) }, name), badge(stateOf(node), tone(stateOf(node)))),
        h("div.meters", null, use ? [meter("CPU", use.cpu, quantity(cpu), cores), meter("Memory", use.memory, quantity(memory), bytes)] : null, meter("Pods", placed.get(name) ?? 0, quantity(room), String)));
    })) : h("p.muted", null, live.nodes.state === "loading" ? "loading…" : "No nodes."));
  }

  /** @param {any[]} nodes */
  function drawUsage(nodes) {
    const total = (/** @type {"cpu" | "memory"} */ what) => nodes.reduce((sum, node) => sum + (quantity(node.status?.allocatable?.[what]) || 0), 0);
    const to = Date.now(), from = Math.min(to - SHORTEST, history[0]?.time ?? to);
    const points = (/** @type {"cpu" | "memory"} */ what) => history.map((sample) => ({ time: sample.time, value: sample[what] }));
    const [cpu, memory] = [points("cpu"), points("memory")];
    replace(place.usage, history.length ? [
      h("h3", null, `CPU `, h("span.muted", null, cpu.length ? `${cores(cpu[cpu.length - 1].value)} of ${cores(total("cpu"))} cores` : "")),
      plot({ label: "CPU", points: cpu, most: total("cpu"), format: cores, from, to }),
      h("h3", null, `Memory `, h("span.muted", null, memory.length ? `${bytes(memory[memory.length - 1].value)} of ${bytes(total("memory"))}` : "")),
      plot({ label: "Memory", points: memory, most: total("memory"), format: bytes, from, to }),
    ] : h("p.muted", null, "No usage data yet. It is sampled every 15 seconds while this page is open, and once a minute otherwise."));
  }
}

/** @param {any} pod */
const allReady = (pod) => { const [one, all] = String(pod).split("/"); return one === all; };

/** @param {string} kind @param {any} row */
function isAvailable(kind, row) {
  if (kind === "DaemonSet") return Number(row.Available) >= Number(row.Desired);
  return allReady(row.Ready);
}

/** Rows of a table by the names of their columns. @param {Live} live @returns {any[]} */
function rowsOf(live) {
  const names = live.columns.map((column) => column.name);
  return [...live.items.values()].map((row) => {
    /** @type {any} */
    const named = { metadata: metadataOf(row) };
    for (let at = 0; at < names.length; at++) named[names[at]] = row.cells[at];
    return named;
  });
}

/** @param {Live} live */
const problem = (live) => h("p.muted", null, live.error.message);

/** @param {string} title @param {string} value @param {string} href @param {string} colour @param {any} [more] */
const figure = (title, value, href, colour, more) => h("a.figure" + (colour ? "." + colour : ""), { href }, h("span.value", null, value), h("span.title", null, title), more);

/** @param {string} name @param {number} value @param {number} most @param {(value: number) => string} format */
function meter(name, value, most, format) {
  const part = most > 0 ? Math.min(1, value / most) : 0;
  const words = `${format(value)} of ${format(most)}`;
  return h("div.meter", null, h("span", null, name), h("div.track", { role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(part * 100), "aria-valuetext": words },
    h("div.fill" + (part > 0.9 ? ".bad" : part > 0.75 ? ".warn" : ""), { style: { width: `${part * 100}%` } })), h("span.muted", null, words));
}
