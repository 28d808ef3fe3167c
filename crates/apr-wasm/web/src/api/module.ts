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

/** Loads a module once. `bytes` are given where it can't be fetched, as in Node. */
export function loadModule(name: ModuleName, bytes?: () => Promise<BufferSource>): Promise<WasmModule> {
  let module = loaded.get(name);
  if (!module) {
    module = load(name, bytes);
    loaded.set(name, module);
  }
  return module;
}

async function load(name: ModuleName, bytes?: () => Promise<BufferSource>): Promise<WasmModule> {
  const url = new URL(`../wasm/${name}/apr_wasm.js`, import.meta.url);
  const module = (await import(url.href)) as WasmModule;
  const binary = bytes ? await bytes() : new URL(`../wasm/${name}/apr_wasm_bg.wasm`, import.meta.url);
  await module.default({ module_or_path: binary });
  return module;
}
