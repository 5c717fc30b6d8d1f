// @ts-check
/** What the user may do, as the API server says. What one may not do is not offered; the server decides again anyway. */

import { review as ask } from "./api.js";

/** @type {Map<string, Promise<boolean>>} */
const asked = new Map();

export const forgetRights = () => asked.clear();

/** @param {Record<string, any>} spec */
function review(spec) {
  const key = JSON.stringify(spec);
  let answer = asked.get(key);
  if (!answer) {
    answer = ask("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {
      apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview", spec,
    }).then((review) => review.status.allowed === true);
    answer.catch(() => asked.delete(key));
    asked.set(key, answer);
  }
  return answer.catch(() => false);
}

/**
 * @param {string} verb @param {{ group: string, resource: string }} kind @param {string} [namespace] @param {string} [name]
 * @param {string} [subresource]
 */
export const may = (verb, kind, namespace = "", name = "", subresource = "") =>
  review({ resourceAttributes: { verb, group: kind.group, resource: kind.resource, namespace, name, subresource } });

/** @param {string} verb @param {string} path */
export const mayPath = (verb, path) => review({ nonResourceAttributes: { verb, path } });

export const mayTrace = () => mayPath("get", "/ferry/v1/trace");

/**
 * Which kinds may be listed in a namespace, in one question. Where the server does not know all rules, all may be.
 * @param {string} namespace
 * @returns {Promise<(kind: { group: string, resource: string }) => boolean>}
 */
export async function listable(namespace) {
  const review = await ask("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {
    apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectRulesReview", spec: { namespace: namespace || "default" },
  }).catch(() => null);
  if (!review || review.status.incomplete) return () => true;
  const has = (/** @type {string[] | undefined} */ list, /** @type {string} */ word) => !!list && (list.includes("*") || list.includes(word));
  return (kind) => review.status.resourceRules.some((/** @type {any} */ rule) =>
    has(rule.verbs, "list") && has(rule.apiGroups, kind.group) && has(rule.resources, kind.resource));
}
