// @ts-check
/** Requests to the API, as whoever is signed in; lists that stay current. */

const KEY = "ferry.session-key";

/** What the API said instead of an answer. */
export class Refused extends Error {
  /** @param {number} code @param {any} status */
  constructor(code, status) {
    super(status?.message || `the server answered ${code}`);
    this.code = code;
    this.reason = status?.reason;
  }
}

export const session = {
  get key() { return localStorage.getItem(KEY); },
  /** @param {string} key */
  begin(key) { localStorage.setItem(KEY, key); },
  end() { localStorage.removeItem(KEY); },
};

/** Told when the server does not know the caller (any more). */
export const signedOut = new EventTarget();

/** How often a request that may be sent twice is sent again when the network fails, and after how long. */
const AGAIN = 3, AGAIN_AFTER = 300;

/**
 * `isSafe`: it changes nothing, though its method is not GET.
 * @param {string} path
 * @param {{ method?: string, body?: any, type?: string, accept?: string, signal?: AbortSignal, isSafe?: boolean }} [options]
 * @returns {Promise<Response>}
 */
export async function send(path, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { Accept: options.accept ?? "application/json" };
  if (options.body !== undefined) headers["Content-Type"] = options.type ?? "application/json";
  if (session.key) headers["X-Ferry-Session-Key"] = session.key;
  const method = options.method ?? "GET";
  const body = options.body === undefined ? undefined : typeof options.body === "string" ? options.body : JSON.stringify(options.body);
  // Answers of the API are about now.
  const ask = () => fetch(path, { method, headers, body, signal: options.signal, cache: "no-store", redirect: "error" });
  /** @param {number} left @returns {Promise<Response>} */
  const asked = async (left) => {
    try {
      return await ask();
    } catch (error) {
      // A browser ends its connections when the computer's network changes.
      if (isAborted(error) || !left || !(method === "GET" || options.isSafe)) throw error;
      await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER));
      return asked(left - 1);
    }
  };
  const response = await asked(AGAIN);
  if (response.ok) return response;
  const status = await response.json().catch(() => null);
  if (response.status === 401 && !path.startsWith("/ui/")) signedOut.dispatchEvent(new Event("now"));
  throw new Refused(response.status, status);
}

/** @param {string} path @param {Parameters<typeof send>[1]} [options] @returns {Promise<any>} */
export const get = async (path, options) => (await send(path, options)).json();

/** @param {string} path @param {any} body @returns {Promise<any>} */
export const post = async (path, body) => (await send(path, { method: "POST", body })).json();

/** A question that is asked by POST. @param {string} path @param {any} body @returns {Promise<any>} */
export const review = async (path, body) => (await send(path, { method: "POST", body, isSafe: true })).json();

/** Whether it was only we who ended it. @param {any} error */
export const isAborted = (error) => error?.name === "AbortError";

/**
 * The lines of an answer as they come.
 * @param {string} path @param {AbortSignal} signal @param {Parameters<typeof send>[1]} [options]
 */
export async function* lines(path, signal, options) {
  const response = await send(path, { ...options, signal });
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = parts.pop() ?? "";
      for (const part of parts) yield part;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}

const TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const METADATA_EVENT = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PAGE = 500;

/**
 * All objects behind a path, now and from now on.
 *
 * The list is read in pages; then a watch goes on from where it ended. When the watch ends, another goes on; when what it
 * missed is gone (410), everything is read again. `changed` is called after each page and each event.
 */
export class Live {
  /**
   * @param {string} path
   * @param {{ as?: "table" | "metadata" | "object", query?: string, signal: AbortSignal, changed: () => void }} options
   */
  constructor(path, options) {
    this.path = path;
    this.as = options.as ?? "object";
    this.query = options.query ? options.query + "&" : "";
    this.signal = options.signal;
    this.changed = options.changed;
    /** Objects, or rows of a table, by uid. @type {Map<string, any>} */
    this.items = new Map();
    /** @type {any[]} */
    this.columns = [];
    /** @type {"loading" | "live" | "stale"} */
    this.state = "loading";
    /** @type {any} */
    this.error = null;
    this.run();
  }

  get accept() { return this.as === "table" ? TABLE : this.as === "metadata" ? METADATA : "application/json"; }

  async run() {
    let pause = 1000;
    while (!this.signal.aborted) {
      try {
        let revision = await this.list();
        this.state = "live";
        this.error = null;
        pause = 1000;
        this.changed();
        while (revision) revision = await this.follow(revision);
      } catch (error) {
        if (isAborted(error) || this.signal.aborted) return;
        this.state = "stale";
        this.error = error;
        this.changed();
        // What one may not do now, one may not do in a second.
        if (error instanceof Refused && [401, 403, 404, 405].includes(error.code)) return;
        await new Promise((resolve) => setTimeout(resolve, pause));
        pause = Math.min(pause * 2, 30000);
      }
    }
  }

  async list() {
    const found = new Map();
    let next = "", revision = "";
    do {
      const page = await get(`${this.path}?${this.query}limit=${PAGE}${next && "&continue=" + encodeURIComponent(next)}`, {
        accept: this.accept, signal: this.signal,
      });
      if (page.columnDefinitions?.length) this.columns = page.columnDefinitions;
      // Objects in a list leave out what the list says of them all.
      const named = { apiVersion: page.apiVersion, kind: String(page.kind ?? "").replace(/List$/, "") };
      for (const item of page.rows ?? page.items ?? []) found.set(uidOf(item), page.rows ? item : { ...named, ...item });
      ({ continue: next = "", resourceVersion: revision } = page.metadata);
      // The first pages are shown while the others come, unless there is something to show already.
      if (next && this.state === "loading") {
        this.items = found;
        this.changed();
      }
    } while (next);
    this.items = found;
    return revision;
  }

  /** Returns the revision to go on from; "" if everything has to be read again. @param {string} revision */
  async follow(revision) {
    const path = `${this.path}?${this.query}watch=true&allowWatchBookmarks=true&resourceVersion=${revision}`;
    const accept = this.as === "metadata" ? METADATA_EVENT : this.accept;
    for await (const line of lines(path, this.signal, { accept })) {
      if (!line) continue;
      const { type, object } = JSON.parse(line);
      if (type === "ERROR") {
        if (object.code === 410) return "";
        throw new Refused(object.code, object);
      }
      const item = this.as === "table" ? object.rows?.[0] : object;
      if (!item) continue;
      revision = metadataOf(item).resourceVersion ?? revision;
      if (type === "BOOKMARK") continue;
      if (type === "DELETED") this.items.delete(uidOf(item));
      else this.items.set(uidOf(item), item);
      this.changed();
    }
    // The server ends watches now and then, a proxy or a sleeping computer too.
    await new Promise((resolve) => setTimeout(resolve, 200));
    return revision;
  }
}

/** Of an object, or of a row of a table. @param {any} item */
export const metadataOf = (item) => item.metadata ?? item.object?.metadata ?? {};
/** @param {any} item */
const uidOf = (item) => {
  const metadata = metadataOf(item);
  // Usage has no uid.
  return metadata.uid ?? `${metadata.namespace}/${metadata.name}`;
};

/** One list of names, for the search. @param {string} path @param {AbortSignal} signal */
export async function metadataList(path, signal) {
  /** @type {any[]} */
  const found = [];
  let next = "";
  do {
    const page = await get(`${path}?limit=${PAGE}${next && "&continue=" + encodeURIComponent(next)}`, { accept: METADATA, signal });
    found.push(...page.items);
    next = page.metadata.continue ?? "";
  } while (next && found.length < 20000);
  return found;
}
