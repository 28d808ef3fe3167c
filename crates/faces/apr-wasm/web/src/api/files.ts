// Files as the module reads them: synchronously, by ranges.

import type { HostFiles } from "./module.js";
import { AprError } from "./errors.js";

/** One file that a model may be read from. */
export interface FileSpec {
  /** Its name, relative to the model's folder. */
  name: string;
  /** A file of the browser. */
  blob?: Blob;
  /** Its bytes, where they are in memory. */
  bytes?: Uint8Array;
  /** Where a server has it, and how long it is there. */
  url?: string;
  size?: number;
  /** Where Node has it. */
  path?: string;
}

/** A file whose ranges can be read at once. */
export interface SyncFile {
  size: number;
  read(offset: number, into: Uint8Array): void;
}

/** How often the files were read, and how many bytes that were. */
export interface Traffic {
  reads: number;
  bytes: number;
}

/** The files of a model, lent to the module. */
export class LentFiles implements HostFiles {
  readonly traffic: Traffic = { reads: 0, bytes: 0 };
  readonly #files: ReadonlyMap<string, SyncFile>;

  constructor(files: ReadonlyMap<string, SyncFile>) {
    this.#files = files;
  }

  names(): string[] {
    return [...this.#files.keys()];
  }

  size(name: string): number {
    return this.#files.get(name)?.size ?? 0;
  }

  read(name: string, offset: number, into: Uint8Array): void {
    const file = this.#files.get(name);
    if (!file) throw new Error(`no file ${name}`);
    this.traffic.reads += 1;
    this.traffic.bytes += into.length;
    file.read(offset, into);
  }
}

/** A file whose bytes are in memory. */
export function memoryFile(bytes: Uint8Array): SyncFile {
  return {
    size: bytes.length,
    read: (offset, into) => into.set(bytes.subarray(offset, offset + into.length)),
  };
}

/** A file of the browser, in a worker: only there ranges can be read at once. */
export function blobFile(blob: Blob): SyncFile {
  const reader = new FileReaderSync();
  return {
    size: blob.size,
    read(offset, into) {
      const slice = blob.slice(offset, offset + into.length);
      const bytes = new Uint8Array(reader.readAsArrayBuffer(slice));
      // A file that another program has cut gives fewer bytes, or none.
      if (bytes.length !== into.length) throw new Error("the file was changed while it was open");
      into.set(bytes);
    },
  };
}

/** Most bytes that are fetched as a whole from a server that gives no ranges. */
const LARGEST_WHOLE = 1 << 29;

/** A file of a server, in a worker. Ranges where the server gives them, else the whole file. */
export async function urlFile(url: string, known?: number): Promise<SyncFile> {
  let response: Response;
  try {
    response = await fetch(url, { headers: { range: "bytes=0-0" } });
  } catch {
    throw new AprError(
      "the server can't be reached, or does not allow pages of other sites to read it (CORS): "
        + "download the file and open it here",
      "E007",
      { file: url },
    );
  }
  if (!response.ok) {
    const message = `the server answers ${response.status} ${response.statusText}`.trimEnd();
    throw new AprError(message, "E007", { file: url });
  }
  const total = response.headers.get("content-range")?.split("/")[1];
  const size = total && total !== "*" ? Number(total) : known;
  if (response.status === 206 && size !== undefined) {
    await response.body?.cancel();
    return rangesOf(url, size);
  }
  return await wholeOf(url, response);
}

/** A file of a server that is known to give ranges, and how long it is. */
export function openKnownUrl(url: string, size: number): SyncFile {
  return rangesOf(url, size);
}

function rangesOf(url: string, size: number): SyncFile {
  return {
    size,
    read(offset, into) {
      const request = new XMLHttpRequest();
      request.open("GET", url, false);
      request.responseType = "arraybuffer";
      request.setRequestHeader("range", `bytes=${offset}-${offset + into.length - 1}`);
      request.send();
      const bytes = new Uint8Array((request.response as ArrayBuffer | null) ?? new ArrayBuffer(0));
      if (request.status !== 206 || bytes.length !== into.length) {
        throw new Error(`the server answers ${request.status} with ${bytes.length} bytes instead of ${into.length}`);
      }
      into.set(bytes);
    },
  };
}

/** A body that has begun to come, as a whole, if it is not too long for that. */
async function wholeOf(url: string, response: Response): Promise<SyncFile> {
  const tooLong = () =>
    new AprError(
      `the server gives no ranges, and the file is longer than ${LARGEST_WHOLE >> 20} MiB: `
        + "download it and open it here",
      "E008",
      { file: url },
    );
  const reader = response.body?.getReader();
  const pieces: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > LARGEST_WHOLE || Number(response.headers.get("content-length")) > LARGEST_WHOLE) {
      await reader.cancel();
      throw tooLong();
    }
    pieces.push(value);
  }
  // A blob may lie on disk; an array of this length would not.
  return blobFile(new Blob(pieces));
}

/** Opens what is said of a file, in a worker of a browser. */
export async function openInWorker(spec: FileSpec): Promise<SyncFile> {
  if (spec.bytes) return memoryFile(spec.bytes);
  if (spec.blob) return blobFile(spec.blob);
  if (spec.url) return await urlFile(spec.url, spec.size);
  throw new AprError("nothing to read", "E007", { file: spec.name });
}
