// A small model, run in the page.

import type { PartSummary, RunReport, RunWishes } from "../../api/index.js";
import { Conversation } from "../conversation.js";
import { fill, h, type Child } from "../dom.js";
import { bytes, shape, value, visible } from "../format.js";
import { jsonButton } from "../save.js";
import type { Session } from "../session.js";
import { Bar, failure, isEnded, show } from "../waiting.js";

/** Models that are larger would not fit the memory of a module beside their values. */
const LARGEST = 1.5e9;

export function run(session: Session, place: HTMLElement): void {
  const facts = Promise.all([session.open.inspect(), session.open.graph()]);
  void show(place, facts, ([report, { parts }]) => {
    if (report.tensor_bytes > LARGEST) {
      return h("p.notice", `The weights are ${bytes(report.tensor_bytes)}; a page runs models of up to ${bytes(LARGEST)}. The command `, h("code", "apr run"), " runs this one.");
    }
    const meanings = new Set(parts.flatMap((part) => part.inputs.map((input) => input.meaning)));
    return new Runner(session, parts, meanings).element;
  });
}

class Runner {
  readonly element: HTMLElement;
  readonly #session: Session;
  readonly #parts: readonly PartSummary[];
  readonly #answer = h("div.answer", { role: "status", "aria-live": "polite" });
  readonly #text = h("textarea", { rows: 3, "aria-label": "Text", placeholder: "A text" });
  readonly #context = h("textarea", { rows: 3, "aria-label": "The text for a question, or candidate texts for an image, one per line", placeholder: "Only for questions about a text, or candidate texts for an image, one per line" });
  readonly #file = h("input", { type: "file", "aria-label": "Audio or image file", accept: "audio/*,image/*,.flac,.wav" });
  readonly #arrays = h("textarea", { rows: 3, "aria-label": "Arrays as JSON, by the names of the inputs", placeholder: '{"x": [[1, 2, 3]]}' });
  readonly #want = h("input", { type: "text", "aria-label": "Activations to return", placeholder: "all outputs" });
  readonly #chat = h("input", { type: "checkbox", onchange: () => this.#name() });
  readonly #system = h("textarea", { rows: 2, "aria-label": "System message of the conversation", placeholder: "None" });
  readonly #start = h("button.primary", "Run");
  readonly #conversation: Conversation;
  readonly #tokens = h("input", { type: "number", min: 1, max: 4096, value: 64, "aria-label": "Maximum tokens" });
  readonly #temperature = h("input", { type: "number", min: 0, max: 2, step: 0.1, value: 0, "aria-label": "Sampling temperature; 0 = greedy" });

  constructor(session: Session, parts: readonly PartSummary[], meanings: ReadonlySet<string>) {
    this.#session = session;
    this.#parts = parts;
    this.#conversation = new Conversation(session.open.model, session.left);
    const takes = (meaning: string) => meanings.has(meaning);
    const takesText = takes("token_ids");
    const takesMedia = ["pixels", "waveform", "mel", "audio_features", "input_features"].some(takes) || [...meanings].some((meaning) => /audio|wave|mel|pixel|sound/u.test(meaning));
    const field = (label: string, control: HTMLElement) => h("label.field", h("span", label), control);
    // What is written next stands below what was said.
    this.element = h("div.run", this.#conversation.element,
      h("form.card", { onsubmit: (event: Event) => { event.preventDefault(); void this.#run(); } },
        h("h2", "Run it here"),
        h("p.dim", "In this page, on one core; no data is sent."),
        takesText && field("Text", this.#text),
        (takesText || takesMedia) && h("details", h("summary", "Context or candidates"), this.#context),
        takesMedia && field("Audio or image", this.#file),
        !takesText && !takesMedia && field("Inputs", this.#arrays),
        takesText && h("details", h("summary", "Options"), h("div.options",
          field("Maximum tokens", this.#tokens), field("Sampling temperature", this.#temperature),
          h("label.check", { title: "Apply the model's chat template and keep the history" }, this.#chat, "Conversation")),
          field("System message of a conversation", this.#system)),
        h("details", { open: session.place.want !== undefined }, h("summary", "Activations to return"), field("Names, separated by commas", this.#want)),
        h("p", this.#start)),
      this.#answer);
    this.#text.addEventListener("keydown", (event) => {
      // In a conversation Enter sends, as it does elsewhere; with Shift it begins a line.
      if (!this.#chat.checked || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      void this.#run();
    });
    if (!takesText && !takesMedia) this.#arrays.value = "{}";
    this.#want.value = session.place.want ?? "";
  }

  #name(): void {
    this.#start.textContent = this.#chat.checked ? "Send" : "Run";
  }

  async #run(): Promise<void> {
    if (this.#chat.checked && this.#text.value !== "") return await this.#send();
    const bar = new Bar();
    const written = h("p.completion");
    fill(this.#answer, h("section.card", h("h2", "Answer"), written, bar.element));
    this.#session.left.addEventListener("abort", () => bar.controller.abort(), { once: true });
    const onText = (piece: string) => {
      bar.name("generating…");
      written.append(visible(piece).replaceAll("\\u{a}", "\n"));
    };
    try {
      const { wishes, media } = await this.#wishes();
      const report = await this.#session.open.model.run(wishes, { onText, signal: bar.controller.signal, ...(media && { bytes: media }) });
      fill(this.#answer, h("section.card", h("h2", "Answer"), drawn(report),
        [...report.warnings, ...unused(report, wishes)].map((warning) => h("p.notice", visible(warning))),
        h("p.tools", h("span.dim", `${report.seconds.toFixed(2)} s`), jsonButton(report, "run.json"))));
    } catch (thrown) {
      if (isEnded(thrown)) bar.element.replaceWith(h("p.dim", "Cancelled."));
      else fill(this.#answer, failure(thrown));
    }
  }

  async #send(): Promise<void> {
    if (this.#conversation.isAnswering) return;
    const text = this.#text.value;
    this.#text.value = "";
    fill(this.#answer);
    const system = this.#system.value.trim();
    await this.#conversation.send(text, { ...this.#sampling(), ...(system !== "" && { system }) });
  }

  #sampling(): RunWishes {
    return { maxTokens: Number(this.#tokens.value) || 64, temperature: Number(this.#temperature.value) || 0 };
  }

  async #wishes(): Promise<{ wishes: RunWishes; media?: Uint8Array }> {
    const list = (text: string, separator: string) => text.split(separator).map((part) => part.trim()).filter(Boolean);
    const wishes: RunWishes = { want: list(this.#want.value, ",") };
    const file = this.#file.files?.[0];
    const text = this.#text.value;
    if (text !== "") wishes.text = text;
    if (this.#context.value.trim() !== "") {
      if (file) wishes.candidates = list(this.#context.value, "\n");
      else wishes.context = this.#context.value;
    }
    if (text !== "") Object.assign(wishes, this.#sampling());
    if (this.#arrays.value.trim() !== "" && text === "" && !file) {
      try {
        wishes.arrays = JSON.parse(this.#arrays.value) as Record<string, unknown>;
      } catch {
        throw new Error(`The inputs are not JSON. They are ${this.#parts[0]?.inputs.map((input) => `${input.name}: ${input.kind ?? "?"}`).join(", ")}`);
      }
    }
    if (!file) return { wishes };
    wishes.file = file.name;
    return { wishes, media: new Uint8Array(await file.arrayBuffer()) };
  }
}

/** What was asked for and did nothing. */
function unused({ kind }: RunReport, wishes: RunWishes): string[] {
  if (kind === "completion" || kind === "transcription") return [];
  return (wishes.temperature ?? 0) !== 0 ? ["The sampling temperature was not used: this model generates no text."] : [];
}

type Labels = { label: string; score: number }[];

function drawn({ kind, result }: RunReport): Child {
  const text = (key: string) => typeof result[key] === "string" ? (result[key] as string) : undefined;
  if (kind === "arrays") return arrays(result["outputs"] as never);
  if (kind === "answers") {
    return h("ol", (result["answers"] as { answer: string; score: number }[]).map(({ answer, score }) =>
      h("li", h("strong", visible(answer) || "no answer"), h("span.dim", ` ${(100 * score).toFixed(1)} %`))));
  }
  const said = text("text");
  if (said !== undefined) return h("p.completion", visible(said).replaceAll("\\u{a}", "\n"));
  const labels = (result["labels"] ?? result["texts"]) as Labels | undefined;
  if (labels) return ranked(labels.map((one) => ({ label: one.label ?? (one as unknown as { text: string }).text, score: one.score })));
  const gaps = result["gaps"] as { token: string; score: number }[][] | undefined;
  if (gaps) return gaps.map((gap) => ranked(gap.map(({ token, score }) => ({ label: token, score }))));
  const tokens = result["tokens"] as { token: string; label: { label: string; score: number } }[] | undefined;
  if (Array.isArray(tokens)) return ranked(tokens.map(({ token, label }) => ({ label: `${token}: ${label.label}`, score: label.score })));
  const vector = result["vector"] as number[] | undefined;
  if (vector) return [h("p", `${vector.length} numbers, pooling ${text("pooling") ?? "none"}`), h("p.numbers", vector.slice(0, 24).map((number) => value(number)).join("  "), vector.length > 24 && " …")];
  return h("pre.file", { tabindex: 0, "aria-label": "The answer" }, visible(JSON.stringify(result, null, 2)).replaceAll("\\u{a}", "\n"));
}

function ranked(labels: Labels): HTMLElement {
  return h("table.lines.ranked", h("tbody", labels.map(({ label, score }) => h("tr",
    h("td", visible(label)), h("td", h("meter", { value: score, min: 0, max: 1, "aria-label": `${(100 * score).toFixed(1)} %` })), h("td.number", `${(100 * score).toFixed(1)} %`)))));
}

function arrays(outputs: { name: string; type: string; shape: number[]; values: (number | string)[]; omitted: number }[]): Child {
  return outputs.map((output) => h("div",
    h("h3", visible(output.name), h("span.dim", ` ${output.type} ${shape(output.shape)}`)),
    h("p.numbers", output.values.slice(0, 64).map((number) => value(number)).join("  "), output.values.length > 64 && " …")));
}
