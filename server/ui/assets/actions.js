// @ts-check
/** What can be done to an object. Each action is a request, which is shown as it will be sent and sent only when confirmed. */

import { send } from "./api.js";
import { h, replace, toast } from "./dom.js";
import { objectPath } from "./kinds.js";
import { may } from "./rights.js";

/** @typedef {import("./kinds.js").Kind} Kind */
/** @typedef {{ method: string, path: string, type?: string, body: any }} Call */

const RESTARTED = "kubectl.kubernetes.io/restartedAt";
const RESTARTABLE = ["deployments.apps", "statefulsets.apps", "daemonsets.apps"];

/**
 * The buttons of what the user may do to an object.
 * @param {Kind} kind @param {any} object @param {() => void} gone
 */
export async function actionButtons(kind, object, gone) {
  const { name, namespace = "", uid } = object.metadata;
  const path = objectPath(kind, namespace, name);
  const named = kind.resource + (kind.group && "." + kind.group);
  const [mayDelete, mayPatch, mayScale] = await Promise.all([
    may("delete", kind, namespace, name), may("patch", kind, namespace, name),
    kind.subresources.has("scale") ? may("patch", kind, namespace, name, "scale") : false,
  ]);
  const words = `${kind.kind} ${namespace && namespace + "/"}${name}`;
  const buttons = [];
  if (mayScale) {
    buttons.push(h("button", { onclick: () => scale() }, "Scale…"));
  }
  if (mayPatch && RESTARTABLE.includes(named)) {
    buttons.push(h("button", { onclick: () => confirmed({
      title: `Restart ${words}?`, note: "Its pods are replaced as its update strategy says.", verb: "Restart", done: `${words} is restarting`,
      call: () => ({ method: "PATCH", path, type: "application/strategic-merge-patch+json",
        body: { spec: { template: { metadata: { annotations: { [RESTARTED]: new Date().toISOString().replace(/\.\d+/, "") } } } } } }),
    }) }, "Restart…"));
  }
  if (mayPatch && named === "nodes") {
    const isCordoned = object.spec?.unschedulable === true;
    const verb = isCordoned ? "Uncordon" : "Cordon";
    buttons.push(h("button", { onclick: () => confirmed({
      title: `${verb} ${words}?`, verb, done: `${words} is ${isCordoned ? "uncordoned" : "cordoned"}`,
      note: isCordoned ? "The scheduler may place pods on this node again." : "The scheduler places no further pods on this node. Running pods stay.",
      call: () => ({ method: "PATCH", path, type: "application/merge-patch+json", body: { spec: { unschedulable: isCordoned ? null : true } } }),
    }) }, verb + "…"));
  }
  if (mayDelete && kind.verbs.includes("delete")) {
    buttons.push(h("button.danger", { onclick: () => confirmed({
      title: `Delete ${words}?`, verb: "Delete", isDangerous: true, done: `${words} is deleted`, after: gone,
      note: "Its dependents are deleted too. If another object has taken its name by then, the uid below keeps that one safe.",
      call: () => ({ method: "DELETE", path, body: { apiVersion: "v1", kind: "DeleteOptions", propagationPolicy: "Background", preconditions: { uid } } }),
    }) }, "Delete…"));
  }
  return buttons;

  function scale() {
    const replicas = h("input", { type: "number", id: "replicas", min: 0, max: 100000, value: String(object.spec?.replicas ?? 1) });
    confirmed({
      title: `Scale ${words}?`, verb: "Scale", done: `${words} is scaled`, input: h("label.inline", { for: "replicas" }, "Replicas ", replicas), changes: replicas,
      call: () => ({ method: "PATCH", path: path + "/scale", type: "application/merge-patch+json", body: { spec: { replicas: Number(replicas.value) } } }),
    });
  }
}

/** The body as it is shown and as it is sent. @param {Call} call */
const bodyOf = (call) => JSON.stringify(call.body, null, 2);

/** A request as text, as it goes out. @param {Call} call */
const written = (call) => [`${call.method} ${call.path}`, `Content-Type: ${call.type ?? "application/json"}`, "", bodyOf(call)].join("\n");

/**
 * @param {{ title: string, note?: string, verb: string, call: () => Call, done: string, input?: HTMLElement, changes?: HTMLInputElement,
 *   isDangerous?: boolean, after?: () => void }} action
 */
function confirmed(action) {
  // Made once for what is shown: what is sent is what was read.
  let call = action.call();
  const request = h("pre.request", { tabindex: 0, "aria-label": "The request that will be sent" }, written(call));
  const said = h("p.problem", { role: "alert", hidden: true });
  const button = h("button" + (action.isDangerous ? ".danger" : ".primary"), { id: "confirm", onclick: () => go() }, action.verb);
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
    h("h2", { id: "dialog-title" }, action.title),
    action.note ? h("p", null, action.note) : null,
    action.input, h("p.muted", null, "This will be sent:"), request, said,
    h("div.buttons", null, h("button", { onclick: () => dialog.close() }, "Cancel"), button));
  action.changes?.addEventListener("input", () => {
    call = action.call();
    button.disabled = !action.changes?.checkValidity() || action.changes.value === "";
    replace(request, written(call));
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();

  async function go() {
    button.disabled = true;
    try {
      await send(call.path, { method: call.method, type: call.type, body: bodyOf(call) });
      dialog.close();
      toast(action.done);
      action.after?.();
    } catch (error) {
      said.hidden = false;
      replace(said, /** @type {Error} */ (error).message);
      button.disabled = false;
    }
  }
}

