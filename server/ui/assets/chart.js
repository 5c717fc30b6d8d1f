// @ts-check
/** Small plots: one line over time, with the most there can be. */

import { svg } from "./dom.js";

/**
 * @param {{ label: string, points: { time: number, value: number }[], most: number, format: (value: number) => string, from: number, to: number }} options
 */
export function plot({ label, points, most, format, from, to }) {
  const [width, height, left, bottom] = [520, 150, 6, 20];
  const peak = Math.max(...points.map((point) => point.value), 0);
  // Little use of a large machine is seen too.
  const top = Math.max(peak * 1.25, most > 0 && peak > most / 4 ? most : 0, 1e-9);
  const x = (/** @type {number} */ time) => left + ((time - from) / Math.max(1, to - from)) * (width - left * 2);
  const y = (/** @type {number} */ value) => height - bottom - (value / top) * (height - bottom - 12);
  const line = points.map((point, at) => `${at ? "L" : "M"}${x(point.time).toFixed(1)},${y(point.value).toFixed(1)}`).join("");
  const last = points.at(-1);
  const area = last ? `${line}L${x(last.time).toFixed(1)},${height - bottom}L${x(points[0].time).toFixed(1)},${height - bottom}Z` : "";
  const hour = (/** @type {number} */ time) => new Date(time).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  const now = last ? `${format(last.value)}${most > 0 ? ` of ${format(most)}, ${Math.round((100 * last.value) / most)}%` : ""}` : "not known";
  return svg("svg.plot", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}: now ${now}, at most ${format(peak)} since ${hour(from)}` },
    [0.5, 1].map((part) => svg("line.grid", { x1: left, x2: width - left, y1: y(top * part), y2: y(top * part) })),
    svg("line.grid", { x1: left, x2: width - left, y1: height - bottom, y2: height - bottom }),
    most > 0 && most <= top ? svg("line.most", { x1: left, x2: width - left, y1: y(most), y2: y(most) }) : null,
    points.length > 1 ? [svg("path.area", { d: area }), svg("path.line", { d: line })] : last ? svg("circle.dot", { cx: x(last.time), cy: y(last.value), r: 3 }) : null,
    svg("text.axis", { x: left, y: height - 5 }, hour(from)), svg("text.axis.end", { x: width - left, y: height - 5 }, hour(to)),
    svg("text.axis", { x: left, y: 9 }, format(top)));
}

/**
 * Parts of a whole, side by side.
 * @param {{ name: string, count: number, tone: string }[]} parts @param {string} label
 */
export function bar(parts, label) {
  const all = parts.reduce((sum, part) => sum + part.count, 0);
  let at = 0;
  return svg("svg.parts", { viewBox: "0 0 100 4", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${parts.filter((part) => part.count).map((part) => `${part.count} ${part.name}`).join(", ") || "none"}` },
    parts.filter((part) => part.count).map((part) => {
      const width = (100 * part.count) / all;
      const piece = svg("rect." + (part.tone || "plain"), { x: at, y: 0, width, height: 4 });
      at += width;
      return piece;
    }));
}
