// @ts-check
/** `ferry trace` as a picture: the steps, their times and their causes. */

import { Refused, isAborted, lines } from "./api.js";
import { badge, breakable, h, replace } from "./dom.js";
import { duration, instant, longDuration, plural } from "./format.js";
import { hrefOfKey } from "./kinds.js";
import { changes } from "./history.js";
import { mayTrace } from "./rights.js";
import { Table } from "./table.js";
import { Waterfall } from "./waterfall.js";

/** After how long a watch that ended is begun again, at first and at most. */
const AGAIN = 1000, AGAIN_AT_MOST = 30000;

/** @param {import("./app.js").View} view */
export async function traceView(view) {
  view.title("Trace");
  if (!(await mayTrace())) return view.fail("You are not allowed to read the trace: it names the objects of all users.");
  const query = new URLSearchParams();
  for (const name of ["object", "namespace", "uid", "lives", "revision", "trace", "user", "last"]) {
    const value = view.query.get(name);
    if (value) query.set(name, value);
  }
  if (![...query.keys()].length) query.set("last", "true");
  const asked = [...query].filter(([name]) => !["last", "lives", "namespace"].includes(name)).map(([name, value]) => `${name} ${value}`).join(", ") || "the last command";
  const words = h("input", { id: "trace-of", type: "search", placeholder: "deployment/web, r57, user alice", "aria-label": "What to trace: an object, a revision or a user" });
  const ask = (/** @type {Event} */ event) => {
    event.preventDefault();
    const text = words.value.trim();
    const next = new URLSearchParams();
    const revision = /^r?(\d+)$/.exec(text)?.[1], user = /^user[ =:](.+)$/.exec(text)?.[1], trace = /^[\da-f]{32}$/.exec(text)?.[0];
    if (revision) next.set("revision", revision);
    else if (user) next.set("user", user.trim());
    else if (trace) next.set("trace", trace);
    else if (text) next.set("object", text), view.namespace && next.set("namespace", view.namespace);
    else next.set("last", "true");
    location.hash = `#/trace?${next}`;
  };
  const panel = h("section.grow");
  replace(view.main,
    h("header.page", null, h("div", null, h("h1", null, "Trace"), h("p.muted", null, asked)),
      h("form.tools", { onsubmit: ask, role: "search" }, words, h("button", { type: "submit" }, "Trace"), h("a.button", { href: "#/trace?last=true" }, "Last command"))),
    panel);
  tracePanel(panel, query, view.signal);
}

/** @param {HTMLElement} place @param {URLSearchParams} query @param {AbortSignal} signal */
export function tracePanel(place, query, signal) {
  const heading = h("div.story", { role: "status" }, h("p.muted", null, "reading…"));
  const steps = h("input", { type: "checkbox", id: "steps", onchange: () => follow() });
  const live = h("input", { type: "checkbox", id: "live", checked: true, onchange: () => (live.checked ? follow() : watching?.abort()) });
  const causes = h("input", { type: "checkbox", id: "causes", checked: true, onchange: () => { waterfall.showsCauses = causes.checked; waterfall.draw(); } });
  const asTable = h("input", { type: "checkbox", id: "as-table", onchange: () => { table.element.hidden = !asTable.checked; waterfall.element.hidden = asTable.checked; table.draw(); waterfall.draw(); } });
  const details = h("aside.details", { "aria-label": "The chosen step", "aria-live": "polite" });
  /** @type {any} */
  let found = null;
  const waterfall = new Waterfall((step) => describe(step));
  /** @type {Table<any>} */
  const table = new Table({
    label: "Steps", key: (step) => step.span, choose: (step) => waterfall.select(step), sortBy: 1,
    columns: [
      { title: "Step", cell: (step) => step.label, text: (step) => step.label, least: 16, share: 3 },
      { title: "Start", cell: (step) => "+" + duration(step.start - found.story.start), sort: (step) => step.start, least: 7, share: 0.2, isNumber: true },
      { title: "Duration", cell: (step) => duration(step.duration), sort: (step) => step.duration, least: 7, share: 0.2, isNumber: true },
      { title: "Critical", cell: (step) => (step.critical ? `◆ ${Math.round((100 * step.critical) / found.story.critical)}%` : ""), sort: (step) => step.critical, least: 6, share: 0.2, isNumber: true },
      { title: "Chapter", cell: (step) => step.chapter, least: 10, share: 0.5, isMinor: true },
      { title: "Facts", cell: (step) => step.error ?? step.facts, text: (step) => step.facts, least: 12, share: 3, isMinor: true },
    ],
  });
  table.element.hidden = true;
  table.element.classList.add("grow");
  place.classList.add("trace");
  replace(place, heading,
    h("div.tools", null,
      h("button.icon", { "aria-label": "Zoom in", onclick: () => waterfall.zoom(0.5) }, "+"), h("button.icon", { "aria-label": "Zoom out", onclick: () => waterfall.zoom(2) }, "−"),
      h("button", { onclick: () => waterfall.fit() }, "Fit"),
      h("label", null, live, " Live"), h("label", null, causes, " Causes"), h("label", null, steps, " Every step"), h("label", null, asTable, " As a table")),
    h("div.split", null, h("div.picture", null, waterfall.element, table.element), details));
  describe(null);

  /** @param {any} answer */
  function show(answer) {
    found = answer;
    tell();
    waterfall.show(answer.story);
    table.show(answer.story.steps);
    if (waterfall.selected) describe(waterfall.selected);
  }

  /** @type {AbortController | null} */
  let watching = null;
  /** Shows the answer, and each further one that the server sends when it has changed. */
  async function follow() {
    watching?.abort();
    const own = (watching = new AbortController());
    signal.addEventListener("abort", () => own.abort(), { once: true, signal: own.signal });
    for (let pause = AGAIN; !own.signal.aborted; pause = Math.min(pause * 2, AGAIN_AT_MOST)) {
      try {
        for await (const line of lines(`/ferry/v1/trace?${query}&watch=true&story=${steps.checked ? "steps" : "chapters"}`, own.signal)) {
          if (!line) continue;
          pause = AGAIN;
          show(JSON.parse(line));
          if (!live.checked) return own.abort();
        }
      } catch (error) {
        if (isAborted(error) || own.signal.aborted) return;
        if (!found || error instanceof Refused) replace(heading, h("p.problem", { role: "alert" }, /** @type {Error} */ (error).message));
        if (error instanceof Refused && error.code < 500) return;
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  function tell() {
    const { story } = found;
    if (!story.steps.length) return replace(heading, h("p.muted", null, "Nothing is recorded. The trace has the writes of the last days and their effects (flag --trace-retention)."));
    const path = story.steps.filter((/** @type {any} */ step) => step.critical > 0).sort((/** @type {any} */ one, /** @type {any} */ other) => other.critical - one.critical).slice(0, 4);
    const share = (/** @type {number} */ part) => `${Math.round((100 * part) / story.critical)}%`;
    const others = found.lives?.length > 1 ? h("details", null, h("summary", null, `${found.lives.length} objects had this name`), h("ul", null, found.lives.map((/** @type {any} */ life) =>
      h("li", null, h("a", { href: `#/trace?object=${encodeURIComponent(found.object)}&uid=${life.uid}`, "aria-current": life.uid === found.uid ? "true" : undefined }, instant(life.began)),
        life.ended ? `, ${longDuration(life.ended - life.began)} long` : ", end not recorded")), h("li", null, h("a", { href: `#/trace?object=${encodeURIComponent(found.object)}&lives=all` }, "all together")))) : null;
    replace(heading,
      h("p", null, h("b", null, instant(story.start)), ` · ${longDuration(story.end - story.start)} · ${plural(story.spans, "span")}`, found.object ? [" · ", h("a", { href: hrefOfKey(found.object) }, found.object)] : null,
        story.folds.length ? h("span.muted", null, ` · ${plural(story.folds.length, "gap")} folded`) : null,
        story.idleReconciles ? h("span.muted", null, ` · ${plural(story.idleReconciles, "reconcile")} without a change`) : null),
      story.critical ? h("p", null, badge("◆ critical path", "warn"), ` ${longDuration(story.critical)}: `, path.map((/** @type {any} */ step, /** @type {number} */ at) => [at ? ", " : "", h("button.link", { onclick: () => waterfall.select(waterfall.story?.steps.find((one) => one.span === step.span) ?? null) }, `${share(step.critical)} ${step.label}`)]),
        story.waited ? `, ${share(story.waited)} in watches and queues` : "") : null,
      found.clocks?.length ? h("p.muted", null, "Shifted, because an effect would begin before its cause: ", found.clocks.map((/** @type {any} */ clock) => `the clock of ${clock.source} by ${clock.offset > 0 ? "+" : "−"}${duration(Math.abs(clock.offset))}`).join(", ")) : null,
      found.isCut ? h("p.muted", null, "The trace has more than 50,000 spans; the oldest are left out.") : null,
      found.failure ? h("p.problem", null, `The history is not written to disk: ${found.failure}`) : null, others);
  }

  /** @param {any} step */
  function describe(step) {
    if (!step) return replace(details, h("p.muted", null, "Choose a step to see its details. Drag to move, Ctrl and wheel or + and − to zoom, double-click to zoom to a step."));
    const record = found.records.find((/** @type {any} */ one) => one.span === step.span);
    const select = (/** @type {any} */ one) => one && waterfall.select(one);
    const writers = [...new Set((step.causes ?? []).map((/** @type {any} */ one) => one[0]))].map((/** @type {number} */ revision) => ({ revision, step: waterfall.writers?.get(revision)?.step }));
    const written = [...new Set((step.writes ?? []).map((/** @type {any} */ one) => one[0]))];
    const woken = found.story.steps.filter((/** @type {any} */ one) => one.causes?.some((/** @type {any} */ cause) => written.includes(cause[0])));
    const facts = /** @type {[string, any][]} */ ([
      ["Chapter", step.chapter], ["Began", instant(step.start) + `, +${duration(step.start - found.story.start)}`],
      ["Took", duration(step.duration) + (step.times > 1 ? `, ${step.times} times` : "")],
      step.critical ? ["Critical path", `${duration(step.critical)}, ${Math.round((100 * step.critical) / found.story.critical)}%`] : null,
      record?.object ? ["Object", h("a", { href: hrefOfKey(record.object) }, breakable(record.object))] : null,
      writers.length ? ["Caused by", writers.slice(0, 20).map((/** @type {any} */ one) => one.step ? h("button.link", { onclick: () => select(one.step) }, breakable(`r${one.revision}: ${one.step.label}`)) : h("a", { href: `#/trace?revision=${one.revision}` }, `r${one.revision}`)).flatMap((/** @type {any} */ one) => [one, h("br")])] : null,
      written.length ? ["Wrote", written.slice(0, 20).map((revision) => [h("a", { href: `#/trace?revision=${revision}` }, `r${revision}`), " "])] : null,
      woken.length ? ["Triggered", woken.slice(0, 20).flatMap((/** @type {any} */ one) => [h("button.link", { onclick: () => select(one) }, breakable(one.label)), h("br")])] : null,
      record?.source ? ["Reported by", record.source] : null,
    ].filter(Boolean));
    const attributes = (record?.attributes ?? []).filter((/** @type {any} */ one) => one[0] !== "changed");
    const changed = record?.attributes?.find((/** @type {any} */ one) => one[0] === "changed")?.[1];
    replace(details, h("h2", null, breakable(step.label)), step.error ? h("p.problem", null, step.error) : null,
      h("dl", null, facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
      changed ? [h("h3", null, "Changed"), changes(changed)] : null,
      attributes.length ? [h("h3", null, "Attributes"), h("dl", null, attributes.map((/** @type {any} */ [name, value]) => [h("dt", null, name), h("dd", null, String(value))]))] : null,
      h("p.muted", null, record ? `${record.name} · trace ` : "", record ? h("a", { href: `#/trace?trace=${record.trace}` }, record.trace.slice(0, 8) + "…") : null));
  }

  follow();
}
