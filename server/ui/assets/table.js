// @ts-check
/**
 * A table of any length. Only the rows in sight are elements; what a screen reader needs to know of the others stands in
 * `aria-rowcount` and `aria-rowindex`.
 */

import { h, onFrame, replace } from "./dom.js";

const ROW = 36;
/** Rows above and below the sight, so that scrolling finds them drawn. */
const MARGIN = 8;

/**
 * @template T
 * @typedef {{ title: string, cell: (row: T) => any, text?: (row: T) => string, sort?: (row: T) => string | number,
 *   least?: number, share?: number, isNumber?: boolean, isMinor?: boolean }} Column
 * `least` is its width in rem, `share` its part of what is left.
 */

/** @template T */
export class Table {
  /**
   * @param {{ label: string, columns: Column<T>[], href?: (row: T) => string, key: (row: T) => string, sortBy?: number,
   *   descending?: boolean, choose?: (row: T) => void, empty?: string }} options
   */
  constructor(options) {
    this.options = options;
    /** @type {Column<T>[]} */
    this.columns = [];
    /** @type {T[]} */
    this.rows = [];
    this.sortBy = options.sortBy ?? 0;
    this.descending = options.descending ?? false;
    this.current = "";
    this.head = h("div.row.head", { role: "row", "aria-rowindex": 1 });
    this.space = h("div.space", { role: "rowgroup" });
    this.empty = h("p.empty", { hidden: true }, options.empty ?? "Nothing here.");
    this.body = h("div.body", { tabindex: 0, role: "table", "aria-label": options.label, onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event) },
      h("div.sticky", { role: "rowgroup" }, this.head), this.space);
    this.element = h("div.table", null, this.body, this.empty);
    this.draw = onFrame(() => this.drawNow());
    this.body.addEventListener("scroll", this.draw, { passive: true });
    new ResizeObserver(this.draw).observe(this.body);
    this.setColumns(options.columns);
  }

  /** @param {Column<T>[]} columns */
  setColumns(columns) {
    this.columns = columns;
    replace(this.head, columns.map((column, at) => h("div.cell" + (column.isNumber ? ".number" : "") + (column.isMinor ? ".minor" : ""), {
      role: "columnheader", "aria-sort": at === this.sortBy ? (this.descending ? "descending" : "ascending") : "none",
    }, h("button", { onclick: () => this.order(at) }, column.title, at === this.sortBy ? (this.descending ? " ↓" : " ↑") : ""))));
    this.setWidths("", columns, 1);
    // On a phone the minor ones are left out, and the others are narrower.
    this.setWidths("narrow-", columns.filter((column) => !column.isMinor), 0.64);
  }

  /**
   * Head and rows are grids of their own. They have the same columns because both are as wide as this says, and no narrower
   * than what the columns need.
   * @param {string} prefix @param {Column<T>[]} columns @param {number} part of each column's least width
   */
  setWidths(prefix, columns, part) {
    const widths = columns.map(({ least = 6, share = 1 }) => `minmax(${least * part}rem, ${share}fr)`);
    this.element.style.setProperty(`--${prefix}columns`, widths.join(" "));
    this.element.style.setProperty(`--${prefix}least`, `${columns.reduce((sum, { least = 6 }) => sum + least * part, 1)}rem`);
  }

  /** @param {number} at */
  order(at) {
    this.descending = this.sortBy === at && !this.descending;
    this.sortBy = at;
    this.setColumns(this.columns);
    this.show(this.rows);
  }

  /** @param {T[]} rows */
  show(rows) {
    const column = this.columns[this.sortBy] ?? this.columns[0];
    const value = column.sort ?? ((/** @type {T} */ row) => (column.text ?? ((one) => String(column.cell(one) ?? "")))(row).toLowerCase());
    const sign = this.descending ? -1 : 1;
    const keyed = rows.map((row) => ({ row, value: value(row) }));
    keyed.sort((one, other) => (one.value < other.value ? -sign : one.value > other.value ? sign : 0));
    this.rows = keyed.map((one) => one.row);
    this.draw();
  }

  drawNow() {
    const { rows, body, space } = this;
    body.setAttribute("aria-rowcount", String(rows.length + 1));
    this.empty.hidden = rows.length > 0;
    this.body.classList.toggle("bare", rows.length === 0);
    const first = Math.max(0, Math.floor(body.scrollTop / ROW) - MARGIN);
    const last = Math.min(rows.length, Math.ceil((body.scrollTop + body.clientHeight) / ROW) + MARGIN);
    space.style.setProperty("height", `${rows.length * ROW}px`);
    const focused = space.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).closest(".row")?.getAttribute("data-key") : null;
    replace(space, rows.slice(first, last).map((row, offset) => this.row(row, first + offset)));
    if (focused) space.querySelector(`[data-key="${CSS.escape(focused)}"] a, [data-key="${CSS.escape(focused)}"] button`)?.focus({ preventScroll: true });
  }

  /** @param {T} row @param {number} at */
  row(row, at) {
    const { href, key, choose } = this.options;
    const id = key(row);
    return h("div.row" + (id === this.current ? ".current" : ""), {
      role: "row", "aria-rowindex": at + 2, "data-key": id, style: { transform: `translateY(${at * ROW}px)` },
      onclick: choose && (() => choose(row)),
    }, this.columns.map((column, index) => {
      const content = column.cell(row);
      const isLink = index === 0 && (href || choose);
      const shown = !isLink ? content : href ? h("a", { href: href(row) }, content) : h("button.link", null, content);
      return h("div.cell" + (column.isNumber ? ".number" : "") + (column.isMinor ? ".minor" : ""), {
        role: index === 0 ? "rowheader" : "cell", title: column.text ? column.text(row) : typeof content === "string" ? content : undefined,
      }, shown);
    }));
  }

  /** The arrow keys move from row to row. @param {KeyboardEvent} event */
  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!step || !this.rows.length) return;
    event.preventDefault();
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.closest?.(".row")?.getAttribute("data-key");
    const at = focused ? this.rows.findIndex((row) => this.options.key(row) === focused) : -1;
    const next = Math.max(0, Math.min(this.rows.length - 1, at + step));
    const top = next * ROW, height = this.body.clientHeight - ROW;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top + ROW > this.body.scrollTop + height) this.body.scrollTop = top + ROW - height;
    this.drawNow();
    this.space.querySelector(`[data-key="${CSS.escape(this.options.key(this.rows[next]))}"] a, [data-key="${CSS.escape(this.options.key(this.rows[next]))}"] button`)?.focus({ preventScroll: true });
  }
}
