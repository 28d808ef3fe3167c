// A model as programs use it.

import type { Listeners, Method, OpenSpec, OutputFile } from "./desk.js";
import type { FileSpec, Traffic } from "./files.js";
import type * as R from "./reports.js";

/** What answers calls: a worker of a browser, or the thread itself. */
export interface Engine {
  call(id: string, spec: OpenSpec, method: Method, args: unknown[], options: CallOptions): Promise<unknown>;
  close(id: string): void;
}

/** How a call that takes long is followed and ended. */
export interface CallOptions extends Listeners {
  /** Ends the call: it rejects with an `AbortError`. */
  signal?: AbortSignal;
}

let lastId = 0;

/**
 * An open model. Headers are read when the first call is answered, weights when they are asked for.
 *
 * ```js
 * const model = await open(file);
 * const { tensors } = await model.tensors();
 * const { counts } = await model.histogram(tensors[0].name);
 * ```
 */
export class Model implements AsyncDisposable {
  /** What it is called: a file's name, a folder's, a hub's. */
  readonly title: string;
  readonly #engine: Engine;
  readonly #spec: OpenSpec;
  readonly #id: string;

  constructor(engine: Engine, spec: OpenSpec, title: string) {
    this.#engine = engine;
    this.#spec = spec;
    this.title = title;
    lastId += 1;
    this.#id = `model ${lastId}`;
  }

  /** What was opened. */
  get files(): readonly FileSpec[] {
    return this.#spec.files;
  }

  /** Whether a password was given. */
  get hasPassword(): boolean {
    return this.#spec.password !== undefined;
  }

  /** What it is: format, family, dtypes, sizes, files, metadata. Reads no weights. */
  inspect(): Promise<R.InspectReport> {
    return this.#call("inspect");
  }

  /** Keys and values that the files have beside their tensors. */
  async metadata(): Promise<Record<string, unknown>> {
    return (await this.inspect()).metadata ?? {};
  }

  /** Names, dtypes, shapes, sizes. Reads no weights. */
  tensors(): Promise<R.TensorsReport> {
    return this.#call("tensors");
  }

  /** Bytes of a tensor as its dtype stores them, little endian. */
  bytes(name: string, offset: number, length: number): Promise<Uint8Array> {
    return this.#call("bytes", [name, offset, length]);
  }

  /** Values of a slice, `"0:8, :4"`, as numbers; the corner where `ranges` is empty. */
  values(name: string, ranges = ""): Promise<R.ValuesReport> {
    return this.#call("values", [name, ranges]);
  }

  /** Statistics of a tensor, beside what is expected of its kind. */
  stats(name: string, options: CallOptions = {}): Promise<R.JudgedStats> {
    return this.#call("stats", [name], options);
  }

  /** Statistics and distribution of a tensor. */
  histogram(name: string, bins = 64, options: CallOptions = {}): Promise<R.HistogramReport> {
    return this.#call("histogram", [name, bins], options);
  }

  /** Validates the model: structure, checksums, values. Reads every byte. */
  validate(options: CallOptions & { strict?: boolean } = {}): Promise<R.ValidateReport> {
    return this.#call("validate", [options.strict ?? false], options);
  }

  /**
   * Returns the fingerprints of the keys that signed the model. `trusted` are public keys in PEM.
   *
   * @throws AprError `E006` if the model is not signed by one of them.
   */
  verify(trusted: string[]): Promise<string[]> {
    return this.#call("verify", [trusted]);
  }

  /** Finds code that loading its files would run. Runs nothing. */
  scan(options: CallOptions = {}): Promise<R.ScanSummary> {
    return this.#call("scan", [], options);
  }

  /** Checks best practices. Reads no weights. */
  lint(): Promise<R.LintReport> {
    return this.#call("lint");
  }

  /** Describes the model's family. */
  explain(): Promise<R.ModelExplanation>;
  /** Describes a tensor: its role, and the operators that read it. */
  explain(tensor: string, options?: CallOptions): Promise<R.TensorExplanation>;
  explain(tensor?: string, options: CallOptions = {}): Promise<unknown> {
    return tensor === undefined ? this.#call("explain") : this.#call("explainTensor", [tensor], options);
  }

  /** Compares two models of any formats, tensor by tensor. */
  diff(other: Model, options: CallOptions = {}): Promise<R.DiffReport> {
    return this.#call("diff", [other.#reference()], options);
  }

  /** The distribution of a tensor of two models that are compared; `side` says which. */
  distribution(other: Model, name: string, side: "left" | "right", bins = 64): Promise<R.HistogramReport> {
    return this.#call("distribution", [other.#reference(), name, side === "right", bins]);
  }

  /**
   * Tokens that contain `text`, as they are stored or as they are read, a thousand at a time;
   * `null` without a vocabulary.
   */
  vocabulary(text = "", start = 0): Promise<R.FoundTokens | null> {
    return this.#call("vocabulary", [text, start]);
  }

  /** Companion files: configuration, tokenizer, licence. */
  companions(): Promise<{ name: string; bytes: number }[]> {
    return this.#call("companions");
  }

  /** The bytes of a companion file. */
  companion(name: string): Promise<Uint8Array> {
    return this.#call("companion", [name]);
  }

  /** Summarizes the graphs: parts, operators, costs. */
  graph(): Promise<R.GraphSummary> {
    return this.#call("graph");
  }

  /**
   * Boxes and edges of a part, with these groups open; what fits a screen by default. `costs` adds
   * what each box costs. Groups are numbered anew for other choices of `fold` and `costs`.
   */
  drawing(part = 0, options: { fold?: boolean; costs?: boolean; open?: number[] } = {}): Promise<R.Drawing> {
    return this.#call("drawing", [part, options.fold ?? true, options.costs ?? false, options.open]);
  }

  /** The same as an SVG document. */
  svg(part: number, options: { fold?: boolean; costs?: boolean; open: number[] }): Promise<string> {
    return this.#call("svg", [part, options.fold ?? true, options.costs ?? false, options.open]);
  }

  /** Nodes with this path, or that make the value of this name. */
  node(part: number, path: string): Promise<R.NodeView[]> {
    return this.#call("node", [part, path]);
  }

  /** Paths of nodes that contain a text. */
  searchNodes(part: number, text: string, most = 100): Promise<string[]> {
    return this.#call("searchNodes", [part, text, most]);
  }

  /** The nodes that read a tensor. */
  uses(tensor: string): Promise<{ part: number; node: string }[]> {
    return this.#call("uses", [tensor]);
  }

  /** Formats that conversions write, and the types that each has. */
  formats(): Promise<R.WrittenFormat[]> {
    return this.#call("formats");
  }

  /** What a conversion would write. */
  plan(wishes: R.ConvertWishes): Promise<R.ConvertReport> {
    return this.#call("plan", [this.#titled(wishes)]);
  }

  /** Converts into files on disk: of the browser's private file system, or where Node was told. */
  convert(
    wishes: R.ConvertWishes,
    options: CallOptions = {},
  ): Promise<{ report: R.ConvertReport; files: OutputFile[] }> {
    return this.#call("convert", [this.#titled(wishes)], options);
  }

  /** Writes it without encryption, as it is otherwise. It was opened with a password. */
  decrypt(fileName: string, options: CallOptions = {}): Promise<{ report: R.ConvertReport; files: OutputFile[] }> {
    return this.convert({ format: "apr", fileName, copy: true }, options);
  }

  /** Runs it on a text, the bytes of a sound or an image, or arrays. */
  run(wishes: R.RunWishes, options: CallOptions & { bytes?: Uint8Array } = {}): Promise<R.RunReport> {
    return this.#call("run", [JSON.stringify(wishes), options.bytes], options);
  }

  /** The tokens of a text; `shown` is as in {@link vocabulary}. */
  tokenize(text: string): Promise<{ id: number; text: string; shown?: string }[]> {
    return this.#call("tokenize", [text]);
  }

  /** How often its files were read, and how many bytes that were. */
  traffic(): Promise<Traffic> {
    return this.#call("traffic");
  }

  /** Forgets it, and frees its memory. */
  close(): void {
    this.#engine.close(this.#id);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** Wishes as the module takes them, with the title that the model is called by elsewhere. */
  #titled(wishes: R.ConvertWishes): string {
    const title = this.title.split("/").pop()!.replace(/\.(apr|safetensors|gguf|onnx|pt|pth|bin|json)$/u, "");
    const says = !["model", "pytorch_model", ""].includes(title);
    return JSON.stringify(says ? { title, ...wishes } : wishes);
  }

  #reference(): { id: string; spec: OpenSpec } {
    return { id: this.#id, spec: this.#spec };
  }

  async #call<T>(method: Method, args: unknown[] = [], options: CallOptions = {}): Promise<T> {
    return (await this.#engine.call(this.#id, this.#spec, method, args, options)) as T;
  }
}
