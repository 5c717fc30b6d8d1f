// @ts-check
/** Elements from data. Text is always text: nothing here, or elsewhere, makes markup of a string. */

const SVG = "http://www.w3.org/2000/svg";

/** An element, text, nothing, or a list of such. @typedef {Node | string | number | null | undefined | false | any[]} Child */

/**
 * An element: `h("a.link", { href: "#/" }, "text")`.
 * Properties that begin with `on` are listeners, `style` is an object, all others are attributes.
 * @param {string} tag
 * @param {Record<string, any> | null} [properties]
 * @param {...any} children
 * @returns {any}
 */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag.split(".")[0] || "div"), tag, properties, children);
}

/** The same for SVG. @param {string} tag @param {Record<string, any> | null} [properties] @param {...any} children @returns {any} */
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag.split(".")[0]), tag, properties, children);
}

/** @param {any} element @param {string} tag @param {Record<string, any> | null | undefined} properties @param {any[]} children */
function fill(element, tag, properties, children) {
  const classes = tag.split(".").slice(1);
  if (classes.length) element.classList.add(...classes);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, String(text));
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** @param {Element} element @param {Child[]} children */
export function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : String(child));
    }
  }
}

/**
 * Gives an element other children. If the focus was on one of the old ones, it moves to its like among the new ones, so that
 * a redraw does not throw a person who uses the keyboard out of the page.
 * @param {Element} element @param {...Child} children
 */
export function replace(element, ...children) {
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  const wanted = focused && focused !== element && element.contains(focused) ? likeness(focused) : null;
  element.replaceChildren();
  append(element, children);
  if (!focused || !wanted) return;
  const alike = () => [...element.querySelectorAll(focused.tagName)].find((one) => likeness(/** @type {HTMLElement} */ (one)) === wanted);
  const next = focused.isConnected ? focused : /** @type {HTMLElement | undefined} */ (alike());
  next?.focus({ preventScroll: true });
}

/** What tells elements apart for a person. @param {HTMLElement} element */
const likeness = (element) => [element.tagName, element.id, element.getAttribute("href"), element.getAttribute("aria-label"), element.getAttribute("href") ? "" : element.textContent].join("\n");

/**
 * Calls `draw` once before the next frame, however often it was asked for.
 * @param {() => void} draw
 */
export function onFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/** A name that may be broken behind its slashes, and at its dashes as all text. @param {string} text */
export const breakable = (text) => text.split(/(?<=\/)/).flatMap((part, at) => (at ? [h("wbr"), part] : [part]));

/** A name that may be broken between its words: `PodReadyToStartContainers`. @param {string} text */
export const words = (text) => text.split(/(?<=[a-z])(?=[A-Z])/).flatMap((part, at) => (at ? [h("wbr"), part] : [part]));

/** @param {string} text @param {"" | "good" | "warn" | "bad" | "quiet"} [tone] */
export const badge = (text, tone = "") => h("span.badge" + (tone ? "." + tone : ""), null, text);

/** A short message in the corner, also for screen readers. @param {string} text @param {"" | "bad"} [tone] */
export function toast(text, tone = "") {
  const place = document.getElementById("toasts") ?? h("div", { id: "toasts", role: "status", "aria-live": "polite" });
  if (!place.isConnected) document.body.append(place);
  const shown = h("div.toast" + (tone ? "." + tone : ""), null, text);
  place.append(shown);
  setTimeout(() => shown.remove(), 6000);
}

/**
 * Tabs that the arrow keys move between.
 * @param {{ id: string, title: string }[]} tabs @param {string} current @param {(id: string) => void} choose
 */
export function tabBar(tabs, current, choose) {
  const bar = h("div.tabs", { role: "tablist" });
  for (const tab of tabs) {
    const chosen = tab.id === current;
    bar.append(h("button", {
      role: "tab", id: "tab-" + tab.id, "aria-selected": String(chosen), "aria-controls": "tab-panel", tabindex: chosen ? 0 : -1,
      onclick: () => choose(tab.id),
    }, tab.title));
  }
  bar.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const buttons = [...bar.children];
    const at = buttons.indexOf(/** @type {Element} */ (document.activeElement));
    /** @type {HTMLElement} */ (buttons[(at + step + buttons.length) % buttons.length]).focus();
  });
  return bar;
}
