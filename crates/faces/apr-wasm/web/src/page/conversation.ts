// A chat with a model that runs in the page.

import type { Message, Model, RunReport, RunWishes } from "../api/index.js";
import { h } from "./dom.js";
import { visible } from "./format.js";
import { Bar, failure, isEnded } from "./waiting.js";

/** Messages as they were said, and the model that answers them. */
export class Conversation {
  readonly element = h("section.card.conversation", { "aria-label": "Conversation", hidden: true });
  readonly #model: Model;
  readonly #left: AbortSignal;
  readonly #said: Message[] = [];
  #isAnswering = false;

  constructor(model: Model, left: AbortSignal) {
    this.#model = model;
    this.#left = left;
    const again = h("button", { type: "button", onclick: () => this.#startOver() }, "Start over");
    this.element.append(h("div.tools", h("h2", "Conversation"), again));
  }

  /** Whether a message can be sent. */
  get isAnswering(): boolean {
    return this.#isAnswering;
  }

  /** Sends a message; what goes wrong stands where the answer would. */
  async send(text: string, wishes: RunWishes): Promise<void> {
    this.#isAnswering = true;
    this.element.hidden = false;
    const bar = new Bar();
    const answer = h("p.completion");
    const place = h("div.said.assistant", { "aria-live": "polite" }, h("span.visually-hidden", "The model: "), answer, bar.element);
    this.element.append(h("div.said.user", h("span.visually-hidden", "You: "), h("p.completion", shown(text))), place);
    place.scrollIntoView({ block: "nearest" });
    const end = () => bar.controller.abort();
    this.#left.addEventListener("abort", end, { once: true });
    let heard = "";
    const onText = (piece: string) => {
      heard += piece;
      bar.name("generating…");
      answer.textContent = shown(heard);
      place.scrollIntoView({ block: "nearest" });
    };
    try {
      const report = await this.#model.run({ ...wishes, text, chat: true, history: this.#said }, { onText, signal: bar.controller.signal });
      heard = typeof report.result["text"] === "string" ? report.result["text"] : heard;
      answer.textContent = shown(heard);
      this.#keep(text, heard);
      bar.element.replaceWith(...report.warnings.map((warning) => h("p.notice", visible(warning))), h("p.dim", speed(report)));
    } catch (thrown) {
      if (!isEnded(thrown)) place.replaceChildren(failure(thrown));
      else {
        if (heard !== "") this.#keep(text, heard);
        bar.element.replaceWith(h("p.dim", heard === "" ? "Cancelled: the message is not part of the conversation." : "Cancelled."));
      }
    } finally {
      this.#left.removeEventListener("abort", end);
      this.#isAnswering = false;
    }
  }

  #keep(text: string, answer: string): void {
    this.#said.push({ role: "user", text }, { role: "assistant", text: answer });
  }

  #startOver(): void {
    if (this.#isAnswering) return;
    this.#said.length = 0;
    this.element.querySelectorAll(".said").forEach((said) => said.remove());
    this.element.hidden = true;
  }
}

function shown(text: string): string {
  return visible(text).replaceAll("\\u{a}", "\n");
}

/** Tokens of the answer, and how many were generated in a second, reading included. */
function speed({ result, seconds, kind }: RunReport): string {
  const added = kind === "completion" && Array.isArray(result["added"]) ? result["added"].length : 0;
  const each = seconds > 0 ? `, ${(added / seconds).toFixed(1)} a second` : "";
  const text = result["text"];
  const nothing = typeof text === "string" && text.trim() === "" ? "an empty answer, " : "";
  return `${nothing}${added} ${added === 1 ? "token" : "tokens"}${each}${result["ended"] === "length" ? "; the limit of tokens is reached" : ""}`;
}
