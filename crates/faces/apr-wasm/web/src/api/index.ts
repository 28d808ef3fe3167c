/**
 * Model files in a browser: opened without being read, explored, checked, compared, converted, run.
 *
 * ```js
 * import { open } from "apr-wasm";
 *
 * const model = await open("hf://sentence-transformers/all-MiniLM-L6-v2");
 * console.log((await model.inspect()).parameters);
 * ```
 *
 * @module
 */

import { specOf, type Input, type OpenOptions } from "./input.js";
import { Model } from "./model.js";
import { WorkerEngine } from "./worker-engine.js";

export { AprError, type Where } from "./errors.js";
export type { FileSpec, Traffic } from "./files.js";
export type { OutputFile } from "./desk.js";
export type { CallOptions } from "./model.js";
export type { Input, OpenOptions };
export type * from "./reports.js";
export { Model };

let engine: WorkerEngine | undefined;

/** Loads the module and starts a worker ahead of the first {@link open}, which does so otherwise. */
export function prepare(): void {
  engine ??= new WorkerEngine();
}

/**
 * Opens a model: a file or a folder that was dropped or chosen, bytes, a URL, or `hf://OWNER/NAME`.
 * Only headers are read, in a worker, whatever the size.
 *
 * @throws AprError `E001` for what is no model, `E005` where a password is needed, `E007` where it
 * can't be read, otherwise what the format's reader says.
 */
export async function open(input: Input, options: OpenOptions = {}): Promise<Model> {
  const model = await unopened(input, options);
  // What can't be opened is said now, and not by the first call.
  await model.tensors();
  return model;
}

/**
 * Files as a model whose headers are not read yet: each call reads what it needs.
 * {@link Model.scan} also answers for files that can't be opened.
 *
 * @throws AprError `E007` where there are no files, or a hub or a folder's list can't be read.
 */
export async function unopened(input: Input, options: OpenOptions = {}): Promise<Model> {
  prepare();
  const { spec, title } = await specOf(input, options);
  return new Model(engine!, spec, title);
}
