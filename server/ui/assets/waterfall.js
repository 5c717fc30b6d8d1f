// @ts-check
/**
 * A story on a canvas: a line for each step, by chapter; bars on an axis on which long gaps are folded; the causes from the
 * revision that was written to the step that it woke. Only the lines in sight are drawn, so their number does not matter.
 */

import { h, onFrame } from "./dom.js";
import { duration } from "./format.js";

const LINE = 22;
const HEAD = 30;
const AXIS = 26;
/** Of the height: arrows are looked for by it. */
const BAND = 1024;
/** More arrows than these hide each other. */
const MOST_ARROWS = 400;
/** Of those that cross much of the height, as many are looked at. */
const MOST_LONG = 1000;

/**
 * @typedef {{ chapter: string, indent: number, label: string, facts: string, start: number, duration: number, end: number,
 *   error?: string, times: number, intervals: [number, number][], critical: number, span: string, causes?: [number, number][], writes?: [number, number][] }} Step
 * @typedef {{ steps: Step[], start: number, end: number, spans: number, critical: number, waited: number, idleReconciles: number,
 *   folds: { after: number, length: number }[] }} Story
 * @typedef {{ from: { step: Step, top: number, time: number }, to: { step: Step, top: number }, time: number }} Arrow
 */

/** @template K, V @param {Map<K, V[]>} lists @param {K} key @param {V} value */
function add(lists, key, value) {
  const list = lists.get(key);
  if (list) list.push(value);
  else lists.set(key, [value]);
}

/** Time without the folded gaps: each takes a small part of the whole instead of its length. */
export class Axis {
  /** @param {Story} story */
  constructor(story) {
    this.start = story.start;
    const folds = [...story.folds].sort((one, other) => one.after - other.after);
    const busy = Math.max(1, story.end - story.start - folds.reduce((sum, fold) => sum + fold.length, 0));
    this.gap = busy / 60;
    /** @type {{ from: number, to: number, at: number }[]} */
    this.folds = [];
    let removed = 0;
    for (const { after, length } of folds) {
      this.folds.push({ from: after, to: after + length, at: after - removed });
      removed += length - this.gap;
    }
    this.length = Math.max(1, story.end - story.start - removed);
  }

  /** From nanoseconds since 1970 to the axis. @param {number} time */
  place(time) {
    const after = Math.max(0, time - this.start);
    let removed = 0;
    for (const fold of this.folds) {
      if (after >= fold.to) removed += fold.to - fold.from - this.gap;
      else if (after > fold.from) return fold.at + ((after - fold.from) / (fold.to - fold.from)) * this.gap;
      else break;
    }
    return after - removed;
  }
}

export class Waterfall {
  /** @param {(step: Step | null) => void} chosen */
  constructor(chosen) {
    this.chosen = chosen;
    /** @type {Story | null} */
    this.story = null;
    /** @type {({ chapter: string, top: number } | { step: Step, top: number })[]} */
    this.lines = [];
    /** @type {Step | null} */
    this.selected = null;
    this.from = 0;
    this.to = 1;
    this.showsCauses = true;
    /** How many lines were drawn last, for the tests. */
    this.drawn = 0;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.space = h("div.space");
    this.element = h("div.waterfall", {
      tabindex: 0, role: "application", "aria-roledescription": "waterfall", "aria-label": "Steps over time. Arrow keys choose a step, plus and minus zoom, 0 shows all.",
    }, this.space, this.canvas);
    this.draw = onFrame(() => this.drawNow());
    this.element.addEventListener("scroll", this.draw, { passive: true });
    this.element.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
    this.element.addEventListener("wheel", (/** @type {WheelEvent} */ event) => this.wheel(event), { passive: false });
    this.element.addEventListener("dblclick", () => this.selected && this.zoomTo(this.selected));
    this.pointer();
    new ResizeObserver(this.draw).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", this.draw);
  }

  /** @param {Story} story */
  show(story) {
    const wasAll = this.from === 0 && this.to === 1;
    const before = this.selected?.span;
    this.story = story;
    this.axis = new Axis(story);
    this.lines = [];
    let top = AXIS, chapter = "";
    for (const step of story.steps) {
      if (step.chapter !== chapter) {
        chapter = step.chapter;
        this.lines.push({ chapter, top });
        top += HEAD;
      }
      this.lines.push({ step, top });
      top += LINE;
    }
    this.noteCauses();
    this.height = top + 12;
    this.space.style.setProperty("height", `${this.height}px`);
    /** Who wrote a revision, and when. @type {Map<number, { step: Step, top: number, time: number }>} */
    this.writers = new Map();
    for (const line of this.lines) {
      if (!("step" in line)) continue;
      for (const [revision, time] of line.step.writes ?? []) if (!this.writers.has(revision)) this.writers.set(revision, { ...line, time });
    }
    this.noteArrows();
    if (!wasAll && !before) (this.from = 0), (this.to = 1);
    this.selected = this.story.steps.find((step) => step.span === before) ?? null;
    this.draw();
  }

  /** What called a step was woken by the same revision: one arrow is enough. */
  noteCauses() {
    /** @type {Map<Step, [number, number][]>} */
    this.causes = new Map();
    /** @type {Step[]} */
    let above = [];
    for (const line of this.lines) {
      if (!("step" in line)) {
        above = [];
        continue;
      }
      const { step } = line;
      above = above.filter((one) => one.indent < step.indent);
      const known = new Set(above.flatMap((one) => (one.causes ?? []).map(([revision]) => revision)));
      const own = (step.causes ?? []).filter(([revision]) => !known.has(revision));
      if (own.length) this.causes.set(step, own);
      above.push(step);
    }
  }

  /** Where an arrow is, so that a look at a part of a long story finds those that are there. */
  noteArrows() {
    /** Short ones by the stretches of the height that they cross. @type {Map<number, Arrow[]>} */
    this.bands = new Map();
    /** @type {Arrow[]} */
    this.longArrows = [];
    /** @type {Map<Step, Arrow[]>} */
    this.arrowsOf = new Map();
    for (const line of this.lines) {
      if (!("step" in line)) continue;
      for (const [revision, time] of this.causes?.get(line.step) ?? []) {
        const writer = this.writers?.get(revision);
        if (!writer || writer.step === line.step) continue;
        const arrow = { from: writer, to: line, time };
        for (const step of [writer.step, line.step]) add(this.arrowsOf, step, arrow);
        const first = Math.floor(Math.min(writer.top, line.top) / BAND), last = Math.floor(Math.max(writer.top, line.top) / BAND);
        if (last - first > 4) this.longArrows.push(arrow);
        else for (let band = first; band <= last; band++) add(this.bands, band, arrow);
      }
    }
  }

  get width() { return this.element.clientWidth; }
  get labels() { return Math.min(420, Math.max(120, this.width * 0.36)); }

  /** @param {number} time */
  x(time) {
    const axis = /** @type {Axis} */ (this.axis);
    const at = axis.place(time) / axis.length;
    return this.labels + ((at - this.from) / (this.to - this.from)) * (this.width - this.labels - 16);
  }

  drawNow() {
    const { canvas, element, story } = this;
    if (!story) return;
    const [width, height] = [element.clientWidth, element.clientHeight];
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== width * ratio || canvas.height !== height * ratio) {
      [canvas.width, canvas.height] = [width * ratio, height * ratio];
      canvas.style.setProperty("width", `${width}px`);
      canvas.style.setProperty("height", `${height}px`);
    }
    const pen = canvas.getContext("2d");
    const styles = getComputedStyle(element);
    const colour = (/** @type {string} */ name) => styles.getPropertyValue("--" + name).trim();
    const colours = { text: colour("text"), muted: colour("muted"), border: colour("border"), surface: colour("surface"), accent: colour("accent"), bad: colour("bad"), critical: colour("critical"), bar: colour("bar"), chosen: colour("chosen") };
    const font = styles.fontFamily;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const scroll = element.scrollTop;
    const labels = this.labels;
    const first = this.firstLine(scroll + AXIS - LINE);
    this.drawn = 0;
    pen.textBaseline = "middle";
    this.drawFolds(pen, colours, height);
    for (let at = first; at < this.lines.length; at++) {
      const line = this.lines[at];
      const y = line.top - scroll;
      if (y > height) break;
      this.drawn++;
      if (!("step" in line)) {
        pen.fillStyle = colours.text;
        pen.font = `600 13px ${font}`;
        pen.fillText(line.chapter, 12, y + HEAD / 2 + 3);
        pen.fillStyle = colours.border;
        pen.fillRect(12, y + HEAD - 2, width - 24, 1);
        continue;
      }
      const { step } = line;
      const isSelected = step === this.selected;
      if (isSelected) {
        pen.fillStyle = colours.chosen;
        pen.fillRect(0, y, width, LINE);
      }
      pen.font = `12px ${font}`;
      pen.fillStyle = step.error ? colours.bad : colours.text;
      const indent = 12 + Math.min(step.indent, 8) * 12;
      const label = step.times > 1 ? `${step.label} ×${step.times}` : step.label;
      pen.fillText(fitted(pen, named(pen, label, labels - indent - 10), labels - indent - 10), indent, y + LINE / 2);
      this.drawBars(pen, step, y, colours, font, width);
    }
    this.drawCauses(pen, colours, scroll, height);
    this.drawAxis(pen, colours, font, width);
  }

  /** @param {any} pen @param {Step} step @param {number} y @param {any} colours @param {string} font @param {number} width */
  drawBars(pen, step, y, colours, font, width) {
    const left = this.labels;
    pen.save();
    pen.beginPath();
    pen.rect(left, y, width - left, LINE);
    pen.clip();
    pen.fillStyle = step.error ? colours.bad : step.critical > 0 ? colours.critical : colours.bar;
    let last = left, drawnTo = -1;
    for (const [from, to] of step.intervals) {
      const x = this.x(from), end = Math.max(x + 2, this.x(to));
      last = Math.max(last, end);
      // Thousands of intervals in one pixel are one.
      if (end <= drawnTo || end < left || x > width) continue;
      drawnTo = end;
      pen.beginPath();
      pen.roundRect(x, y + 5, end - x, LINE - 10, 3);
      pen.fill();
    }
    const story = /** @type {Story} */ (this.story);
    const share = step.critical > 0 && story.critical > 0 ? Math.round((100 * step.critical) / story.critical) : 0;
    const words = duration(step.duration) + (share > 0 ? ` ◆${share}%` : "");
    pen.font = `11px ${font}`;
    pen.fillStyle = share > 0 ? colours.text : colours.muted;
    const wide = pen.measureText(words).width;
    const x = last + 6 + wide < width - 8 ? last + 6 : this.x(step.start) - wide - 6;
    if (x > left) pen.fillText(words, x, y + LINE / 2);
    pen.restore();
  }

  /** @param {any} pen @param {any} colours @param {number} height */
  drawFolds(pen, colours, height) {
    const axis = /** @type {Axis} */ (this.axis);
    pen.strokeStyle = colours.border;
    pen.setLineDash([3, 4]);
    for (const fold of axis.folds) {
      for (const at of [fold.from, fold.to]) {
        const x = Math.round(this.x(axis.start + at)) + 0.5;
        if (x < this.labels) continue;
        pen.beginPath();
        pen.moveTo(x, AXIS);
        pen.lineTo(x, height);
        pen.stroke();
      }
    }
    pen.setLineDash([]);
  }

  /** From the end of the write to the beginning of what it woke. @param {any} pen @param {any} colours @param {number} scroll @param {number} height */
  drawCauses(pen, colours, scroll, height) {
    if (!this.showsCauses) return;
    pen.save();
    pen.beginPath();
    pen.rect(this.labels, AXIS, this.width, height);
    pen.clip();
    /** @type {Set<Arrow>} */
    const found = new Set(this.selected ? this.arrowsOf?.get(this.selected) : []);
    for (let band = Math.floor(scroll / BAND); band <= Math.floor((scroll + height) / BAND); band++) {
      for (const arrow of this.bands?.get(band) ?? []) found.add(arrow);
    }
    for (const arrow of this.longArrows?.slice(0, MOST_LONG) ?? []) found.add(arrow);
    let drawn = 0;
    for (const { from: writer, to: line, time } of found) {
      const from = writer.top - scroll + LINE / 2, to = line.top - scroll + LINE / 2;
      if ((from < 0 && to < 0) || (from > height && to > height)) continue;
      const isChosen = line.step === this.selected || writer.step === this.selected;
      if (++drawn > MOST_ARROWS && !isChosen) continue;
      const x1 = this.x(writer.time), x2 = this.x(time);
      pen.globalAlpha = isChosen ? 1 : 0.35;
      pen.lineWidth = isChosen ? 2 : 1;
      pen.strokeStyle = pen.fillStyle = colours.accent;
      pen.beginPath();
      pen.moveTo(x1, from);
      const bend = Math.min(60, Math.max(14, Math.abs(x2 - x1) / 2));
      pen.bezierCurveTo(x1 + bend, from, x2 - bend, to, x2 - 4, to);
      pen.stroke();
      pen.beginPath();
      pen.moveTo(x2, to);
      pen.lineTo(x2 - 6, to - 3.5);
      pen.lineTo(x2 - 6, to + 3.5);
      pen.fill();
    }
    pen.restore();
  }

  /** @param {any} pen @param {any} colours @param {string} font @param {number} width */
  drawAxis(pen, colours, font, width) {
    const axis = /** @type {Axis} */ (this.axis);
    pen.fillStyle = colours.surface;
    pen.fillRect(0, 0, width, AXIS);
    pen.fillStyle = colours.border;
    pen.fillRect(0, AXIS - 1, width, 1);
    pen.font = `11px ${font}`;
    const seen = (this.to - this.from) * axis.length;
    const step = nice(seen / Math.max(2, (width - this.labels) / 110));
    const begin = Math.ceil((this.from * axis.length) / step) * step;
    for (let at = begin; at <= this.to * axis.length; at += step) {
      const x = this.labels + ((at / axis.length - this.from) / (this.to - this.from)) * (width - this.labels - 16);
      pen.fillStyle = colours.border;
      pen.fillRect(Math.round(x), AXIS - 6, 1, 6);
      pen.fillStyle = colours.muted;
      const isFolded = axis.folds.some((fold) => at >= fold.at && at <= fold.at + axis.gap);
      if (!isFolded) pen.fillText("+" + duration(this.timeAt(at)), x + 3, AXIS / 2);
    }
    for (const fold of axis.folds) {
      const x = this.x(axis.start + fold.from), end = this.x(axis.start + fold.to);
      if (end - x < 30 || x < this.labels) continue;
      pen.fillStyle = colours.muted;
      pen.fillText(fitted(pen, "⋯ " + duration(fold.to - fold.from), end - x), x + 2, AXIS / 2);
    }
  }

  /** How long after the beginning a place of the axis is. @param {number} place */
  timeAt(place) {
    const axis = /** @type {Axis} */ (this.axis);
    let added = 0;
    for (const fold of axis.folds) if (place > fold.at + axis.gap) added += fold.to - fold.from - axis.gap;
    return place + added;
  }

  /** @param {number} top */
  firstLine(top) {
    let low = 0, high = this.lines.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.lines[middle].top + HEAD < top) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  /** @param {number} y */
  stepAt(y) {
    const top = y + this.element.scrollTop;
    for (let at = this.firstLine(top - LINE); at < this.lines.length && this.lines[at].top <= top; at++) {
      const line = this.lines[at];
      if ("step" in line && top >= line.top && top < line.top + LINE) return line.step;
    }
    return null;
  }

  /** @param {Step | null} step */
  select(step) {
    this.selected = step;
    const line = step && this.lines.find((one) => "step" in one && one.step === step);
    if (line) {
      const { scrollTop, clientHeight } = this.element;
      // One step further is followed; one elsewhere is brought to the middle, with what is around it.
      const above = scrollTop + AXIS - line.top, below = line.top + LINE - scrollTop - clientHeight;
      if (above > HEAD || below > HEAD) this.element.scrollTop = line.top - clientHeight / 2;
      else if (above > 0) this.element.scrollTop -= above;
      else if (below > 0) this.element.scrollTop += below;
    }
    this.chosen(step);
    this.draw();
  }

  /** @param {number} factor @param {number} [around] a part of what is seen */
  zoom(factor, around = 0.5) {
    const center = this.from + (this.to - this.from) * around;
    const length = Math.min(1, Math.max(1e-7, (this.to - this.from) * factor));
    this.look(center - length * around, length);
  }

  /** @param {number} from @param {number} length */
  look(from, length) {
    this.from = Math.max(0, Math.min(1 - length, from));
    this.to = this.from + length;
    this.draw();
  }

  fit() { this.look(0, 1); }

  /** @param {Step} step */
  zoomTo(step) {
    const axis = /** @type {Axis} */ (this.axis);
    const from = axis.place(step.start) / axis.length, to = axis.place(step.end) / axis.length;
    const length = Math.min(1, Math.max(1e-7, (to - from) * 1.4));
    this.look((from + to - length) / 2, length);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const steps = this.lines.flatMap((line) => ("step" in line ? [line.step] : []));
    const at = this.selected ? steps.indexOf(this.selected) : -1;
    const move = (/** @type {number} */ by) => this.select(steps[Math.max(0, Math.min(steps.length - 1, at + by))] ?? null);
    const pan = (/** @type {number} */ by) => this.look(this.from + by * (this.to - this.from), this.to - this.from);
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => move(1), ArrowUp: () => move(-1), PageDown: () => move(15), PageUp: () => move(-15), Home: () => move(-steps.length), End: () => move(steps.length),
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1.7), 0: () => this.fit(),
      Enter: () => this.selected && this.zoomTo(this.selected), Escape: () => this.select(null),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    const area = this.width - this.labels - 16;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const x = event.clientX - this.element.getBoundingClientRect().left;
      this.zoom(Math.exp(event.deltaY * 0.004), Math.min(1, Math.max(0, (x - this.labels) / area)));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.look(this.from + ((event.deltaX || event.deltaY) / area) * (this.to - this.from), this.to - this.from);
    }
  }

  /** A press chooses; a press that moves pans; two fingers zoom. */
  pointer() {
    /** @type {Map<number, PointerEvent>} */
    const down = new Map();
    let moved = 0;
    this.canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      down.set(event.pointerId, event);
      moved = 0;
    });
    this.canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      const before = down.get(event.pointerId);
      if (!before) return;
      const area = this.width - this.labels - 16;
      if (down.size === 2) {
        const [one, other] = [...down.values()];
        const fixed = one.pointerId === event.pointerId ? other : one;
        const was = Math.abs(before.clientX - fixed.clientX), is = Math.abs(event.clientX - fixed.clientX);
        if (was > 8 && is > 8) this.zoom(was / is);
      } else {
        const by = event.clientX - before.clientX;
        moved += Math.abs(by);
        if (moved > 4) {
          this.canvas.setPointerCapture(event.pointerId);
          this.look(this.from - (by / area) * (this.to - this.from), this.to - this.from);
        }
      }
      down.set(event.pointerId, event);
    });
    const up = (/** @type {PointerEvent} */ event) => {
      if (down.delete(event.pointerId) && moved <= 4 && event.type === "pointerup") this.select(this.stepAt(event.clientY - this.element.getBoundingClientRect().top));
    };
    this.canvas.addEventListener("pointerup", up);
    this.canvas.addEventListener("pointercancel", up);
  }
}

/** 1, 2 or 5 times a power of ten. @param {number} value */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return power * (value / power <= 1 ? 1 : value / power <= 2 ? 2 : value / power <= 5 ? 5 : 10);
}

/** The name of an object says more than where it is, which goes first if there is no room. @param {any} pen @param {string} text @param {number} width */
const named = (pen, text, width) => (pen.measureText(text).width <= width ? text : text.replace(/[^\s/]+\/[^\s/]+\/(?=\S)/g, "…/"));

/** @param {any} pen @param {string} text @param {number} width */
function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? text.slice(0, low) + "…" : "";
}
