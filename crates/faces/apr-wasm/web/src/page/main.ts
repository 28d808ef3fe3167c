// The page: a model is dropped, chosen or named, and shown view by view.

import { AprError, prepare, unopened, type Input, type Model } from "../api/index.js";
import { fill, h } from "./dom.js";
import { bytes, visible } from "./format.js";
import { forget, isPermitted, keep, kept } from "./kept.js";
import { dropped, pick } from "./pick.js";
import { VIEWS, addressOf, parsePlace, type Place, type ViewName } from "./place.js";
import { OpenModel, type Follow, type Session } from "./session.js";
import { nextTheme, restoreTheme } from "./theme.js";
import { checks, scanning } from "./views/checks.js";
import { compare } from "./views/compare.js";
import { convert } from "./views/convert.js";
import { overview } from "./views/overview.js";
import { run } from "./views/run.js";
import { structure } from "./views/structure.js";
import { tensors } from "./views/tensors.js";
import { vocabulary } from "./views/vocabulary.js";
import { failure } from "./waiting.js";

/** Draws a view, and gives what shows another place within it. */
type Draw = (session: Session, place: HTMLElement) => Follow | void;

const DRAW: Record<ViewName, Draw> = {
  overview, structure, tensors, vocabulary, compare, checks, run, convert,
};
const TITLES: Record<ViewName, string> = {
  overview: "Overview", structure: "Structure", tensors: "Tensors", vocabulary: "Vocabulary",
  compare: "Compare", checks: "Checks", run: "Run", convert: "Convert",
};
/** A small model that lies beside the page. */
const EXAMPLE = "example/model.apr";

/** What stands around the views of a model. */
interface Shell {
  model: OpenModel;
  element: HTMLElement;
  nav: HTMLElement;
  place: Place;
  view: HTMLElement;
  follow: Follow | void;
}

class Page {
  readonly #root: HTMLElement;
  #model: OpenModel | undefined;
  #other: OpenModel | undefined;
  #shell: Shell | undefined;
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
    else await this.#restore(place);
  }

  /** Opens the files that were open before a reload, as far as the browser has kept them. */
  async #restore(place: Place): Promise<void> {
    const before = await kept();
    if (!before) return this.#start();
    const { title, handles } = before;
    const input = handles.length === 1 && handles[0] ? handles[0] : handles;
    const again = () => this.#open(input, undefined, place);
    if (await isPermitted(handles, false)) return await again();
    const ask = async () => {
      if (await isPermitted(handles, true)) await again();
    };
    this.#start(h("div.notice", { role: "status" }, handles.length > 0
      ? [h("p", "The browser asks again before it reads ", h("strong", visible(title)), "."),
          h("button.primary", { onclick: () => void ask() }, "Read it again")]
      : h("p", h("strong", visible(title)), " was open before the page was loaded again. Choose it again: the browser did not keep it.")),
    place);
  }

  /** Nothing is open yet. What is chosen is shown at `place`. */
  #start(problem?: HTMLElement, place?: Place): void {
    this.#shell = undefined;
    document.title = "apr – model files";
    fill(this.#root,
      h("main.start",
        h("img", { src: "icons/apr.svg", alt: "", width: 72, height: 72 }),
        h("h1", "Open a model file"),
        h("p.lead", "safetensors, GGUF, ONNX, PyTorch, TensorFlow, Keras, Core ML, NumPy, APR. Files of any size: only the parts that you open are read. Nothing leaves this computer."),
        problem,
        h("div.drop", h("p", "Drop files or a folder here"), pick((input, address) => this.#open(input, address, place))),
        h("p.dim", "or look at ", h("a", { href: `#model=${EXAMPLE}` }, "an example"), ", a tiny LLaMA that adds two numbers"),
        this.#themeButton()));
  }

  async #open(input: Input, address?: string, place: Place = { view: "overview" }, password?: string): Promise<void> {
    const opening = (this.#openings += 1);
    this.#left.abort();
    this.#shell = undefined;
    fill(this.#root, h("main.start", h("p.lead", { role: "status" }, h("span.spinner", { "aria-hidden": "true" }), " Opening…")));
    let model: Model | undefined;
    try {
      model = await unopened(input, password === undefined ? {} : { password });
      await model.tensors();
    } catch (thrown) {
      if (opening !== this.#openings) return;
      this.#forgetModels();
      const code = thrown instanceof AprError ? thrown.code : null;
      if (model && code !== "E005" && code !== "E007") return this.#refuse(model, thrown);
      this.#start(h("div", failure(thrown), code === "E005" && this.#passwordForm((text) => this.#open(input, address, place, text))), place);
      return;
    }
    if (opening !== this.#openings) return;
    this.#forgetModels();
    this.#model = new OpenModel(model, address);
    if (address === undefined) void keep(model.title, input);
    else forget();
    const { model: _, ...rest } = place;
    history.replaceState(null, "", addressOf(address === undefined ? rest : { ...rest, model: address }));
    this.#show(this.#model, place);
  }

  /** What can't be opened as a model is checked all the same: it may be made to run something. */
  #refuse(model: Model, why: unknown): void {
    document.title = `${visible(model.title)} – apr`;
    this.#left = new AbortController();
    const scan = h("div");
    const view = h("main.view", { tabindex: -1, "aria-label": "Checks" },
      h("h2", "This can’t be opened as a model"), failure(why),
      h("section.card", h("h2", "Code that loading would run"), scan));
    fill(this.#root, h("div.shell.refused", this.#header(model.title), view));
    void scanning(model, this.#left.signal, scan);
  }

  #forgetModels(): void {
    this.#model?.model.close();
    this.#other?.model.close();
    this.#model = undefined;
    this.#other = undefined;
  }

  #header(title: string, about?: HTMLElement): HTMLElement {
    const close = (event: Event) => {
      event.preventDefault();
      this.#close();
    };
    return h("header",
      h("a.home", { href: "#", onclick: close, "aria-label": "Open another model", title: "Open another model" }, h("img", { src: "icons/apr.svg", alt: "", width: 28, height: 28 })),
      h("h1", { title }, visible(title)), about,
      h("span.stretch"), this.#themeButton(),
      h("button", { onclick: () => this.#close() }, "Open…"));
  }

  #passwordForm(submit: (password: string) => void): HTMLElement {
    const field = h("input", { type: "password", autocomplete: "off", "aria-label": "Password" });
    return h("form.address", { onsubmit: (event: Event) => { event.preventDefault(); submit(field.value); } }, field, h("button.primary", "Unlock"));
  }

  #show(model: OpenModel, place: Place): void {
    const shell = this.#shell?.model === model ? this.#shell : this.#build(model, place);
    const isSame = shell.place.view === place.view;
    shell.place = place;
    if (isSame && shell.follow?.()) return;
    this.#left.abort();
    this.#left = new AbortController();
    // Focus that was in the view is lost with it.
    const hadFocus = shell.view.contains(document.activeElement);
    const view = h("main.view", { tabindex: -1, "aria-label": TITLES[place.view] });
    shell.view.replaceWith(view);
    shell.view = view;
    const tabs = [...shell.nav.querySelectorAll("a")];
    for (const [index, name] of VIEWS.entries()) {
      if (name === place.view) tabs[index]?.setAttribute("aria-current", "page");
      else tabs[index]?.removeAttribute("aria-current");
    }
    // On a narrow screen the tabs are wider than it is.
    tabs[VIEWS.indexOf(place.view)]?.scrollIntoView({ block: "nearest", inline: "center" });
    if (hadFocus) view.focus({ preventScroll: true });
    const page = this;
    shell.follow = DRAW[place.view]({
      open: model,
      get other() { return page.#other; },
      set other(other) { page.#other = other; },
      get place() { return shell.place; },
      left: this.#left.signal,
      go: (change) => {
        const next = Object.entries({ ...shell.place, ...change }).filter(([, value]) => value !== undefined);
        location.hash = addressOf(this.#placeOf(model, Object.fromEntries(next) as unknown as Place));
      },
    }, view);
  }

  /** The header and the tabs of a model. */
  #build(model: OpenModel, place: Place): Shell {
    document.title = `${visible(model.title)} – apr`;
    const size = h("span.dim");
    void model.inspect().then((report) => { size.textContent = `${report.format}, ${bytes(report.bytes)}`; }, () => undefined);
    const nav = h("nav", { "aria-label": "Views" }, VIEWS.map((name) => h("a", { href: addressOf(this.#placeOf(model, { view: name })) }, TITLES[name])));
    const view = h("main.view");
    const element = h("div.shell", this.#header(model.title, size), nav, view);
    fill(this.#root, element);
    return (this.#shell = { model, element, nav, place, view, follow: undefined });
  }

  #placeOf(model: OpenModel, place: Place): Place {
    const { model: _, ...rest } = place;
    return model.address === undefined ? rest : { model: model.address, ...rest };
  }

  #close(): void {
    this.#left.abort();
    this.#forgetModels();
    forget();
    history.replaceState(null, "", location.pathname);
    this.#start();
  }

  #themeButton(): HTMLElement {
    return h("button.theme", { onclick: nextTheme, title: "Light, dark or system theme", "aria-label": "Change the theme" }, "◐");
  }
}

const root = document.getElementById("app");
if (root) new Page(root);
