// @ts-check
/** Times, quantities and names as people read them. */

/** Three digits and a unit: `412 µs`, `1.84 s`. @param {number} nanoseconds @returns {string} */
export function duration(nanoseconds) {
  if (nanoseconds < 1e3) return `${Math.round(nanoseconds)} ns`;
  if (nanoseconds >= 100e9) return longDuration(nanoseconds);
  const [value, unit] = nanoseconds < 1e6 ? [nanoseconds / 1e3, "µs"] : nanoseconds < 1e9 ? [nanoseconds / 1e6, "ms"] : [nanoseconds / 1e9, "s"];
  return `${Number(value).toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${unit}`;
}

/** @param {number} nanoseconds @returns {string} */
export function longDuration(nanoseconds) {
  const seconds = Math.floor(nanoseconds / 1e9);
  if (seconds < 100) return duration(nanoseconds);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** As kubectl prints ages: `45s`, `3m10s`, `5h`, `12d`. @param {string | undefined} since */
export function age(since) {
  if (!since) return "";
  const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(since)) / 1000));
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (seconds < 120) return `${seconds}s`;
  if (minutes < 10) return seconds % 60 ? `${minutes}m${seconds % 60}s` : `${minutes}m`;
  if (minutes < 180) return `${minutes}m`;
  if (hours < 8) return minutes % 60 ? `${hours}h${minutes % 60}m` : `${hours}h`;
  if (hours < 48) return `${hours}h`;
  if (days < 8) return hours % 24 ? `${days}d${hours % 24}h` : `${days}d`;
  if (days < 730) return `${days}d`;
  return `${Math.floor(days / 365)}y`;
}

/** Seconds of an age as the server prints it, for sorting. @param {string} text */
export function ageSeconds(text) {
  let seconds = 0;
  for (const [, number, unit] of text.matchAll(/(\d+)([smhdy])/g)) {
    seconds += Number(number) * ({ s: 1, m: 60, h: 3600, d: 86400, y: 31536000 }[unit] ?? 0);
  }
  return seconds;
}

/** @param {string | undefined} time */
export const clock = (time) => (time ? new Date(time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "");

/** Nanoseconds since 1970. @param {number} nanoseconds */
export function instant(nanoseconds) {
  const date = new Date(nanoseconds / 1e6);
  return date.toLocaleDateString(undefined, { dateStyle: "medium" }) + " " +
    date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });
}

const UNITS = /** @type {Record<string, number>} */ ({
  n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
});

/** A quantity of the API as a number: `250m`, `2Gi`. @param {string | number | undefined} text */
export function quantity(text) {
  const match = /^([+-]?[\d.]+(?:e[+-]?\d+)?)([a-zA-Z]*)$/.exec(String(text ?? "0"));
  return match ? Number(match[1]) * (UNITS[match[2]] ?? NaN) : NaN;
}

/** @param {number} value */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) (value /= 1024), at++;
  return `${value.toFixed(value < 10 && at ? 1 : 0)} ${units[at]}`;
}

/** @param {number} value */
export const cores = (value) => (value.toFixed(value < 0.1 ? 3 : value < 10 ? 2 : 1));

/** @param {number} count @param {string} one @param {string} [many] */
export const plural = (count, one, many = one + "s") => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

const GOOD = /^(Running|Ready|Active|Bound|Available|Succeeded|Completed?|True|Healthy|Established)$/;
const BAD = /(Err|BackOff|Failed|Failure|Evicted|OOMKilled|Lost|NotReady|Invalid|Unknown|Unschedulable|DeadlineExceeded)/;
const WARN = /(Pending|Terminating|ContainerCreating|PodInitializing|Init:|Scheduling|SchedulingDisabled|Waiting|Released)/;

/** The colour of a word of a status. @param {string} word @returns {"" | "good" | "warn" | "bad"} */
export function tone(word) {
  if (BAD.test(word)) return "bad";
  if (WARN.test(word)) return "warn";
  return GOOD.test(word) ? "good" : "";
}
