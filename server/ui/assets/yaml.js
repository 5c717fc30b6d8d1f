// @ts-check
/** Objects as YAML, the way `kubectl get -o yaml` prints them. Only what JSON can hold: no anchors, no tags. */

/** @param {any} value */
export function yaml(value) {
  return write(value, "").replace(/^\n/, "") + "\n";
}

/** @param {any} value @param {string} indent @returns {string} */
function write(value, indent) {
  if (Array.isArray(value)) {
    if (!value.length) return " []";
    return value.map((element) => "\n" + indent + "-" + inList(element, indent)).join("");
  }
  if (value !== null && typeof value === "object") {
    const keys = Object.keys(value).filter((key) => value[key] !== undefined).sort();
    if (!keys.length) return " {}";
    return keys.map((key) => {
      const below = value[key];
      // Lists stand at the column of their key.
      const deeper = Array.isArray(below) ? indent : indent + "  ";
      return "\n" + indent + scalar(key) + ":" + write(below, deeper);
    }).join("");
  }
  return " " + (typeof value === "string" ? text(value, indent) : String(value));
}

/** The first key of an object stands behind the dash. @param {any} value @param {string} indent */
function inList(value, indent) {
  const written = write(value, indent + "  ");
  return written.startsWith("\n") ? " " + written.slice(indent.length + 3) : written;
}

/** @param {string} value @param {string} indent */
function text(value, indent) {
  // A block keeps lines as they are; one that begins with a space, or has other control signs, cannot be told that way.
  if (value.includes("\n") && !/^[ \n]/.test(value) && !/[\u0000-\u0009\u000b-\u001f\u007f\ufeff]/.test(value)) {
    const lines = value.replace(/\n+$/, "").split("\n");
    const ends = value.length - value.replace(/\n+$/, "").length;
    const chomp = ends === 0 ? "-" : ends === 1 ? "" : "+";
    const more = "\n".repeat(Math.max(0, ends - 1));
    return "|" + chomp + "\n" + lines.map((line) => (line ? indent + line : "")).join("\n") + more;
  }
  return scalar(value);
}

/** @param {string} value */
function scalar(value) {
  const isPlain = /^[A-Za-z0-9_./][A-Za-z0-9_./ :@%+,()=-]*$/.test(value) && !/(: |:$| #|\s$)/.test(value);
  // Words and numbers that YAML, old or new, takes for something else.
  const isOther = /^(true|false|yes|no|on|off|y|n|null|~|[-+.]?[\d.][\d._eE+:xo-]*|0x[\da-fA-F]+|[-+]?\.(inf|nan))$/i.test(value);
  return isPlain && !isOther ? value : JSON.stringify(value);
}
