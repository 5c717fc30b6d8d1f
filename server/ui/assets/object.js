// @ts-check
/** One object: what it is, what was said about it, its YAML, its logs, its life, its trace. */

import { Live, get, isAborted } from "./api.js";
import { actionButtons } from "./actions.js";
import { badge, h, replace, tabBar } from "./dom.js";
import { age, clock, instant, plural, tone } from "./format.js";
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
    { id: "summary", title: "Summary" }, { id: "yaml", title: "YAML" }, { id: "events", title: "Events" },
    ...(mayLog ? [{ id: "logs", title: "Logs" }] : []),
    ...(isPod ? [{ id: "pending", title: "Scheduling" }] : []),
    ...(traced ? [{ id: "life", title: "Life" }, { id: "trace", title: "Trace" }] : []),
  ];
  if (!tabs.some((one) => one.id === tab)) tab = "summary";
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

  /** @type {any} */
  let object = null;
  let shownVersion = "";
  let offered = "";
  const draw = () => {
    const found = [...live.items.values()][0];
    if (!found) {
      if (live.state === "live") {
        replace(state, badge(object ? "deleted" : "not found", "bad"));
        replace(buttons);
        if (!object && !["life", "trace"].includes(tab)) replace(panel, h("p.muted", null, traced ? "It is not there. Its life and its trace may still be known." : "It is not there."));
      } else if (live.error) replace(panel, h("p.problem", { role: "alert" }, live.error.message));
      return;
    }
    const isFirst = !object;
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
    if (tab === "summary") summary(panel, kind, object);
    if (tab === "yaml") source(panel, object);
    if (!isFirst) return;
    if (tab === "events") eventsPanel(panel, object, view);
    if (tab === "logs") logsPanel(panel, object, view.signal);
    if (tab === "pending") pendingPanel(panel, object, traced, view.signal);
  };
  const live = new Live(listPath(kind, namespace), {
    query: "fieldSelector=" + encodeURIComponent(`metadata.name=${name}`), signal: view.signal, changed: view.throttle(draw),
  });
  const key = traceKey(kind, namespace, name);
  if (tab === "life") lifePanel(panel, key, view.signal).catch((error) => isAborted(error) || replace(panel, h("p.problem", null, error.message)));
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
function summary(place, kind, object) {
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
      owners.length ? ["Belongs to", owners] : null,
      metadata.deletionTimestamp ? ["Deleted since", clock(metadata.deletionTimestamp)] : null,
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
    return h("tr", null, h("td", null, one.type), h("td", null, badge(one.status, colour)),
      h("td", null, one.reason ?? "", one.message ? h("p.muted", null, one.message) : null), h("td", { title: one.lastTransitionTime }, age(one.lastTransitionTime)));
  }))));

/** What is worth more than its fields. @param {any} object */
function special(object) {
  const { spec = {}, status = {}, metadata } = object;
  const named = `${object.kind}.${object.apiVersion.split("/").slice(0, -1).join("")}`;
  if (named === "Pod.") {
    const states = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])];
    return [
      card("Pod", facts([
        ["Node", spec.nodeName ? h("a", { href: objectHref({ group: "", resource: "nodes" }, "", spec.nodeName) }, spec.nodeName) : h("a", { href: objectHref({ group: "", resource: "pods" }, metadata.namespace, metadata.name, "pending") }, "none yet: why?")],
        ["Address", status.podIP ?? "none"], ["Service account", spec.serviceAccountName ?? ""], ["QoS", status.qosClass ?? ""],
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
              last ? h("p.muted", null, `before that: exit code ${last.exitCode}${last.reason ? ` (${last.reason})` : ""}`) : null),
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
      ["Selects", spec.selector ? Object.entries(spec.selector).map(([key, value]) => `${key}=${value}`).join(", ") : "nothing"],
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
    replace(place, events.length ? eventTable(events, false) : h("p.muted", null, live.state === "loading" ? "loading…" : "Nothing was said about it in the last hour."));
  });
  const live = new Live(`/api/v1/namespaces/${namespace}/events`, {
    query: "fieldSelector=" + encodeURIComponent(`involvedObject.uid=${object.metadata.uid}`), signal: view.signal, changed: draw,
  });
}

/** When it was said last. @param {any} event @returns {string} */
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

/** Every write of the object that is recorded, with the fields it changed. @param {HTMLElement} place @param {string} key @param {AbortSignal} signal */
async function lifePanel(place, key, signal) {
  replace(place, h("p.muted", null, "reading…"));
  const found = await get(`/ferry/v1/trace?object=${encodeURIComponent(key)}&lives=all&direction=back`, { signal });
  const bySpan = new Map(found.records.map((/** @type {any} */ record) => [record.span, record]));
  const attribute = (/** @type {any} */ record, /** @type {string} */ name) => record.attributes?.find((/** @type {any} */ one) => one[0] === name)?.[1];
  const writes = found.records.filter((/** @type {any} */ record) => record.name === "store.commit" && record.object === key && record.committed)
    .sort((/** @type {any} */ one, /** @type {any} */ other) => other.committed - one.committed);
  if (!writes.length) return replace(place, h("p.muted", null, "No write of it is recorded."));
  const verbs = /** @type {Record<string, [string, "" | "good" | "warn" | "bad"]>} */ ({ create: ["created", "good"], update: ["changed", ""], mark: ["deletion asked for", "warn"], delete: ["deleted", "bad"] });
  const who = (/** @type {any} */ record) => {
    for (let at = record, steps = 0; at && steps < 64; at = bySpan.get(at.parent), steps++) {
      if (at.name === "apiserver.request") return attribute(at, "user") ?? "";
    }
    return "";
  };
  const lives = new Map(found.lives.map((/** @type {any} */ life, /** @type {number} */ at) => [life.uid, at]));
  let uid = "";
  replace(place,
    found.isCut ? h("p.muted", null, "There is more than one answer holds; the oldest writes are left out.") : null,
    h("ol.life", null, writes.map((/** @type {any} */ write) => {
      const [word, colour] = verbs[attribute(write, "verb")] ?? [attribute(write, "verb") ?? "written", ""];
      const its = attribute(write, "uid") ?? "";
      const heading = its !== uid && found.lives.length > 1 ? h("h2", null, `Life ${(lives.get(its) ?? 0) + 1} of ${found.lives.length} `, h("code", null, its)) : null;
      uid = its;
      return [heading && h("li.heading", null, heading), h("li", null,
        h("div.head", null, badge(word, colour), h("b", null, `r${write.committed}`), h("time", null, instant(write.start)), h("span", null, "by ", who(write) || "somebody"),
          h("a", { href: `#/trace?revision=${write.committed}` }, "why, and what came of it")),
        diff(attribute(write, "changed")))];
    })));
}

/** `spec.replicas=1→3; metadata.labels[tier]` as lines. @param {string | undefined} changed */
export function diff(changed) {
  if (!changed) return null;
  return h("ul.diff", null, String(changed).split("; ").map((one) => {
    const match = /^([^=]+)=(.*)→(.*)$/.exec(one);
    return h("li", null, match ? [h("code", null, match[1]), " ", match[2] ? h("del", null, match[2]) : null, match[2] && match[3] ? " → " : null, match[3] ? h("ins", null, match[3]) : null] : h("code", null, one));
  }));
}
