/**
 * Model files in Node, by path, URL or bytes. The calls are those of the browser; they run in the
 * calling thread.
 *
 * @module
 */

import { closeSync, fstatSync, openSync, readSync, writeSync, ftruncateSync } from "node:fs";
import { readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { basename, join } from "node:path";

import { Desk, type Method, type OpenSpec, type OutputFile, type OutputFiles } from "./desk.js";
import { AprError } from "./errors.js";
import { memoryFile, type FileSpec, type SyncFile } from "./files.js";
import { specOf, type OpenOptions } from "./input.js";
import { Model, type CallOptions, type Engine } from "./model.js";

export { AprError, type Where } from "./errors.js";
export type { FileSpec, Traffic } from "./files.js";
export type { OutputFile } from "./desk.js";
export type { CallOptions } from "./model.js";
export type { OpenOptions };
export type * from "./reports.js";
export { Model };

/** How to open in Node. */
export interface NodeOptions extends OpenOptions {
  /** Where conversions write; the working directory by default. */
  outputFolder?: string;
}

/** Calls that are answered in this thread, so that they can't be ended from outside. */
class DirectEngine implements Engine {
  readonly #desk: Desk;

  constructor(outputFolder: string) {
    this.#desk = new Desk({
      open: openFile,
      moduleBinary: (name) => readFile(new URL(`../wasm/${name}/apr_wasm_bg.wasm`, import.meta.url)),
      create: (names) => create(names, outputFolder),
    });
  }

  call(id: string, spec: OpenSpec, method: Method, args: unknown[], options: CallOptions): Promise<unknown> {
    options.signal?.throwIfAborted();
    return this.#desk.call(id, spec, method, args, options);
  }

  close(id: string): void {
    void this.#desk.close(id);
  }
}

/**
 * Opens a model: a path, bytes, a URL (fetched as a whole) or `hf://OWNER/NAME/FILE`.
 *
 * @throws AprError as in the browser.
 */
export async function open(input: string | URL | Uint8Array, options: NodeOptions = {}): Promise<Model> {
  const model = await unopened(input, options);
  await model.tensors();
  return model;
}

/** Files as a model whose headers are not read yet, as in the browser. */
export async function unopened(input: string | URL | Uint8Array, options: NodeOptions = {}): Promise<Model> {
  const { spec, title } = typeof input === "string" && !input.includes("://")
    ? await specOfPath(input, options)
    : await specOf(input, options);
  return new Model(new DirectEngine(options.outputFolder ?? "."), spec, title);
}

async function specOfPath(path: string, options: OpenOptions): Promise<{ spec: OpenSpec; title: string }> {
  const found = await stat(path).catch((error: NodeJS.ErrnoException) => {
    throw new AprError(error.message, "E007", { file: path });
  });
  const title = basename(path);
  const password = options.password === undefined ? {} : { password: options.password };
  const folder = found.isDirectory() ? path : join(path, "..");
  const files: FileSpec[] = [];
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    if (!entry.isDirectory()) files.push({ name: entry.name, path: join(folder, entry.name) });
    else if (found.isDirectory()) {
      for (const inner of await readdir(join(folder, entry.name), { withFileTypes: true })) {
        const name = `${entry.name}/${inner.name}`;
        if (inner.isFile()) files.push({ name, path: join(folder, name) });
      }
    }
  }
  const name = options.name ?? (found.isDirectory() ? undefined : title);
  return { title, spec: { files, ...(name !== undefined && { name }), ...password } };
}

async function openFile(spec: FileSpec): Promise<SyncFile> {
  if (spec.bytes) return memoryFile(spec.bytes);
  if (spec.path !== undefined) return lazyFile(spec.path);
  if (spec.url !== undefined) {
    const response = await fetch(spec.url).catch(() => undefined);
    if (!response?.ok) {
      const answer = response ? `the server answers ${response.status}` : "the server can't be reached";
      throw new AprError(answer, "E007", { file: spec.url });
    }
    return memoryFile(new Uint8Array(await response.arrayBuffer()));
  }
  throw new AprError("nothing to read", "E007", { file: spec.name });
}

/** A file that is opened when it is first read: a folder may have thousands. */
async function lazyFile(path: string): Promise<SyncFile> {
  const { size } = await stat(path);
  let file: number | undefined;
  return {
    size,
    read(offset, into) {
      file ??= openSync(path, "r");
      let done = 0;
      while (done < into.length) {
        const count = readSync(file, into, done, into.length - done, offset + done);
        if (count === 0) throw new Error(`the file ends at byte ${fstatSync(file).size}`);
        done += count;
      }
    },
  };
}

/** Files beside their final names, which they get when they are complete. */
async function create(names: string[], folder: string): Promise<OutputFiles> {
  const partial = (name: string) => join(folder, `.${name.replaceAll("/", "_")}.part`);
  const files = new Map(names.map((name) => [name, { file: openSync(partial(name), "w"), size: 0 }]));
  let current = files.get(names[0]!)!;
  return {
    output: {
      begin(name) {
        const next = files.get(name);
        if (!next) throw new Error(`the plan has no file ${name}`);
        current = next;
        current.size = 0;
        ftruncateSync(current.file, 0);
      },
      write(bytes) {
        writeAll(current.file, bytes, current.size);
        current.size += bytes.length;
      },
      patch: (offset, bytes) => writeAll(current.file, bytes, offset),
    },
    async finish(isGood) {
      const written: OutputFile[] = [];
      for (const [name, { file, size }] of files) {
        closeSync(file);
        const path = join(folder, name);
        if (isGood) await rename(partial(name), path);
        else await rm(partial(name), { force: true });
        written.push({ name, size, path });
      }
      return isGood ? written : [];
    },
  };
}

function writeAll(file: number, bytes: Uint8Array, position: number): void {
  for (let done = 0; done < bytes.length; ) done += writeSync(file, bytes, done, bytes.length - done, position + done);
}
