// @ts-check
/** The recorded writes of an object: who wrote what, and how the object differed before and after. */

import { Refused, get, isAborted, lines } from "./api.js";
import { badge, h, replace } from "./dom.js";
import { instant } from "./format.js";
import { listPath, traceKey } from "./kinds.js";
import { may } from "./rights.js";
import { yaml } from "./yaml.js";

/** @typedef {import("./kinds.js").Kind} Kind */
/** @typedef {{ sign: " " | "-" | "+", text: string }} Line */

/** Writes that are shown at first, and how many each further press adds. */
const SHOWN = 100;
/** Equal lines around a difference. */
const AROUND = 3;
/** More comparisons than these are not made: the texts then differ as a whole. */
const MOST = 4e6;

const VERBS = /** @type {Record<string, [string, "" | "good" | "warn" | "bad"]>} */ ({
  create: ["created", "good"], update: ["updated", ""], mark: ["marked for deletion", "warn"], delete: ["deleted", "bad"],
});

/**
 * The latest write first; new ones as they come.
 * @param {HTMLElement} place @param {Kind} kind @param {string} namespace @param {string} name @param {AbortSignal} signal
 */
export async function historyPanel(place, kind, namespace, name, signal) {
  replace(place, h("p.muted", null, "loading…"));
  const key = traceKey(kind, namespace, name);
  const mayCompare = await may("list", kind, namespace, name);
  /** What was opened stays open when another write comes. @type {Map<number, HTMLElement>} */
  const compared = new Map();
  let shown = SHOWN;
  /** @param {any} found */
  const draw = (found) => {
    const bySpan = new Map(found.records.map((/** @type {any} */ record) => [record.span, record]));
    const writes = found.records.filter((/** @type {any} */ record) => record.name === "store.commit" && record.object === key && record.committed)
      .sort((/** @type {any} */ one, /** @type {any} */ other) => other.committed - one.committed);
    if (!writes.length) return replace(place, h("p.muted", null, "No write of this object is recorded."));
    const writer = (/** @type {any} */ record) => {
      for (let at = record, steps = 0; at && steps < 64; at = bySpan.get(at.parent), steps++) {
        if (at.name === "apiserver.request") return attribute(at, "user") ?? "";
      }
      return "";
    };
    const lives = new Map(found.lives.map((/** @type {any} */ life, /** @type {number} */ at) => [life.uid, at]));
    let uid = "";
    replace(place,
      found.isCut ? h("p.muted", null, "The trace has more than 50,000 spans; the oldest writes are left out.") : null,
      h("ol.life", null, writes.slice(0, shown).map((/** @type {any} */ write) => {
        const verb = attribute(write, "verb");
        const [word, colour] = VERBS[verb] ?? [verb ?? "written", ""];
        const its = attribute(write, "uid") ?? "";
        const heading = its !== uid && found.lives.length > 1 ? h("h2", null, `Object ${(lives.get(its) ?? 0) + 1} of ${found.lives.length} with this name `, h("code", null, its)) : null;
        uid = its;
        return [heading && h("li.heading", null, heading), h("li", null,
          h("div.head", null, badge(word, colour), h("b", null, `r${write.committed}`), h("time", null, instant(write.start)), h("span", null, "by ", writer(write) || "an unknown user"),
            h("a", { href: `#/trace?revision=${write.committed}` }, `Cause and effects of r${write.committed}`)),
          changes(attribute(write, "changed")),
          mayCompare && verb !== "delete" ? comparison(write.committed, verb === "create") : null)];
      })),
      writes.length > shown ? h("button", { onclick: () => { shown += SHOWN; draw(found); } }, `Show more (${writes.length - shown} left)`) : null);
  };

  /** @param {number} revision @param {boolean} isFirst */
  function comparison(revision, isFirst) {
    const known = compared.get(revision);
    if (known) return known;
    const panel = h("div");
    const details = h("details.compare", null, h("summary", null, isFirst ? `YAML of r${revision}` : `YAML before and after r${revision}`), panel);
    details.addEventListener("toggle", async () => {
      replace(panel, h("p.muted", null, "loading…"));
      const at = (/** @type {number} */ wanted) => objectAt(kind, namespace, name, wanted, signal);
      try {
        const [before, after] = await Promise.all([isFirst ? null : at(revision - 1), at(revision)]);
        replace(panel, differences(before, after));
      } catch (error) {
        if (isAborted(error)) return;
        const isGone = error instanceof Refused && error.code === 410;
        replace(panel, h("p.muted", null, isGone ? "The store has compacted this revision, so the values are gone. The changed fields stay recorded." : /** @type {Error} */ (error).message));
      }
    }, { once: true });
    compared.set(revision, details);
    return details;
  }

  for (let pause = 1000; !signal.aborted; pause = Math.min(pause * 2, 30000)) {
    try {
      for await (const line of lines(`/ferry/v1/trace?object=${encodeURIComponent(key)}&lives=all&direction=back&watch=true`, signal)) {
        if (!line) continue;
        pause = 1000;
        draw(JSON.parse(line));
      }
    } catch (error) {
      if (isAborted(error)) return;
      if (error instanceof Refused && error.code < 500) return replace(place, h("p.problem", { role: "alert" }, error.message));
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

const attribute = (/** @type {any} */ record, /** @type {string} */ name) => record.attributes?.find((/** @type {any} */ one) => one[0] === name)?.[1];

/**
 * The object as it was at a revision, as long as the store has it.
 * @param {Kind} kind @param {string} namespace @param {string} name @param {number} revision @param {AbortSignal} signal
 */
async function objectAt(kind, namespace, name, revision, signal) {
  const query = new URLSearchParams({ fieldSelector: `metadata.name=${name}`, resourceVersion: String(revision), resourceVersionMatch: "Exact" });
  const { items } = await get(`${listPath(kind, namespace)}?${query}`, { signal });
  return items[0] ?? null;
}

/** @param {any} before @param {any} after */
function differences(before, after) {
  const text = (/** @type {any} */ object) => {
    if (!object) return [];
    const { managedFields, resourceVersion, ...metadata } = object.metadata;
    return yaml({ ...object, metadata }).trimEnd().split("\n");
  };
  const shown = shortened(compare(text(before), text(after)));
  if (!shown.length) return h("p.muted", null, "Only the managed fields differ.");
  const words = { "-": "removed: ", "+": "added: ", " ": "" };
  return h("pre.yaml", { tabindex: 0, "aria-label": "Differences" }, shown.map((line) => {
    if (!line) return h("span.gap", null, "⋯\n");
    const content = [h("span.sr", null, words[line.sign]), line.sign + " " + line.text + "\n"];
    return line.sign === " " ? content : h(line.sign === "+" ? "ins" : "del", null, content);
  }));
}

/**
 * The lines of two texts: those of both, those that went and those that came.
 * @param {string[]} before @param {string[]} after @returns {Line[]}
 */
export function compare(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start++;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end++;
  const old = before.slice(start, before.length - end), fresh = after.slice(start, after.length - end);
  /** @param {string[]} texts @param {Line["sign"]} sign @returns {Line[]} */
  const all = (texts, sign) => texts.map((text) => ({ sign, text }));
  const middle = old.length * fresh.length > MOST ? [...all(old, "-"), ...all(fresh, "+")] : longest(old, fresh);
  return [...all(before.slice(0, start), " "), ...middle, ...all(before.slice(before.length - end), " ")];
}

/** By the longest common subsequence. @param {string[]} old @param {string[]} fresh @returns {Line[]} */
function longest(old, fresh) {
  const width = fresh.length + 1;
  const lengths = new Uint32Array((old.length + 1) * width);
  for (let row = old.length - 1; row >= 0; row--) {
    for (let column = fresh.length - 1; column >= 0; column--) {
      lengths[row * width + column] = old[row] === fresh[column] ? lengths[(row + 1) * width + column + 1] + 1
        : Math.max(lengths[(row + 1) * width + column], lengths[row * width + column + 1]);
    }
  }
  /** @type {Line[]} */
  const found = [];
  let row = 0, column = 0;
  while (row < old.length || column < fresh.length) {
    if (row < old.length && column < fresh.length && old[row] === fresh[column]) {
      found.push({ sign: " ", text: old[row] });
      row++, column++;
    } else if (column >= fresh.length || (row < old.length && lengths[(row + 1) * width + column] >= lengths[row * width + column + 1])) found.push({ sign: "-", text: old[row++] });
    else found.push({ sign: "+", text: fresh[column++] });
  }
  return found;
}

/** Differences with what stands around them; null is a gap. @param {Line[]} lines @returns {(Line | null)[]} */
export function shortened(lines) {
  const isNear = new Uint8Array(lines.length);
  lines.forEach((line, at) => {
    if (line.sign !== " ") isNear.fill(1, Math.max(0, at - AROUND), at + AROUND + 1);
  });
  if (!isNear.includes(1)) return [];
  /** @type {(Line | null)[]} */
  const found = [];
  lines.forEach((line, at) => {
    if (isNear[at]) found.push(line);
    else if (!at || isNear[at - 1]) found.push(null);
  });
  return found;
}

/** `spec.replicas=1→3; metadata.labels[tier]` as lines. @param {string | undefined} changed */
export function changes(changed) {
  if (!changed) return null;
  return h("ul.diff", null, String(changed).split("; ").map((one) => {
    const match = /^([^=]+)=(.*)→(.*)$/.exec(one);
    return h("li", null, match ? [h("code", null, match[1]), " ", match[2] ? h("del", null, match[2]) : null, match[2] && match[3] ? " → " : null, match[3] ? h("ins", null, match[3]) : null] : h("code", null, one));
  }));
}
