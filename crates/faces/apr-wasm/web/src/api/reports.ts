// Reports as the commands print them with `--json`. Only what a program usually asks for is named:
// reports may have more.

/** Statistics of a tensor's values; non-finite values take no part in the moments. */
export interface Stats {
  count: number;
  nan: number;
  inf: number;
  zeros: number;
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null;
  l2: number | null;
}

/** One tensor of a list. */
export interface TensorRow {
  name: string;
  dtype: string;
  shape: number[];
  elements: number;
  bytes: number;
  file?: string;
  offset?: number;
  stats?: Stats;
  /** Hexadecimal digits of the bytes' digest, where they were asked for. */
  sha256?: string;
}

/** What is no tensor of the model. */
export interface LeftOut {
  /** Data of the file that are not in the list of tensors. */
  unlisted?: { what: string; count: number; names: string[] }[];
  /** Parts of the file, and files beside the weights, that are not read. */
  left_out?: string[];
}

/** `apr tensors`. */
export interface TensorsReport extends LeftOut {
  path: string;
  tensor_count: number;
  tensors: TensorRow[];
}

/** A share of the weights. */
export interface DtypeShare {
  dtype: string;
  tensor_count: number;
  elements: number;
  bytes: number;
  bits_per_weight: number;
}

/** What a family is. */
export interface Description {
  title: string;
  guessed: boolean;
  size: string | null;
  purpose: string;
  architecture: string;
  input: string;
  output: string;
}

/** `apr inspect`. */
export interface InspectReport extends LeftOut {
  path: string;
  format: string;
  model_type?: string;
  family?: Description;
  bytes: number;
  parameters: number;
  tensor_count: number;
  tensor_bytes: number;
  bits_per_weight: number;
  dtypes: DtypeShare[];
  files: { name: string; bytes: number }[];
  companions: { name: string; bytes: number }[];
  metadata?: Record<string, unknown>;
  warnings?: string[];
  /** What its graphs compute, in short. */
  computes?: PartSummary[];
  vocab_size?: number | null;
  [more: string]: unknown;
}

/** `apr explain`. */
export interface ModelExplanation {
  description: Description | null;
  model_type: string | null;
  dimensions: [string, number][];
  parameters: number;
  tensor_count: number;
  dtype: string | null;
  /** Absent if no weight is in codes and scales, and no method is stated. */
  quantization?: {
    stated: string | null;
    kinds: {
      method: string;
      description: string;
      weight_count: number;
      bits_per_weight: number | null;
    }[];
    undecodable?: string;
    loaded_by: string[];
  };
}

/** `apr explain --tensor`. */
export interface TensorExplanation {
  name: string;
  canonical: string | null;
  role: string | null;
  kind: string | null;
  axes: string[] | null;
  uses?: { node: string; op: string; input: number }[];
  stats: Stats | null;
  violations: unknown[];
}

/** A tensor's statistics, beside what is expected of its kind. */
export interface JudgedStats extends TensorRow {
  kind: string | null;
  violations: string[];
}

/** A tensor's distribution. */
export interface HistogramReport {
  tensor: TensorRow;
  start: number;
  width: number;
  counts: number[];
  kind?: string | null;
  violations?: string[];
}

/** Values of a part of a tensor. */
export interface ValuesReport {
  tensor: TensorRow;
  ranges: [number, number][];
  values: (number | string | null)[];
}

/** `apr validate`. */
export interface ValidateReport extends LeftOut {
  path: string;
  format: string;
  valid: boolean;
  checks: { check: string; status: string; detail: string }[];
  findings: { severity?: string; tensor?: string; message: string; [more: string]: unknown }[];
  bytes_read: number;
}

/** `apr lint`. */
export interface LintReport {
  remarks: { severity: string; topic: string; message: string; tensor?: string }[];
}

/** `apr scan`. */
export interface ScanSummary {
  verdict: string;
  not_run: number;
  accepted?: number;
  files: ScanReport[];
}

/** What loading one file would run. */
export interface ScanReport {
  path: string;
  verdict: string;
  accepted?: boolean;
  kind: string;
  pickles: { entry?: string; findings: PickleFinding[]; problem?: string; [more: string]: unknown }[];
  warnings: { message?: string; [more: string]: unknown }[];
  problems: { message?: string; [more: string]: unknown }[];
}

/** What a pickle imports or calls. */
export interface PickleFinding {
  module: string;
  name: string;
  action: string;
  argument?: string;
  opcode: string;
  offset: number;
  verdict: string;
  [more: string]: unknown;
}

/** `apr diff`. */
export interface DiffReport {
  path: string;
  other_path: string;
  same: boolean;
  similarity: number;
  max_delta: number;
  l2: number;
  tensors: DiffRow[];
  removed: string[];
  added: string[];
  vocab: VocabChanges | null;
  metadata: { key: string; left?: unknown; right?: unknown; [more: string]: unknown }[];
  structure?: { removed: string[]; added: string[]; changed: unknown[] };
}

/** What differs between two tokenizers. */
export interface VocabChanges {
  added_count: number;
  removed_count: number;
  moved: number;
  examples?: { token: string; ids: number[]; other_ids: number[] }[];
  rules?: { name: string; detail: string }[];
}

/** A pair of tensors. */
export interface DiffRow {
  name: string;
  verdict: string;
  dtypes: [string, string];
  shapes: [number[], number[]];
  max_delta: number | null;
  l2: number | null;
  cosine: number | null;
}

/** A graph in short. */
export interface PartSummary {
  name: string;
  opsets: Record<string, number>;
  inputs: { name: string; kind?: string; meaning: string }[];
  outputs: { name: string; kind?: string; meaning: string }[];
  operators: Record<string, number>;
  node_count: number;
  parameters: number;
  cost: {
    sizes: Record<string, number>;
    flops: number;
    weight_bytes: number;
    peak_bytes: number;
    peak_at: string;
    cache_bytes_per_token: number;
    unknown_nodes: number;
  };
}

/** `apr graph`, without the structure. */
export interface GraphSummary {
  origin: unknown;
  parts: PartSummary[];
  unused_tensors: string[];
}

/** Boxes and edges of a graph, with their places in pixels. */
export interface Drawing {
  width: number;
  height: number;
  boxes: DrawnBox[];
  labels: { x: number; y: number; text: string }[];
  routes: [number, number][][];
  open: number[];
}

/** A box of a drawing. */
export interface DrawnBox {
  left: number;
  top: number;
  width: number;
  height: number;
  is_frame: boolean;
  class: string;
  title: string;
  lines: string[];
  times: number;
  path: string;
  hint: string;
  /** What it costs, repetitions included, where costs were asked for and it is known. */
  cost?: NodeCost;
  /** What opens within it, by its number in `open`. */
  scene?: number;
}

/** Operations on floats, and bytes that are read and written; `unknown` nodes count nothing. */
export interface NodeCost {
  flops: number;
  weight_bytes: number;
  read_bytes: number;
  written_bytes: number;
  unknown: number;
}

/** A format that conversions write. */
export interface WrittenFormat {
  /** Its name in wishes. */
  option: string;
  name: string;
  /** Extension of its files, without the dot. */
  extension: string;
  /** Whether tensors can be compressed. */
  compresses: boolean;
  /** Types and mixes that weights can be quantized to. */
  quantized: string[];
}

/** A node of a graph. */
export interface NodeView {
  name: string;
  op: string;
  function?: string;
  inputs: NodeValue[];
  outputs: NodeValue[];
  attributes: { name: string; value: string }[];
  doc?: string;
}

/** A value that a node reads or makes. */
export interface NodeValue {
  /** What the operator calls it: `W` of a convolution. */
  operand?: string;
  name: string;
  kind?: string;
  place: string | Record<string, unknown>;
}

/** A part of a vocabulary. */
export interface FoundTokens {
  source: string;
  total: number;
  found: number;
  /** `shown` is the text with marks for spaces (`␣`), new lines (`⏎`) and bytes (`<0xE2>`). */
  tokens: { id: number; text: string; shown: string }[];
}

/** What a conversion does. */
export interface ConvertWishes {
  /** `apr`, `safetensors`, `gguf`, ... */
  format: string;
  fileName?: string;
  /** A type or mix of llama.cpp: `q8_0`, `q4_k_m`. */
  quantize?: string;
  /** Floats get this dtype: `f16`. */
  precision?: string;
  /** Quantized tensors become floats of this dtype. */
  dequantize?: string;
  /** Tensors of `.apr` output are compressed without loss. */
  compress?: boolean;
  /** What is wrong with names, shapes and values is reported and ends nothing. */
  relaxed?: boolean;
  /** What people call the model, where its files don't say it; its own title by default. */
  title?: string;
  /** Names, layout and values stay; nothing is checked on the way. */
  copy?: boolean;
}

/** `apr convert`. */
export interface ConvertReport {
  bytes_in?: number;
  bytes_out?: number;
  files: { name: string; bytes: number }[];
  losses?: { name: string; what: string; why: string }[];
  warnings?: string[];
  [more: string]: unknown;
}

/** Inputs and options of a run. */
export interface RunWishes {
  text?: string;
  /** The text is a message of a chat, written by the model's own template. */
  chat?: boolean;
  /** The system message of a chat: an error without `chat`. */
  system?: string;
  /**
   * What was said before in the chat, the oldest first: an error without `chat`. The text goes on with it, and the keys and
   * values of what was read are kept for the next turn.
   */
  history?: Message[];
  /** The text that a question is about. */
  context?: string;
  /** Candidate texts beside an image. */
  candidates?: string[];
  /** What the sound or image is called. */
  file?: string;
  /** Arrays by the names of the inputs, as nested lists. */
  arrays?: Record<string, unknown>;
  /** Values of the graph that are wanted instead of an answer. */
  want?: string[];
  part?: string;
  maxTokens?: number;
  /** 0 = greedy. */
  temperature?: number;
  topK?: number;
  topP?: number;
  seed?: number;
}

/** A message of a chat. */
export interface Message {
  role: "user" | "assistant";
  text: string;
}

/** What a model made of it. */
export interface RunReport {
  kind: "completion" | "text" | "answers" | "audio" | "transcription" | "image" | "arrays";
  result: Record<string, unknown>;
  warnings: string[];
  seconds: number;
}
