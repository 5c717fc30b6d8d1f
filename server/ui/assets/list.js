// @ts-check
/** The objects of a kind, as the server's table of them has it, current by watch. */

import { Live, metadataOf } from "./api.js";
import { badge, h, replace } from "./dom.js";
import { age, ageSeconds, plural, tone } from "./format.js";
import { kindOf, listPath, objectHref, pluralOf } from "./kinds.js";
import { Table } from "./table.js";

/** @typedef {import("./app.js").View} View */

/** @param {View} view @param {string} group @param {string} resource */
export async function listView(view, group, resource) {
  const kind = await kindOf(group, resource);
  if (!kind) return view.fail(`This cluster serves no ${resource}${group && "." + group}.`);
  view.title(pluralOf(kind.kind));
  const filter = h("input", { type: "search", placeholder: "Filter…", "aria-label": `Filter ${resource}`, oninput: () => changed() });
  const count = h("span.muted", { role: "status" });
  const problem = h("p.problem", { hidden: true, role: "alert" });
  const showsNamespace = kind.namespaced && !view.namespace;
  /** @type {string} */
  let shape = "";
  const table = new Table({
    label: kind.kind, columns: [{ title: "Name", cell: () => "" }], key: (row) => metadataOf(row).uid ?? metadataOf(row).name,
    href: (row) => objectHref(kind, metadataOf(row).namespace, metadataOf(row).name),
  });
  const live = new Live(listPath(kind, view.namespace), {
    as: "table", query: "includeObject=Metadata", signal: view.signal, changed: () => changed(),
  });
  const changed = view.throttle(() => {
    const next = live.columns.map((column) => column.name).join();
    if (next !== shape && next) {
      shape = next;
      table.setColumns(columnsOf(live.columns, showsNamespace));
    }
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = [...live.items.values()];
    const rows = words.length ? all.filter((row) => words.every((/** @type {string} */ word) => textOf(row).includes(word))) : all;
    if (shape) table.show(rows);
    replace(count, live.state === "loading" && !all.length ? "loading…" : words.length ? `${rows.length} of ${plural(all.length, "object")}` : plural(all.length, "object"));
    problem.hidden = !live.error;
    replace(problem, live.error ? live.error.message : "");
  });
  replace(view.main,
    h("header.page", null, h("div", null, h("h1", null, pluralOf(kind.kind)), h("p.muted", null, `${kind.resource}${kind.group && "." + kind.group} · ${kind.version} `, count)),
      h("div.tools", null, filter)),
    problem, table.element);
  table.element.classList.add("tall");
}

/** @param {any} row */
function textOf(row) {
  const metadata = metadataOf(row);
  const labels = Object.entries(metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  return [metadata.namespace, metadata.name, ...row.cells.filter((/** @type {any} */ cell) => typeof cell !== "object"), ...labels].join(" ").toLowerCase();
}

/** @param {any[]} definitions @param {boolean} showsNamespace @returns {import("./table.js").Column<any>[]} */
function columnsOf(definitions, showsNamespace) {
  /** @type {import("./table.js").Column<any>[]} */
  const columns = definitions.map((definition, at) => {
    const text = (/** @type {any} */ row) => String(row.cells[at] ?? "");
    const isMinor = definition.priority > 0;
    if (at === 0) return { title: "Name", cell: text, text, least: 14, share: 3 };
    if (definition.name === "Age") {
      const since = (/** @type {any} */ row) => metadataOf(row).creationTimestamp;
      return { title: "Age", cell: (row) => age(since(row)), sort: (row) => -Date.parse(since(row)), least: 5, share: 0.2, isNumber: true };
    }
    if (/^(Status|Phase|Condition|Ready)$/.test(definition.name)) {
      const isCount = (/** @type {string} */ words) => /^\d+\/\d+$/.test(words);
      return {
        title: definition.name, text, least: definition.name === "Ready" ? 6 : 11, share: 0.5, isMinor,
        cell: (row) => badge(text(row), isCount(text(row)) ? counted(text(row)) : tone(text(row))),
      };
    }
    const isNumber = definition.type === "integer" || definition.type === "number";
    return {
      title: definition.name, cell: text, text, isMinor, isNumber, least: isNumber ? 6 : 7, share: isNumber ? 0.2 : 1.4,
      sort: (row) => (isNumber || /^\d+( \(|$)/.test(text(row)) ? parseFloat(text(row)) || 0 : /^(\d+[smhdy])+$/.test(text(row)) ? ageSeconds(text(row)) : text(row).toLowerCase()),
    };
  });
  if (showsNamespace) {
    const namespace = (/** @type {any} */ row) => metadataOf(row).namespace ?? "";
    columns.splice(1, 0, { title: "Namespace", cell: namespace, text: namespace, least: 7, share: 1 });
  }
  return columns;
}

/** `1/2` are not all. @param {string} words */
function counted(words) {
  const [ready, all] = words.split("/");
  return ready === all ? "good" : "warn";
}
