// What answers calls: open models, by number, in one thread.

import { AprError, toAprError } from "./errors.js";
import { LentFiles, type FileSpec, type SyncFile, type Traffic } from "./files.js";
import { loadModule, type HostOutput, type ModuleBinary, type ModuleName, type RunningModel, type WasmModel, type WasmModule } from "./module.js";

/** What is opened: files, the one that is meant, and the password of what is encrypted. */
export interface OpenSpec {
  files: FileSpec[];
  /** One of the files; all of them are a model's folder where it is not given. */
  name?: string;
  password?: string;
}

/** What a thread can do with its files. */
export interface Surroundings {
  /** Opens a file for reading. */
  open(spec: FileSpec): Promise<SyncFile>;
  /** A module's binary, where it is not to be fetched. */
  moduleBinary?(name: ModuleName): Promise<ModuleBinary | undefined>;
  /** Makes files for a conversion, by their names. */
  create(names: string[]): Promise<OutputFiles>;
}

/** Files that a conversion writes. */
export interface OutputFiles {
  output: HostOutput;
  /** Ends the writing; the files, or nothing of them where it failed. */
  finish(isGood: boolean): Promise<OutputFile[]>;
}

/** A file that was written: on disk where the surroundings have one. */
export interface OutputFile {
  name: string;
  size: number;
  blob?: Blob;
  path?: string;
}

/** What hears about a call while it runs. */
export interface Listeners {
  onProgress?: (phase: string, done: number, total: number) => void;
  onText?: (piece: string) => void;
}

/** Names of the calls that a model answers. */
export type Method =
  | "inspect" | "tensors" | "values" | "bytes" | "stats" | "histogram" | "distribution" | "validate"
  | "lint" | "explain" | "explainTensor" | "diff" | "vocabulary" | "companions" | "companion"
  | "graph" | "drawing" | "svg" | "node" | "searchNodes" | "uses" | "plan" | "convert" | "scan" | "verify"
  | "formats" | "run" | "tokenize" | "traffic";

/** Which module answers a call. */
const moduleOf = (method: Method): ModuleName =>
  method === "run" || method === "tokenize" ? "run" : "explore";

interface Opened {
  files: LentFiles;
  models: Map<ModuleName, WasmModel>;
}

/** Models that are open in this thread. They are opened anew from what was said of them, so that a
 * thread that was ended loses nothing. */
export class Desk {
  readonly #surroundings: Surroundings;
  readonly #opened = new Map<string, Promise<Opened>>();

  constructor(surroundings: Surroundings) {
    this.#surroundings = surroundings;
  }

  /** Answers a call on a model, which is opened where it is not yet. */
  async call(id: string, spec: OpenSpec, method: Method, args: readonly unknown[], listeners: Listeners = {}): Promise<unknown> {
    try {
      return await this.#answer(id, spec, method, args, listeners);
    } catch (thrown) {
      throw toAprError(thrown);
    }
  }

  /** Forgets a model. */
  async close(id: string): Promise<void> {
    const opened = await this.#opened.get(id)?.catch(() => undefined);
    this.#opened.delete(id);
    for (const model of opened?.models.values() ?? []) model.free();
  }

  async #answer(id: string, spec: OpenSpec, method: Method, args: readonly unknown[], listeners: Listeners): Promise<unknown> {
    const opened = await this.#files(id, spec);
    if (method === "traffic") return { ...opened.files.traffic } satisfies Traffic;
    const name = moduleOf(method);
    const module = await this.#module(name);
    if (method === "formats") return JSON.parse(module.formats());
    if (method === "scan") return JSON.parse(module.scan(opened.files));
    const model = this.#model(module, name, opened, spec);
    return await this.#ask(model, method, args, listeners);
  }

  async #ask(model: WasmModel, method: Method, args: readonly unknown[], { onProgress, onText }: Listeners): Promise<unknown> {
    // Arguments come from `Model` in model.ts, which has their types.
    const [first, second, third, fourth] = args as never[];
    switch (method) {
      case "bytes":
        return model.bytes(first!, second!, third!);
      case "companion":
        return model.companion(first!);
      case "svg":
        return model.svg(first!, second!, third!, Uint32Array.from(fourth!));
      case "values":
        return JSON.parse(model.values(first!, second!));
      case "stats":
        return JSON.parse(model.stats(first!, onProgress));
      case "histogram":
        return JSON.parse(model.histogram(first!, second!, onProgress));
      case "explainTensor":
        return JSON.parse(model.explain_tensor(first!, onProgress));
      case "verify":
        return JSON.parse(model.verify(first!));
      case "validate":
        return JSON.parse(model.validate(first!, onProgress));
      case "vocabulary":
        return JSON.parse(model.vocabulary(first!, second!));
      case "drawing":
        return JSON.parse(model.drawing(first!, second!, third!, fourth && Uint32Array.from(fourth)));
      case "node":
        return JSON.parse(model.node(first!, second!));
      case "searchNodes":
        return JSON.parse(model.search_nodes(first!, second!, third!));
      case "uses":
        return JSON.parse(model.uses(first!));
      case "plan":
        return JSON.parse(model.plan(first!));
      case "convert":
        return await this.#convert(model, first!, onProgress);
      case "run":
        return JSON.parse((model as RunningModel).run(first!, second, onText));
      case "tokenize":
        return JSON.parse((model as RunningModel).tokenize(first!));
      case "diff":
      case "distribution": {
        const { id, spec } = first! as { id: string; spec: OpenSpec };
        const other = this.#model(await this.#module("explore"), "explore", await this.#files(id, spec), spec);
        return JSON.parse(
          method === "diff" ? model.diff(other, onProgress) : model.distribution(other, second!, third!, fourth!),
        );
      }
      default:
        return JSON.parse((model[method as keyof WasmModel] as () => string).call(model));
    }
  }

  async #convert(model: WasmModel, wishes: string, onProgress: Listeners["onProgress"]): Promise<unknown> {
    const planned = JSON.parse(model.plan(wishes)) as { files: { name: string }[] };
    const files = await this.#surroundings.create(planned.files.map((file) => file.name));
    let isGood = false;
    let report: unknown;
    try {
      report = JSON.parse(model.convert(wishes, files.output, onProgress));
      isGood = true;
    } finally {
      const written = await files.finish(isGood);
      if (isGood) report = { report, files: written };
    }
    return report;
  }

  #files(id: string, spec: OpenSpec): Promise<Opened> {
    let opened = this.#opened.get(id);
    if (!opened) {
      opened = this.#open(spec);
      this.#opened.set(id, opened);
      opened.catch(() => this.#opened.delete(id));
    }
    return opened;
  }

  async #open(spec: OpenSpec): Promise<Opened> {
    const files = new Map<string, SyncFile>();
    for (const file of spec.files) files.set(file.name, await this.#lazily(file, spec));
    return { files: new LentFiles(files), models: new Map() };
  }

  /** Of a folder on a server, files are asked for when they are read: their lengths are known. */
  async #lazily(file: FileSpec, spec: OpenSpec): Promise<SyncFile> {
    if (!file.url || file.size === undefined || spec.files.length === 1) {
      return await this.#surroundings.open(file);
    }
    const { openKnownUrl } = await import("./files.js");
    return openKnownUrl(file.url, file.size);
  }

  #model(module: WasmModule, name: ModuleName, opened: Opened, spec: OpenSpec): WasmModel {
    let model = opened.models.get(name);
    if (!model) {
      model = module.Model.open(opened.files, spec.name, spec.password);
      opened.models.set(name, model);
    }
    return model;
  }

  async #module(name: ModuleName): Promise<WasmModule> {
    const binary = this.#surroundings.moduleBinary;
    try {
      return await loadModule(name, binary && (() => binary(name)));
    } catch (thrown) {
      throw new AprError(`the WebAssembly module can't be loaded: ${toAprError(thrown).message}`);
    }
  }
}
