/**
 * Typed models of APRN files, as plain data: from a server, or from the browser's cache. Arrays are
 * nested lists. Linear regressions and k-means have known fields; others are `E003`, since their
 * payloads tell nobody but their own program what they hold.
 *
 * @module
 */

import { AprError, toAprError } from "./errors.js";
import { loadModule } from "./module.js";

const DATABASE = "apr-typed-models";
const STORE = "files";

/** A model of its type, from the bytes of an APRN file. */
export async function loadFromBytes<T>(bytes: Uint8Array, expectedType: string, password?: string): Promise<T> {
  const module = await loadModule("explore");
  try {
    return JSON.parse(module.load_typed(bytes, expectedType, password)) as T;
  } catch (thrown) {
    throw toAprError(thrown);
  }
}

/** A model of its type, from a server. */
export async function loadFromUrl<T>(url: string | URL, expectedType: string, password?: string): Promise<T> {
  const response = await fetch(url).catch(() => undefined);
  if (!response?.ok) {
    throw new AprError(response ? `the server answers ${response.status}` : "the server can't be reached", "E007", {
      file: String(url),
    });
  }
  return await loadFromBytes(new Uint8Array(await response.arrayBuffer()), expectedType, password);
}

/** Keeps the bytes of an APRN file in the browser (IndexedDB) under a key. */
export async function store(key: string, bytes: Uint8Array): Promise<void> {
  await inStore("readwrite", (files) => files.put(bytes, key));
}

/** A model of its type that was {@link store}d under a key; `null` where there is none. */
export async function loadCached<T>(key: string, expectedType: string, password?: string): Promise<T | null> {
  const bytes = await inStore("readonly", (files) => files.get(key) as IDBRequest<Uint8Array | undefined>);
  return bytes ? await loadFromBytes(bytes, expectedType, password) : null;
}

async function inStore<T>(mode: IDBTransactionMode, use: (files: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const opening = indexedDB.open(DATABASE, 1);
  opening.addEventListener("upgradeneeded", () => opening.result.createObjectStore(STORE));
  const database = await done(opening);
  try {
    return await done(use(database.transaction(STORE, mode).objectStore(STORE)));
  } finally {
    database.close();
  }
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.addEventListener("success", () => resolve(request.result));
    request.addEventListener("error", () => reject(new AprError(request.error?.message ?? "the cache failed", "E007")));
  });
}
