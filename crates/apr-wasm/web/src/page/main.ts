// The page: a model is dropped, chosen or named, and shown view by view.

import { AprError, open, prepare, type Input } from "../api/index.js";
import { fill, h } from "./dom.js";
import { bytes, visible } from "./format.js";
import { dropped, pick } from "./pick.js";
import { VIEWS, addressOf, parsePlace, type Place, type ViewName } from "./place.js";
import { OpenModel, type Session } from "./session.js";
import { nextTheme, restoreTheme } from "./theme.js";
import { checks } from "./views/checks.js";
import { compare } from "./views/compare.js";
import { convert } from "./views/convert.js";
import { overview } from "./views/overview.js";
import { run } from "./views/run.js";
import { structure } from "./views/structure.js";
import { tensors } from "./views/tensors.js";
import { vocabulary } from "./views/vocabulary.js";
import { failure } from "./waiting.js";

const DRAW: Record<ViewName, (session: Session, place: HTMLElement) => void> = {
  overview, structure, tensors, vocabulary, compare, checks, run, convert,
};
const TITLES: Record<ViewName, string> = {
  overview: "Overview", structure: "Structure", tensors: "Tensors", vocabulary: "Vocabulary",
  compare: "Compare", checks: "Checks", run: "Run", convert: "Convert",
};
/** A small model that lies beside the page. */
const EXAMPLE = "example/model.apr";

class Page {
  readonly #root: HTMLElement;
  #model: OpenModel | undefined;
  #other: OpenModel | undefined;
  #left = new AbortController();
  /** Counts openings, so that a slow one does not replace a later one. */
  #openings = 0;

  constructor(root: HTMLElement) {
    this.#root = root;
    prepare();
    restoreTheme();
    window.addEventListener("hashchange", () => void this.#arrive());
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      document.body.classList.add("dragging");
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.body.classList.remove("dragging");
    });
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("dragging");
      if (event.dataTransfer) void dropped(event.dataTransfer).then((input) => {
        if (input) void this.#open(input);
      });
    });
    void this.#arrive();
  }

  /** Shows what the address says. */
  async #arrive(): Promise<void> {
    const place = parsePlace(location.hash);
    if (place.model !== undefined && place.model !== this.#model?.address) {
      await this.#open(place.model, place.model, place);
      return;
    }
    if (this.#model) this.#show(this.#model, place);
    else this.#start();
  }

  /** Nothing is open yet. */
  #start(problem?: HTMLElement): void {
    document.title = "apr – model files";
    fill(this.#root,
      h("main.start",
        h("img", { src: "icons/apr.svg", alt: "", width: 72, height: 72 }),
        h("h1", "Open a model file"),
        h("p.lead", "safetensors, GGUF, ONNX, PyTorch, TensorFlow, Keras, Core ML, NumPy, APR. Of any size: only what is looked at is read. Nothing leaves this computer."),
        problem,
        h("div.drop", h("p", "Drop files or a folder here"), pick((input, address) => this.#open(input, address))),
        h("p.dim", "or look at ", h("a", { href: `#model=${EXAMPLE}` }, "an example"), ", a tiny LLaMA that adds two numbers"),
        this.#themeButton()));
  }

  async #open(input: Input, address?: string, place: Place = { view: "overview" }, password?: string): Promise<void> {
    const opening = (this.#openings += 1);
    this.#left.abort();
    fill(this.#root, h("main.start", h("p.lead", { role: "status" }, h("span.spinner", { "aria-hidden": "true" }), " Opening…")));
    try {
      const model = await open(input, password === undefined ? {} : { password });
      if (opening !== this.#openings) return;
      this.#model?.model.close();
      this.#other?.model.close();
      this.#other = undefined;
      this.#model = new OpenModel(model, address);
      const { model: _, ...rest } = place;
      history.replaceState(null, "", addressOf(address === undefined ? rest : { ...rest, model: address }));
      this.#show(this.#model, place);
    } catch (thrown) {
      if (opening !== this.#openings) return;
      const needsPassword = thrown instanceof AprError && thrown.code === "E005";
      this.#model = undefined;
      this.#start(h("div", failure(thrown), needsPassword && this.#passwordForm((text) => this.#open(input, address, place, text))));
    }
  }

  #passwordForm(submit: (password: string) => void): HTMLElement {
    const field = h("input", { type: "password", autocomplete: "off", "aria-label": "Password" });
    return h("form.address", { onsubmit: (event: Event) => { event.preventDefault(); submit(field.value); } }, field, h("button.primary", "Unlock"));
  }

  #show(model: OpenModel, place: Place): void {
    this.#left.abort();
    this.#left = new AbortController();
    document.title = `${visible(model.title)} – apr`;
    const view = h("main.view", { tabindex: -1, "aria-label": TITLES[place.view] });
    const tabs = VIEWS.map((name) => h("a", { href: addressOf(this.#placeOf(model, { view: name })), "aria-current": name === place.view ? "page" : undefined }, TITLES[name]));
    const size = h("span.dim");
    fill(this.#root, h("div.shell",
      h("header",
        h("a.home", { href: "#", onclick: (event: Event) => { event.preventDefault(); this.#close(); }, "aria-label": "Open another model", title: "Open another model" }, h("img", { src: "icons/apr.svg", alt: "", width: 28, height: 28 })),
        h("h1", { title: model.title }, visible(model.title)), size,
        h("span.stretch"), this.#themeButton(),
        h("button", { onclick: () => this.#close() }, "Open…")),
      h("nav", { "aria-label": "Views" }, tabs),
      view));
    void model.inspect().then((report) => { size.textContent = `${report.format}, ${bytes(report.size)}`; }, () => undefined);
    const page = this;
    DRAW[place.view]({
      open: model,
      get other() { return page.#other; },
      set other(other) { page.#other = other; },
      place,
      left: this.#left.signal,
      go: (change) => {
        const next = this.#placeOf(model, Object.fromEntries(Object.entries({ ...place, ...change }).filter(([, value]) => value !== undefined)) as unknown as Place);
        location.hash = addressOf(next);
      },
    }, view);
  }

  #placeOf(model: OpenModel, place: Place): Place {
    const { model: _, ...rest } = place;
    return model.address === undefined ? rest : { model: model.address, ...rest };
  }

  #close(): void {
    this.#left.abort();
    this.#model?.model.close();
    this.#model = undefined;
    history.replaceState(null, "", location.pathname);
    this.#start();
  }

  #themeButton(): HTMLElement {
    return h("button.theme", { onclick: nextTheme, title: "Light, dark, or as the system is", "aria-label": "Change the theme" }, "◐");
  }
}

const root = document.getElementById("app");
if (root) new Page(root);
if ("serviceWorker" in navigator && location.protocol !== "file:") {
  navigator.serviceWorker.register("service-worker.js").catch(() => undefined);
}
