// @ts-check
/** One object: its description, YAML, events, logs, history and trace. */

import { Live } from "./api.js";
import { actionButtons } from "./actions.js";
import { badge, h, replace, tabBar, words } from "./dom.js";
import { age, clock, plural, tone } from "./format.js";
import { historyPanel } from "./history.js";
import { kindNamed, kindOf, listHref, listPath, objectHref, traceKey } from "./kinds.js";
import { logsPanel } from "./logs.js";
import { pendingPanel } from "./pending.js";
import { may, mayTrace } from "./rights.js";
import { tracePanel } from "./trace.js";
import { yaml } from "./yaml.js";

/** @typedef {import("./kinds.js").Kind} Kind */

/**
 * @param {import("./app.js").View} view @param {string} group @param {string} resource @param {string} namespace @param {string} name
 * @param {string} tab
 */
export async function objectView(view, group, resource, namespace, name, tab) {
  const kind = await kindOf(group, resource);
  if (!kind) return view.fail(`This cluster serves no ${resource}${group && "." + group}.`);
  view.title(`${name} · ${kind.kind}`);
  const isPod = resource === "pods" && group === "";
  const [traced, mayLog] = await Promise.all([mayTrace(), isPod ? may("get", kind, namespace, name, "log") : false]);
  const tabs = [
    { id: "describe", title: "Describe" }, { id: "yaml", title: "YAML" }, { id: "events", title: "Events" },
    ...(mayLog ? [{ id: "logs", title: "Logs" }] : []),
    ...(isPod ? [{ id: "pending", title: "Scheduling" }] : []),
    ...(traced ? [{ id: "history", title: "History" }, { id: "trace", title: "Trace" }] : []),
  ];
  if (!tabs.some((one) => one.id === tab)) tab = "describe";
  const buttons = h("div.tools");
  const state = h("span");
  const panel = h("section", { id: "tab-panel", role: "tabpanel", "aria-labelledby": "tab-" + tab, tabindex: 0 });
  replace(view.main,
    h("header.page", null,
      h("div", null,
        h("p.crumbs", null, h("a", { href: listHref(kind) }, kind.kind), namespace ? [" · ", h("a", { href: objectHref({ group: "", resource: "namespaces" }, "", namespace) }, namespace)] : null),
        h("h1", null, name, " ", state)),
      buttons),
    tabBar(tabs, tab, (id) => void (location.hash = objectHref(kind, namespace, name, id))), panel);
  document.getElementById("tab-" + tab)?.scrollIntoView({ block: "nearest", inline: "nearest" });

  /** @type {any} */
  let object = null;
  let shownVersion = "";
  const description = h("div");
  /** Of what the panel shows of this very object. */
  let following = new AbortController();
  let offered = "";
  const draw = () => {
    const found = [...live.items.values()][0];
    if (!found) {
      if (live.state === "live") {
        replace(state, badge(object ? "deleted" : "not found", "bad"));
        replace(buttons);
        if (!object && !["history", "trace"].includes(tab)) replace(panel, h("p.muted", null, traced ? "This object does not exist. Its history and its trace may still be recorded." : "This object does not exist."));
      } else if (live.error) replace(panel, h("p.problem", { role: "alert" }, live.error.message));
      return;
    }
    // Another object may have taken the name.
    const isFirst = object?.metadata.uid !== found.metadata.uid;
    object = found;
    if (shownVersion === object.metadata.resourceVersion) return;
    shownVersion = object.metadata.resourceVersion;
    const word = stateOf(object);
    replace(state, word ? badge(word, tone(word)) : "");
    const offers = JSON.stringify([object.metadata.uid, object.spec?.unschedulable, object.spec?.replicas]);
    if (offers !== offered) {
      offered = offers;
      actionButtons(kind, object, () => void (location.hash = listHref(kind))).then((found) => replace(buttons, found));
    }
    if (tab === "describe") describe(description, kind, object);
    if (tab === "yaml") source(panel, object);
    if (!isFirst) return;
    following.abort();
    following = new AbortController();
    view.signal.addEventListener("abort", () => following.abort(), { once: true, signal: following.signal });
    const its = { ...view, signal: following.signal };
    if (tab === "describe") {
      const events = h("div");
      replace(panel, description, card("Events", events));
      eventsPanel(events, object, its);
    }
    if (tab === "events") eventsPanel(panel, object, its);
    if (tab === "logs") logsPanel(panel, object, its.signal);
    if (tab === "pending") pendingPanel(panel, object, traced, its.signal);
  };
  const live = new Live(listPath(kind, namespace), {
    query: "fieldSelector=" + encodeURIComponent(`metadata.name=${name}`), signal: view.signal, changed: view.throttle(draw),
  });
  const key = traceKey(kind, namespace, name);
  if (tab === "history") historyPanel(panel, kind, namespace, name, view.signal);
  if (tab === "trace") tracePanel(panel, new URLSearchParams({ object: key, ...(view.query.get("uid") ? { uid: view.query.get("uid") ?? "" } : {}) }), view.signal);
}

/** One word for how it is. @param {any} object */
export function stateOf(object) {
  if (object.metadata.deletionTimestamp) return "Terminating";
  const { status = {}, spec = {} } = object;
  if (object.kind === "Pod") {
    const waiting = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])].map((one) => one.state?.waiting?.reason).find((reason) => reason && reason !== "PodInitializing");
    return waiting ?? status.reason ?? status.phase ?? "";
  }
  if (object.kind === "Node") {
    const ready = status.conditions?.find((/** @type {any} */ one) => one.type === "Ready")?.status;
    return (ready === "True" ? "Ready" : ready === "False" ? "NotReady" : "Unknown") + (spec.unschedulable ? ", SchedulingDisabled" : "");
  }
  if (typeof status.readyReplicas === "number" || typeof spec.replicas === "number") return `${status.readyReplicas ?? 0}/${spec.replicas ?? 0} ready`;
  return typeof status.phase === "string" ? status.phase : "";
}

/** @param {HTMLElement} place @param {any} object */
function source(place, object) {
  const hidesManaged = { ...object, metadata: { ...object.metadata, managedFields: undefined } };
  const text = yaml(hidesManaged);
  const before = place.querySelector("pre.yaml");
  const top = before?.scrollTop ?? 0;
  const copy = h("button", { onclick: () => navigator.clipboard?.writeText(text) }, "Copy");
  const shown = h("pre.yaml", { tabindex: 0, "aria-label": "YAML" }, text.split("\n").map((line) => {
    const match = /^(\s*(?:- )*)([^\s:#"'|>][^:]*?|"[^"]*")(:)( .*)?$/.exec(line);
    return match ? [match[1], h("span.key", null, match[2]), match[3], match[4] ?? "", "\n"] : line + "\n";
  }));
  replace(place, h("div.tools", null, copy, h("span.muted", null, `revision ${object.metadata.resourceVersion}`)), shown);
  shown.scrollTop = top;
}

/** @param {HTMLElement} place @param {Kind} kind @param {any} object */
function describe(place, kind, object) {
  const { metadata, spec = {}, status = {} } = object;
  const owners = (metadata.ownerReferences ?? []).map((/** @type {any} */ owner) => {
    const shown = h("span", null, `${owner.kind} ${owner.name}`);
    kindNamed(owner.apiVersion, owner.kind).then((found) => found && replace(shown, h("a", { href: objectHref(found, found.namespaced ? metadata.namespace : "", owner.name) }, `${owner.kind} ${owner.name}`)));
    return shown;
  });
  const chips = (/** @type {Record<string, string> | undefined} */ map) => {
    const entries = Object.entries(map ?? {});
    return entries.length ? h("ul.chips", null, entries.map(([key, value]) => h("li", { title: `${key}=${value}` }, h("b", null, key), value && "=" + (value.length > 80 ? value.slice(0, 80) + "…" : value)))) : "none";
  };
  replace(place, h("div.columns", null,
    card("Object", facts([
      ["Created", [clock(metadata.creationTimestamp), h("span.muted", null, ` ${age(metadata.creationTimestamp)} ago`)]],
      ["Revision", metadata.resourceVersion], ["UID", h("code", null, metadata.uid ?? "")],
      owners.length ? [owners.length > 1 ? "Owners" : "Owner", owners] : null,
      metadata.deletionTimestamp ? ["Deletion timestamp", clock(metadata.deletionTimestamp)] : null,
      metadata.finalizers?.length ? ["Finalizers", metadata.finalizers.join(", ")] : null,
      ["Labels", chips(metadata.labels)], ["Annotations", chips(metadata.annotations)],
    ])),
    special(object),
    status.conditions?.length ? card("Conditions", conditions(status.conditions)) : null,
    rest("Spec", spec), rest("Status", status)));
}

/** @param {string} title @param {...any} children */
const card = (title, ...children) => h("section.card", null, h("h2", null, title), children);

/** @param {([string, any] | null)[]} entries */
const facts = (entries) => h("dl", null, entries.filter((one) => one !== null).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

/** @param {any[]} list */
const conditions = (list) => h("div.scroll", { tabindex: 0, role: "group", "aria-label": "Conditions" }, h("table", null, h("thead", null, h("tr", null, ["Condition", "Status", "Reason", "Since"].map((title) => h("th", { scope: "col" }, title)))),
  h("tbody", null, list.map((one) => {
    // Of most conditions True is the good news.
    const isBadNews = /(Pressure|Unavailable|Failure|Failed|Deadline|Disruption|Resizing)/.test(one.type);
    const colour = one.status === "Unknown" ? "bad" : (one.status === "True") !== isBadNews ? "good" : isBadNews ? "bad" : "warn";
    return h("tr", null, h("td", null, words(one.type)), h("td", null, badge(one.status, colour)),
      h("td", null, words(one.reason ?? ""), one.message ? h("p.muted", null, one.message) : null), h("td.when", { title: one.lastTransitionTime }, age(one.lastTransitionTime)));
  }))));

/** What is worth more than its fields. @param {any} object */
function special(object) {
  const { spec = {}, status = {}, metadata } = object;
  const named = `${object.kind}.${object.apiVersion.split("/").slice(0, -1).join("")}`;
  if (named === "Pod.") {
    const states = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])];
    return [
      card("Pod", facts([
        ["Node", spec.nodeName ? h("a", { href: objectHref({ group: "", resource: "nodes" }, "", spec.nodeName) }, spec.nodeName) : h("a", { href: objectHref({ group: "", resource: "pods" }, metadata.namespace, metadata.name, "pending") }, "not scheduled: see why")],
        ["Pod IP", status.podIP ?? "none"], ["Service account", spec.serviceAccountName ?? ""], ["QoS", status.qosClass ?? ""],
        status.message ? ["Message", status.message] : null,
      ])),
      card("Containers", h("div.scroll", { tabindex: 0, role: "group", "aria-label": "Containers" }, h("table", null, h("thead", null, h("tr", null, ["Container", "State", "Restarts", "Image"].map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", null, [...(spec.initContainers ?? []), ...(spec.containers ?? [])].map((container) => {
          const state = states.find((one) => one.name === container.name);
          const [word, value] = Object.entries(state?.state ?? { waiting: {} })[0] ?? ["waiting", {}];
          const text = word === "running" ? (state.ready ? "Running" : "Running, not ready") : value.reason ?? word;
          const last = state?.lastState?.terminated;
          return h("tr", null, h("td", null, container.name),
            h("td", null, badge(text, word === "running" ? (state.ready ? "good" : "warn") : tone(text)), value.message ? h("p.muted", null, value.message) : null,
              last ? h("p.muted", null, `last state: exit code ${last.exitCode}${last.reason ? ` (${last.reason})` : ""}`) : null),
            h("td.number", null, state?.restartCount ?? 0), h("td", null, h("code", null, container.image ?? "")));
        }))))),
    ];
  }
  if (named === "Node.") {
    return card("Node", facts([
      ["Addresses", (status.addresses ?? []).map((/** @type {any} */ one) => `${one.address} (${one.type})`).join(", ")],
      ["Kubelet", status.nodeInfo?.kubeletVersion ?? ""], ["System", [status.nodeInfo?.osImage, status.nodeInfo?.kernelVersion, status.nodeInfo?.architecture].filter(Boolean).join(", ")],
      ["Runtime", status.nodeInfo?.containerRuntimeVersion ?? ""],
      ["Allocatable", Object.entries(status.allocatable ?? {}).map(([key, value]) => `${key} ${value}`).join(", ")],
      spec.taints?.length ? ["Taints", spec.taints.map((/** @type {any} */ one) => `${one.key}${one.value ? "=" + one.value : ""}:${one.effect}`).join(", ")] : null,
    ]));
  }
  if (named === "Service.") {
    return card("Service", facts([
      ["Type", spec.type ?? ""], ["Address", (spec.clusterIPs ?? [spec.clusterIP]).filter(Boolean).join(", ")],
      ["Ports", (spec.ports ?? []).map((/** @type {any} */ one) => `${one.port}${one.targetPort && one.targetPort !== one.port ? " → " + one.targetPort : ""}/${one.protocol ?? "TCP"}${one.nodePort ? ` (node ${one.nodePort})` : ""}`).join(", ")],
      ["Selector", spec.selector ? Object.entries(spec.selector).map(([key, value]) => `${key}=${value}`).join(", ") : "none"],
    ]));
  }
  if (named === "Secret.") {
    return card("Data", facts(Object.entries(object.data ?? {}).map(([key, value]) => [key, `${Math.floor(String(value).length * 3 / 4)} bytes`])));
  }
  if (named === "ConfigMap.") {
    return card("Data", facts(Object.entries(object.data ?? {}).map(([key, value]) => [key, h("pre.small", null, String(value))])));
  }
  return null;
}

/** The plain fields of a section, two levels deep. @param {string} title @param {any} section */
function rest(title, section) {
  /** @type {[string, any][]} */
  const found = [];
  const walk = (/** @type {any} */ value, /** @type {string} */ path, /** @type {number} */ depth) => {
    for (const [key, below] of Object.entries(value ?? {})) {
      const name = path ? `${path}.${key}` : key;
      if (key === "conditions" || found.length >= 24) continue;
      if (below !== null && typeof below === "object" && !Array.isArray(below)) {
        if (depth > 0) walk(below, name, depth - 1);
      } else if (Array.isArray(below)) {
        if (below.every((one) => typeof one !== "object")) found.push([name, below.join(", ")]);
        else found.push([name, plural(below.length, "element")]);
      } else found.push([name, String(below)]);
    }
  };
  walk(section, "", 2);
  return found.length ? card(title, facts(found)) : null;
}

/** @param {HTMLElement} place @param {any} object @param {import("./app.js").View} view */
function eventsPanel(place, object, view) {
  const namespace = object.metadata.namespace ?? "default";
  const draw = view.throttle(() => {
    if (live.error) return replace(place, h("p.problem", { role: "alert" }, live.error.message));
    const events = [...live.items.values()].sort((one, other) => time(other).localeCompare(time(one)));
    replace(place, events.length ? eventTable(events, false) : h("p.muted", null, live.state === "loading" ? "loading…" : "No events for this object in the last hour."));
  });
  const live = new Live(`/api/v1/namespaces/${namespace}/events`, {
    query: "fieldSelector=" + encodeURIComponent(`involvedObject.uid=${object.metadata.uid}`), signal: view.signal, changed: draw,
  });
}

/** When an event happened last. @param {any} event @returns {string} */
export const time = (event) => event.series?.lastObservedTime ?? event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp ?? "";

/** @param {any[]} events @param {boolean} showsObject */
export const eventTable = (events, showsObject) => h("div.scroll", { tabindex: 0, role: "group", "aria-label": "Events" }, h("table.events", null,
  h("thead", null, h("tr", null, ["When", "Reason", ...(showsObject ? ["Object"] : []), "Message", "From"].map((title) => h("th", { scope: "col" }, title)))),
  h("tbody", null, events.map((event) => {
    const about = event.involvedObject ?? {};
    const object = h("span", null, `${about.kind} ${about.name}`);
    if (showsObject && about.kind) {
      kindNamed(about.apiVersion ?? "v1", about.kind).then((kind) => kind && replace(object, h("a", { href: objectHref(kind, about.namespace, about.name) }, `${about.kind} ${about.name}`)));
    }
    const count = event.series?.count ?? event.count ?? 1;
    return h("tr", null, h("td.when", { title: time(event) }, age(time(event))),
      h("td", null, badge(event.reason ?? "", event.type === "Warning" ? "bad" : "quiet"), count > 1 ? h("span.muted", null, ` ×${count}`) : null),
      showsObject ? h("td", null, object) : null, h("td", null, event.message ?? ""), h("td.muted", null, event.source?.component || event.reportingComponent || ""));
  }))));
