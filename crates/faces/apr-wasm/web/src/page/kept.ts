// The local files of this tab, so that a reload opens them again.

import type { Input } from "../api/index.js";

/** Files that were open before a reload; without handles where the browser has none. */
export interface Kept {
  title: string;
  handles: FileSystemHandle[];
}

/** What a handle is asked where browsers have it; their types do not know it yet. */
interface Permitted {
  queryPermission?(how: { mode: "read" }): Promise<PermissionState>;
  requestPermission?(how: { mode: "read" }): Promise<PermissionState>;
}

const KEY = "apr-open";
const STORE = "open";
/** Handles that are kept for tabs: those of tabs that were closed are the oldest. */
const MOST = 32;

/** Keeps what was opened in this tab, by handles where it was opened by handles. */
export async function keep(title: string, input: Input): Promise<void> {
  const id = Date.now();
  remember(JSON.stringify({ id, title }));
  const entries: readonly unknown[] = Array.isArray(input) ? input : [input];
  if (!("FileSystemHandle" in window) || !entries.every((entry) => entry instanceof FileSystemHandle)) return;
  await within("readwrite", (store) => {
    store.put(entries, id);
    const all = store.getAllKeys();
    all.onsuccess = () => all.result.slice(0, -MOST).forEach((old) => store.delete(old));
  }).catch(() => undefined);
}

/** What was open in this tab before it was loaded. */
export async function kept(): Promise<Kept | undefined> {
  const said = remembered();
  if (said === undefined) return undefined;
  const { id, title } = JSON.parse(said) as { id: number; title: string };
  const handles = await within("readonly", (store) => store.get(id)).catch(() => undefined);
  return { title, handles: (handles as FileSystemHandle[] | undefined) ?? [] };
}

/** Forgets it: the user has closed it, or opened what has an address. */
export function forget(): void {
  remember(undefined);
}

/** Whether all of the files can be read; `ask` asks the user, and needs a click. */
export async function isPermitted(handles: readonly FileSystemHandle[], ask: boolean): Promise<boolean> {
  for (const handle of handles as (FileSystemHandle & Permitted)[]) {
    const mode = { mode: "read" } as const;
    const state = await (ask ? handle.requestPermission?.(mode) : handle.queryPermission?.(mode));
    if (state !== "granted") return false;
  }
  return handles.length > 0;
}

// A page without storage keeps nothing over a reload.
function remember(text: string | undefined): void {
  try {
    if (text === undefined) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, text);
  } catch {
    return;
  }
}

function remembered(): string | undefined {
  try {
    return sessionStorage.getItem(KEY) ?? undefined;
  } catch {
    return undefined;
  }
}

/** Runs a transaction on the handles, and gives what its request gave. */
function within(mode: IDBTransactionMode, run: (store: IDBObjectStore) => IDBRequest | void): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("apr-page", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const transaction = opening.result.transaction(STORE, mode);
      const request = run(transaction.objectStore(STORE));
      transaction.oncomplete = () => {
        opening.result.close();
        resolve(request?.result);
      };
      transaction.onerror = () => reject(transaction.error);
    };
  });
}
