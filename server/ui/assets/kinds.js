// @ts-check
/** The kinds that this cluster serves, custom ones too, from discovery; and the paths of their objects. */

import { get } from "./api.js";

/**
 * @typedef {{ group: string, version: string, resource: string, kind: string, singular: string, short: string[],
 *   namespaced: boolean, verbs: string[], subresources: Set<string> }} Kind
 */

const AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/** @type {Promise<Kind[]> | null} */
let known = null;

/** Every kind that can be listed, each in the version its group prefers. */
export function kinds() {
  known ??= read().catch((error) => {
    known = null;
    throw error;
  });
  return known;
}

/** Asks again next time: a definition may have come or gone. */
export const forgetKinds = () => void (known = null);

async function read() {
  const documents = await Promise.all([get("/api", { accept: AGGREGATED }), get("/apis", { accept: AGGREGATED })]);
  /** @type {Kind[]} */
  const found = [];
  for (const group of documents.flatMap((document) => document.items)) {
    const taken = new Set();
    for (const version of group.versions) {
      for (const resource of version.resources ?? []) {
        if (taken.has(resource.resource) || !resource.verbs.includes("list") || !resource.responseKind?.kind) continue;
        taken.add(resource.resource);
        found.push({
          group: group.metadata.name ?? "", version: version.version, resource: resource.resource, kind: resource.responseKind.kind,
          singular: resource.singularResource ?? "", short: resource.shortNames ?? [], namespaced: resource.scope === "Namespaced",
          verbs: resource.verbs, subresources: new Set((resource.subresources ?? []).map((/** @type {any} */ one) => one.subresource)),
        });
      }
    }
  }
  return found.sort((one, other) => one.kind.localeCompare(other.kind) || one.group.localeCompare(other.group));
}

/** By group and resource. @param {string} group @param {string} resource */
export async function kindOf(group, resource) {
  const find = async () => (await kinds()).find((kind) => kind.group === group && kind.resource === resource);
  const found = await find();
  if (found) return found;
  forgetKinds();
  return find();
}

/** By what an owner reference or an event names. @param {string} apiVersion @param {string} kind */
export async function kindNamed(apiVersion, kind) {
  const group = apiVersion.includes("/") ? apiVersion.split("/")[0] : "";
  return (await kinds()).find((one) => one.group === group && one.kind === kind);
}

/** Where its objects are listed; "" is all namespaces. @param {Pick<Kind, "group" | "version" | "resource" | "namespaced">} kind @param {string} [namespace] */
export function listPath(kind, namespace = "") {
  const root = kind.group ? `/apis/${kind.group}/${kind.version}` : `/api/${kind.version}`;
  return kind.namespaced && namespace ? `${root}/namespaces/${namespace}/${kind.resource}` : `${root}/${kind.resource}`;
}

/** @param {Kind} kind @param {string} namespace @param {string} name */
export const objectPath = (kind, namespace, name) => `${listPath(kind, namespace)}/${name}`;

/** The address in this page. @param {Pick<Kind, "group" | "resource">} kind */
export const listHref = (kind) => `#/k/${kind.group || "core"}/${kind.resource}`;

/** @param {Pick<Kind, "group" | "resource">} kind @param {string | undefined} namespace @param {string} name @param {string} [tab] */
export const objectHref = (kind, namespace, name, tab = "") =>
  `#/o/${kind.group || "core"}/${kind.resource}/${namespace || "-"}/${encodeURIComponent(name)}${tab && "/" + tab}`;

/** As the trace names an object: `deployments.apps/default/web`. @param {Kind} kind @param {string} namespace @param {string} name */
export const traceKey = (kind, namespace, name) => [kind.resource + (kind.group && "." + kind.group), ...(namespace ? [namespace] : []), name].join("/");

/** The other way round. @param {string} key */
export function hrefOfKey(key) {
  const parts = key.split("/");
  const [resource, ...group] = parts[0].split(".");
  const [namespace, name] = parts.length === 3 ? [parts[1], parts[2]] : ["", parts[1]];
  return name ? objectHref({ group: group.join("."), resource }, namespace, name) : "";
}

/** `Ingresses` of Ingress. @param {string} kind */
export function pluralOf(kind) {
  if (kind.endsWith("y")) return kind.slice(0, -1) + "ies";
  return /s$/.test(kind) && /(Endpoints|Metrics)$/.test(kind) ? kind : /(s|x|ch)$/.test(kind) ? kind + "es" : kind + "s";
}
