// What can be opened, as files.

import type { OpenSpec } from "./desk.js";
import { AprError } from "./errors.js";
import type { FileSpec } from "./files.js";
import { filesOfHub } from "./hub.js";

/** How to open. */
export interface OpenOptions {
  /** Opens what is encrypted. */
  password?: string;
  /** Which of several files is meant; all of them are a model's folder by default. */
  name?: string;
  /** Another hub than Hugging Face's. */
  hub?: string;
}

/** What a browser can open: files, folders, bytes, addresses. */
export type Input =
  | Blob
  | Uint8Array
  | FileSystemHandle
  | readonly (File | FileSystemHandle)[]
  | URL
  | string;

/** Folders in folders that are gone into: a model's folder and the one below. */
const DEEPEST = 1;

/** The files of an input, which one is meant, and what it is called. */
export async function specOf(input: Input, options: OpenOptions): Promise<{ spec: OpenSpec; title: string }> {
  const { files, name, title } = await filesOf(input, options.hub);
  const meant = options.name ?? name;
  if (files.length === 0) throw new AprError("there are no files to open", "E007", { file: title });
  return {
    title,
    spec: {
      files,
      ...(meant !== undefined && { name: meant }),
      ...(options.password !== undefined && { password: options.password }),
    },
  };
}

async function filesOf(input: Input, hub?: string): Promise<{ files: FileSpec[]; name?: string; title: string }> {
  if (typeof input === "string" && input.startsWith("hf://")) return await filesOfHub(input, hub);
  if (typeof input === "string" || input instanceof URL) {
    const url = new URL(input, globalThis.location?.href);
    if (url.pathname.endsWith("/")) return await filesOfFolder(url);
    const name = decodeURIComponent(url.pathname.split("/").pop() ?? "") || "model";
    return { files: [{ name, url: url.href }], name, title: name };
  }
  if (input instanceof Uint8Array) return { files: [{ name: "model", bytes: input }], name: "model", title: "model" };
  if (input instanceof Blob) {
    const name = input instanceof File ? input.name : "model";
    return { files: [{ name, blob: input }], name, title: name };
  }
  if (!Array.isArray(input)) {
    const handle = input as FileSystemHandle;
    const files = await filesOfHandle(handle);
    return handle.kind === "file" ? { files, name: handle.name, title: handle.name } : { files, title: handle.name };
  }
  const files: FileSpec[] = [];
  for (const entry of input as readonly (File | FileSystemHandle)[]) {
    if (entry instanceof Blob) files.push({ name: nameWithin(entry), blob: entry });
    else files.push(...(await filesOfHandle(entry)));
  }
  const [first] = files;
  if (files.length === 1 && first) return { files, name: first.name, title: first.name };
  const chosen = input.find((entry) => entry instanceof File && entry.webkitRelativePath !== "") as File | undefined;
  const folder = chosen?.webkitRelativePath.split("/")[0];
  // Files without a folder are called by the largest, which has the weights.
  const largest = [...files].sort((one, other) => (other.blob?.size ?? 0) - (one.blob?.size ?? 0))[0];
  return { files, title: folder ?? largest?.name ?? "model" };
}

/** What `files.json` says of a folder on a server: its files, and the one that is meant. */
interface ServedFolder {
  title?: string;
  name?: string | null;
  files: { name: string; size: number }[];
}

/** The files of a folder on a server, which lists them in `files.json`. */
async function filesOfFolder(folder: URL): Promise<{ files: FileSpec[]; name?: string; title: string }> {
  const list = new URL("files.json", folder);
  const response = await fetch(list).catch(() => undefined);
  if (!response?.ok) {
    const why = response ? `the server answers ${response.status}` : "the server can't be reached";
    throw new AprError(`${why}: an address that ends in a slash is a folder with a files.json`, "E007", { file: list.href });
  }
  const { title, name, files } = (await response.json()) as ServedFolder;
  const urlOf = (path: string) => new URL(path.split("/").map(encodeURIComponent).join("/"), folder).href;
  const specs = files.map(({ name, size }) => ({ name, size, url: urlOf(name) }));
  const called = title ?? (folder.pathname.split("/").at(-2) || "model");
  return { files: specs, title: called, ...(typeof name === "string" && { name }) };
}

/** The name of a file within the folder that was chosen. */
function nameWithin(file: File): string {
  const path = file.webkitRelativePath || file.name;
  const slash = path.indexOf("/");
  return slash < 0 ? path : path.slice(slash + 1);
}

async function filesOfHandle(handle: FileSystemHandle, prefix = "", depth = 0): Promise<FileSpec[]> {
  if (handle.kind === "file") {
    const file = await (handle as FileSystemFileHandle).getFile();
    return [{ name: prefix + handle.name, blob: file }];
  }
  const files: FileSpec[] = [];
  const below = depth === 0 ? "" : `${prefix}${handle.name}/`;
  for await (const entry of (handle as FileSystemDirectoryHandle).values()) {
    if (entry.kind === "file" || depth < DEEPEST) files.push(...(await filesOfHandle(entry, below, depth + 1)));
  }
  return files;
}
