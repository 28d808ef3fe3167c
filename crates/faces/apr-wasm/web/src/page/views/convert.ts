// The model in another format.

import type { ConvertReport, ConvertWishes, WrittenFormat } from "../../api/index.js";
import { fill, h, type Child } from "../dom.js";
import { bytes, visible, whole } from "../format.js";
import { jsonButton, save } from "../save.js";
import type { Session } from "../session.js";
import { Bar, failure, isEnded, show } from "../waiting.js";

const FLOATS = ["f32", "f16", "bf16"];

export function convert(session: Session, place: HTMLElement): void {
  void show(place, session.open.model.formats(), (formats) => form(session, formats));
}

/** Weights as they can be in a format. */
function weightsOf(format: WrittenFormat): HTMLElement[] {
  const options = (kind: string, names: string[]) => names.map((name) => h("option", { value: `${kind}:${name}` }, name));
  return [
    h("option", { value: "" }, "as they are"),
    h("optgroup", { label: "Floats converted" }, options("precision", FLOATS)),
    ...(format.quantized.length > 0 ? [h("optgroup", { label: "Quantized" }, options("quantize", format.quantized))] : []),
    h("optgroup", { label: "Dequantized" }, options("dequantize", FLOATS)),
  ];
}

function form(session: Session, formats: readonly WrittenFormat[]): Child {
  const format = h("select", { onchange: () => offer() }, formats.map(({ option, name }) => h("option", { value: option }, name)));
  const weights = h("select");
  const compress = h("input", { type: "checkbox" });
  const chosen = () => formats.find(({ option }) => option === format.value) ?? formats[0]!;
  const offer = () => {
    const before = weights.value;
    fill(weights, weightsOf(chosen()));
    weights.value = before;
    // What the format does not have is no choice.
    if (weights.selectedIndex < 0) weights.value = "";
    compress.disabled = !chosen().compresses;
    if (compress.disabled) compress.checked = false;
  };
  offer();
  const relaxed = h("input", { type: "checkbox" });
  const result = h("div", { role: "status" });
  const wishes = (): ConvertWishes => {
    const [kind, type] = weights.value.split(":");
    const { extension } = chosen();
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
      else if (!session.left.aborted) fill(result, h("p.dim", "Cancelled; no file was saved."));
    }
  };
  const field = (label: string, control: HTMLElement) => h("label.field", h("span", label), control);
  return h("form.card.narrow", { onsubmit: (event: Event) => { event.preventDefault(); void start(); } },
    h("h2", "Convert"),
    h("p.dim", "Every tensor is checked on the way. The file is written to the browser's own storage, whatever its size, and saved from there."),
    h("div.options", field("Format", format), field("Weights", weights)),
    h("label.check", compress, "Compress tensors without loss (APR only)"),
    h("label.check", relaxed, "Report errors and continue"),
    h("p.tools", h("button.primary", "Convert"), h("button", { type: "button", onclick: () => void plan() }, "Preview")),
    result);
}

function report(done: ConvertReport, isPlan: boolean): Child {
  const losses = done.losses ?? [];
  return [
    h("p", `${isPlan ? "Would write" : "Wrote"} ${done.files.map((file) => `${visible(file.name)}, ${bytes(file.bytes)}`).join("; ")}.`),
    (done.warnings ?? []).map((warning) => h("p.notice", visible(warning))),
    losses.length > 0 && h("details", { open: losses.length < 6 }, h("summary", `Not kept: ${whole(losses.length)}`),
      h("ul", losses.slice(0, 100).map(({ name, what, why }) => h("li", h("strong", visible(name)), ` ${what}: ${visible(why)}`)))),
  ];
}
