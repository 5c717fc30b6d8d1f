// @ts-check
/** The page: who is signed in, what is chosen, and which view the address asks for. */

import { get, session, signedOut } from "./api.js";
import { h, onFrame, replace } from "./dom.js";
import { kinds, listHref, pluralOf } from "./kinds.js";
import { listView } from "./list.js";
import { objectView } from "./object.js";
import { overviewView } from "./overview.js";
import { pendingView } from "./pending.js";
import { listable, may, mayTrace } from "./rights.js";
import { openSearch } from "./search.js";
import { openLink, signInView, signOut, whoAmI } from "./signin.js";
import { traceView } from "./trace.js";

/**
 * What a view is given: where it draws, what is chosen, and a signal that ends everything it started.
 * @typedef {{ main: HTMLElement, namespace: string, signal: AbortSignal, query: URLSearchParams, user: string,
 *   title: (text: string) => void, fail: (text: string) => void, throttle: (draw: () => void) => () => void }} View
 */

/** In the side bar, besides all others. */
const COMMON = [
  ["Workloads", ["pods", "deployments.apps", "statefulsets.apps", "daemonsets.apps", "jobs.batch", "cronjobs.batch"]],
  ["Network", ["services", "ingresses.networking.k8s.io", "networkpolicies.networking.k8s.io"]],
  ["Configuration", ["configmaps", "secrets", "persistentvolumeclaims", "horizontalpodautoscalers.autoscaling"]],
  ["Cluster", ["nodes", "namespaces", "events", "customresourcedefinitions.apiextensions.k8s.io"]],
];

const NAMESPACE = "ferry.namespace";

async function start() {
  document.addEventListener("keydown", shortcuts);
  // A link that is opened where the page is open already changes the address and loads nothing.
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#link=")) location.reload();
  });
  try {
    await openLink();
  } catch (error) {
    return signInView("This link was used already, or it has expired. Run ferry ui again.");
  }
  const user = await whoAmI().catch((error) => error);
  if (user instanceof Error) return signInView(`The API server does not respond: ${user.message}`);
  if (!user) {
    const had = session.key;
    session.end();
    return signInView(had ? "You have been signed out." : "");
  }
  signedOut.addEventListener("now", () => {
    session.end();
    signInView("You have been signed out.");
  }, { once: true });
  shell(user.username);
}

/** @param {KeyboardEvent} event */
function shortcuts(event) {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(/** @type {HTMLElement} */ (event.target).tagName);
  if ((event.key === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !isTyping)) {
    if (!document.getElementById("content")) return;
    event.preventDefault();
    openSearch();
  }
}

/** @param {string} user */
async function shell(user) {
  const main = h("main", { id: "content", tabindex: -1 });
  const nav = h("nav", { id: "nav", "aria-label": "Kinds" });
  const namespaces = h("select", { id: "namespace", "aria-label": "Namespace", onchange: () => {
    localStorage.setItem(NAMESPACE, namespaces.value);
    route();
    fillNav();
  } });
  const menu = h("button.icon.menu", { "aria-label": "Menu", "aria-controls": "nav", "aria-expanded": "false", onclick: () => toggle(undefined) }, "☰");
  const toggle = (/** @type {boolean | undefined} */ open) => {
    const isOpen = document.body.classList.toggle("nav-open", open);
    menu.setAttribute("aria-expanded", String(isOpen));
  };
  replace(document.body,
    h("a.skip", { href: "#content", onclick: (/** @type {Event} */ event) => { event.preventDefault(); main.focus(); } }, "Skip to content"),
    h("header.top", null,
      menu,
      h("a.brand", { href: "#/" }, h("img", { src: "./icon.svg", alt: "", width: 24, height: 24 }), "Ferry"),
      h("button.search", { onclick: () => openSearch() }, h("span", null, "Search everything"), h("kbd", null, "Ctrl K")),
      namespaces,
      h("span.user", { title: user }, user),
      session.key ? h("button.quiet", { onclick: signOut }, "Sign out") : null),
    h("div.frame", null, nav, main));
  nav.addEventListener("click", (/** @type {Event} */ event) => {
    if (/** @type {HTMLElement} */ (event.target).closest("a")) toggle(false);
  });

  const isForAll = await may("list", { group: "", resource: "pods" });
  await fillNamespaces();
  const traced = await mayTrace();

  async function fillNamespaces() {
    const stored = localStorage.getItem(NAMESPACE) ?? "";
    const found = await get("/api/v1/namespaces?limit=1000", { accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io" }).catch(() => null);
    const names = found ? found.items.map((/** @type {any} */ one) => one.metadata.name) : ["default"];
    if (stored && !names.includes(stored)) names.push(stored);
    replace(namespaces, isForAll ? h("option", { value: "" }, "All namespaces") : null, names.map((/** @type {string} */ name) => h("option", { value: name }, name)));
    namespaces.value = isForAll ? stored : stored || "default";
  }

  async function fillNav() {
    const [all, isListable] = await Promise.all([kinds(), listable(namespaces.value)]);
    const shown = all.filter(isListable);
    const link = (/** @type {string} */ href, /** @type {string} */ text) => h("a", { href, "data-href": href }, text);
    const byName = new Map(shown.map((kind) => [kind.resource + (kind.group && "." + kind.group), kind]));
    const common = COMMON.map(([title, names]) => {
      const found = /** @type {string[]} */ (names).flatMap((name) => byName.get(name) ?? []);
      return found.length ? [h("h2", null, title), found.map((kind) => link(listHref(kind), kind.kind === "CustomResourceDefinition" ? "Custom kinds" : pluralOf(kind.kind)))] : null;
    });
    const named = new Set(COMMON.flatMap(([, names]) => names));
    const others = shown.filter((kind) => !named.has(kind.resource + (kind.group && "." + kind.group)));
    replace(nav,
      h("div.group", null, link("#/", "Overview"), traced ? link("#/trace", "Trace") : null, link("#/pending", "Pending pods")),
      common,
      h("details", null, h("summary", null, `All other kinds (${others.length})`), others.map((kind) => h("a", { href: listHref(kind), "data-href": listHref(kind), title: kind.group }, kind.kind, kind.group && !kind.group.endsWith("k8s.io") ? h("small", null, " " + kind.group) : null))));
    mark();
  }

  function mark() {
    for (const link of nav.querySelectorAll("a")) {
      const href = /** @type {string} */ (link.getAttribute("data-href"));
      const here = location.hash || "#/";
      const isHere = href === "#/" ? here === "#/" : here === href || here.startsWith(href + "?") || here.startsWith(href + "/") || here.startsWith(href.replace("#/k/", "#/o/") + "/");
      if (isHere) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  /** @type {AbortController | null} */
  let showing = null;
  let shownPath = "";
  function route() {
    showing?.abort();
    const controller = (showing = new AbortController());
    const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
    const parts = path.split("/").slice(1).map(decodeURIComponent);
    /** @type {View} */
    const view = {
      main, user, namespace: namespaces.value, signal: controller.signal, query: new URLSearchParams(query),
      title: (text) => void (document.title = text === "Ferry" ? text : `${text} · Ferry`),
      fail: (text) => replace(main, h("header.page", null, h("h1", null, document.title.replace(/ · Ferry$/, ""))), h("p.problem", { role: "alert" }, text)),
      throttle: (draw) => onFrame(() => { if (!controller.signal.aborted) draw(); }),
    };
    view.title("Ferry");
    const shown = show(view, parts);
    shown.catch((error) => {
      if (!controller.signal.aborted) view.fail(error.message);
    });
    mark();
    // A change of tab is no other page: the focus stays where it is.
    const place = parts.slice(0, 5).join("/");
    if (shownPath && shownPath !== place) main.focus({ preventScroll: true });
    shownPath = place;
  }

  /** @param {View} view @param {string[]} parts */
  async function show(view, parts) {
    const group = (/** @type {string} */ text) => (text === "core" ? "" : text);
    switch (parts[0]) {
      case "k": return listView(view, group(parts[1]), parts[2]);
      case "o": return objectView(view, group(parts[1]), parts[2], parts[3] === "-" ? "" : parts[3], parts[4], parts[5] ?? "");
      case "trace": return traceView(view);
      case "pending": return pendingView(view);
      default: return overviewView(view);
    }
  }

  addEventListener("hashchange", route);
  route();
  await fillNav();
}

start();
