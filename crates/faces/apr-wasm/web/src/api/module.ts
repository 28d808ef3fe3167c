// The WebAssembly modules: one that opens and reports, one that also runs models.

import type * as Module from "../wasm/explore/apr_wasm.js";

export type { HostFiles, HostOutput } from "../wasm/explore/apr_wasm.js";
export type WasmModule = typeof Module;
export type WasmModel = Module.Model;

/** The module that runs models has these methods too. */
export interface RunningModel extends WasmModel {
  run(wishes: string, bytes: Uint8Array | undefined, onText: ((piece: string) => void) | undefined): string;
  tokenize(text: string): string;
}

export type ModuleName = "explore" | "run";

const loaded = new Map<ModuleName, Promise<WasmModule>>();

/** A module's binary: its bytes, or compiled already. */
export type ModuleBinary = BufferSource | WebAssembly.Module;

/** Loads a module once. A binary is given where it can't be fetched, as in Node, and where it was
 * compiled elsewhere; without one it is fetched. */
export function loadModule(name: ModuleName, given?: () => Promise<ModuleBinary | undefined>): Promise<WasmModule> {
  let module = loaded.get(name);
  if (!module) {
    module = load(name, given);
    loaded.set(name, module);
  }
  return module;
}

/** Fetches and compiles a module for the workers to come; `undefined` where that fails, so that
 * they try themselves and say why. */
export async function compileModule(name: ModuleName): Promise<WebAssembly.Module | undefined> {
  return await WebAssembly.compileStreaming(fetch(binaryOf(name))).catch(() => undefined);
}

async function load(name: ModuleName, given?: () => Promise<ModuleBinary | undefined>): Promise<WasmModule> {
  const url = new URL(`../wasm/${name}/apr_wasm.js`, import.meta.url);
  const importing = import(url.href) as Promise<WasmModule>;
  const [module, binary] = await Promise.all([importing, given?.()]);
  await module.default({ module_or_path: binary ?? binaryOf(name) });
  return module;
}

function binaryOf(name: ModuleName): URL {
  return new URL(`../wasm/${name}/apr_wasm_bg.wasm`, import.meta.url);
}
