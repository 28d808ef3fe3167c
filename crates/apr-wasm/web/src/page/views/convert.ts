// The model in another format.

import type { ConvertReport, ConvertWishes } from "../../api/index.js";
import { fill, h, type Child } from "../dom.js";
import { bytes, visible, whole } from "../format.js";
import { jsonButton, save } from "../save.js";
import type { Session } from "../session.js";
import { Bar, failure, isEnded } from "../waiting.js";

const FORMATS: [string, string, string][] = [
  ["apr", "APR", "apr"],
  ["safetensors", "safetensors", "safetensors"],
  ["gguf", "GGUF", "gguf"],
  ["onnx", "ONNX", "onnx"],
  ["pytorch", "PyTorch", "pt"],
];
const WEIGHTS: [string, string][] = [
  ["", "as they are"],
  ["precision:f32", "f32"], ["precision:f16", "f16"], ["precision:bf16", "bf16"],
  ["quantize:q8_0", "quantized: q8_0"], ["quantize:q6_k", "quantized: q6_k"], ["quantize:q5_k_m", "quantized: q5_k_m"],
  ["quantize:q4_k_m", "quantized: q4_k_m"], ["quantize:q4_0", "quantized: q4_0"], ["quantize:q3_k_m", "quantized: q3_k_m"],
  ["dequantize:f16", "dequantized to f16"], ["dequantize:f32", "dequantized to f32"],
];

export function convert(session: Session, place: HTMLElement): void {
  const format = h("select", FORMATS.map(([id, name]) => h("option", { value: id }, name)));
  const weights = h("select", WEIGHTS.map(([id, name]) => h("option", { value: id }, name)));
  const compress = h("input", { type: "checkbox" });
  const relaxed = h("input", { type: "checkbox" });
  const result = h("div", { role: "status" });
  const wishes = (): ConvertWishes => {
    const [kind, type] = weights.value.split(":");
    const extension = FORMATS.find(([id]) => id === format.value)?.[2] ?? format.value;
    const stem = session.open.title.split("/").pop()!.replace(/\.[^.]+$/u, "");
    return {
      format: format.value,
      fileName: `${stem || "model"}.${extension}`,
      ...(kind && type && { [kind]: type }),
      ...(compress.checked && { compress: true }),
      ...(relaxed.checked && { relaxed: true }),
    };
  };
  const plan = async () => {
    try {
      fill(result, report(await session.open.model.plan(wishes()), true));
    } catch (thrown) {
      fill(result, failure(thrown));
    }
  };
  const start = async () => {
    const bar = new Bar();
    fill(result, bar.element);
    session.left.addEventListener("abort", () => bar.controller.abort(), { once: true });
    try {
      const { report: done, files } = await session.open.model.convert(wishes(), { onProgress: bar.tell, signal: bar.controller.signal });
      const give = (blob: Blob | undefined, name: string) => blob && save(blob, name);
      fill(result, report(done, false),
        h("p.tools", files.map(({ name, size, blob }) => h("button.primary", { onclick: () => give(blob, name) }, `Save ${visible(name)} (${bytes(size)})`)), jsonButton(done, "convert.json")));
    } catch (thrown) {
      if (!isEnded(thrown)) fill(result, failure(thrown));
      else if (!session.left.aborted) fill(result, h("p.dim", "Cancelled; nothing was kept."));
    }
  };
  const field = (label: string, control: HTMLElement) => h("label.field", h("span", label), control);
  fill(place, h("form.card.narrow", { onsubmit: (event: Event) => { event.preventDefault(); void start(); } },
    h("h2", "Convert"),
    h("p.dim", "Every tensor is checked on the way. The file is written to the browser's own storage, whatever its size, and saved from there."),
    h("div.options", field("Format", format), field("Weights", weights)),
    h("label.check", compress, "Compress tensors without loss (APR only)"),
    h("label.check", relaxed, "Report what is wrong and go on"),
    h("p.tools", h("button.primary", "Convert"), h("button", { type: "button", onclick: () => void plan() }, "What would be written?")),
    result));
}

function report(done: ConvertReport, isPlan: boolean): Child {
  const losses = done.losses ?? [];
  return [
    h("p", `${isPlan ? "Would write" : "Wrote"} ${done.files.map(({ name, len }) => `${visible(name)}, ${bytes(len)}`).join("; ")}.`),
    (done.warnings ?? []).map((warning) => h("p.notice", visible(warning))),
    losses.length > 0 && h("details", { open: losses.length < 6 }, h("summary", `Not kept: ${whole(losses.length)}`),
      h("ul", losses.slice(0, 100).map(({ name, what, why }) => h("li", h("strong", visible(name)), ` ${what}: ${visible(why)}`)))),
  ];
}
