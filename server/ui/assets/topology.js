// @ts-check
/** Which Service leads to which pods: two columns, and a line for each endpoint. */

import { h, replace, svg } from "./dom.js";
import { plural } from "./format.js";
import { objectHref } from "./kinds.js";

const LINE = 26;
/** What can be looked at. */
const MOST = 40;

/**
 * @param {HTMLElement} place @param {any[]} services @param {any[]} slices
 */
export function topology(place, services, slices) {
  /** @type {Map<string, { name: string, ready: boolean, href: string }[]>} */
  const endpoints = new Map();
  for (const slice of slices) {
    const service = slice.metadata.labels?.["kubernetes.io/service-name"];
    if (!service) continue;
    const key = `${slice.metadata.namespace}/${service}`;
    const found = endpoints.get(key) ?? [];
    for (const endpoint of slice.endpoints ?? []) {
      const target = endpoint.targetRef;
      const name = target?.name ?? endpoint.addresses?.[0] ?? "";
      // Of two address families one line is enough.
      if (found.some((one) => one.name === name)) continue;
      found.push({ name, ready: endpoint.conditions?.ready !== false, href: target?.kind === "Pod" ? objectHref({ group: "", resource: "pods" }, target.namespace, target.name) : "" });
    }
    endpoints.set(key, found);
  }
  const sorted = [...services].sort((one, other) => `${one.metadata.namespace}/${one.metadata.name}`.localeCompare(`${other.metadata.namespace}/${other.metadata.name}`));
  const shown = sorted.slice(0, MOST);
  /** @type {{ y: number, service: any, pods: { name: string, ready: boolean, href: string }[] }[]} */
  const rows = [];
  let right = 0, left = 0;
  for (const service of shown) {
    const pods = (endpoints.get(`${service.metadata.namespace}/${service.metadata.name}`) ?? []).slice(0, 12);
    const top = Math.max(left, right);
    rows.push({ y: top + (Math.max(1, pods.length) - 1) / 2, service, pods });
    left = top + 1;
    right = top + pods.length;
  }
  const height = Math.max(left, right, 1) * LINE + 8;
  const width = 620;
  const cut = (/** @type {string} */ text) => (text.length > 34 ? text.slice(0, 33) + "…" : text);
  let at = 0;
  const drawing = svg("svg.topology", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "xMinYMin meet", role: "group", "aria-label": `${plural(services.length, "Service")} and their endpoints` }, rows.map(({ y, service, pods }) => {
    const from = y * LINE + LINE / 2 + 4;
    const first = Math.max(at, Math.round(y - (Math.max(1, pods.length) - 1) / 2));
    at = first + Math.max(1, pods.length);
    return [
      pods.map((pod, index) => {
        const to = (first + index) * LINE + LINE / 2 + 4;
        return [svg("path.edge" + (pod.ready ? "" : ".bad"), { d: `M250,${from}C320,${from} 310,${to} 370,${to}` }),
          link(pod.href, svg("g", null, svg("circle." + (pod.ready ? "good" : "bad"), { cx: 376, cy: to, r: 4 }), svg("text", { x: 386, y: to + 4 }, cut(pod.name))))];
      }),
      pods.length ? null : svg("text.muted", { x: 262, y: from + 4 }, "no endpoints"),
      link(objectHref({ group: "", resource: "services" }, service.metadata.namespace, service.metadata.name),
        svg("g", null, svg("rect.box", { x: 4, y: from - 10, width: 246, height: 20, rx: 5 }), svg("text", { x: 12, y: from + 4 }, cut(`${service.metadata.namespace}/${service.metadata.name}`)))),
    ];
  }));
  drawing.style.setProperty("max-height", `${height}px`);
  replace(place, services.length ? drawing : h("p.muted", null, "No Services."), services.length > MOST ? h("p.muted", null, `and ${services.length - MOST} more: choose a namespace to see them`) : null);
}

/** @param {string} href @param {any} child */
const link = (href, child) => (href ? svg("a", { href }, child) : child);
