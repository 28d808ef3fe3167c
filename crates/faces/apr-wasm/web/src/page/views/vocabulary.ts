// The vocabulary, searched, and the tokenizer, tried.

import type { FoundTokens } from "../../api/index.js";
import { debounced, fill, h, type Child } from "../dom.js";
import { counted, visible, whole } from "../format.js";
import type { Session } from "../session.js";
import { failure, show } from "../waiting.js";

export function vocabulary(session: Session, place: HTMLElement): void {
  void show(place, session.open.model.vocabulary(), (first) => {
    if (!first) return h("p.notice", "The model does not have a vocabulary.");
    const list = h("div.tokens");
    const count = h("span.dim", { role: "status" });
    const search = debounced(150, (text: string) => {
      void session.open.model.vocabulary(text).then((found) => found && draw(found, text), (thrown: unknown) => fill(list, failure(thrown)));
    });
    const draw = (found: FoundTokens, text: string) => {
      count.textContent = text === "" ? `${counted(found.total, "token")}, from ${found.source}` : `${whole(found.found)} of ${whole(found.total)}`;
      fill(list, tokens(found, session, text, list));
    };
    draw(first, "");
    return h("div.vocabulary", tokenizer(session),
      h("section.card",
        h("h2", "Vocabulary"),
        h("div.tools", h("input", { type: "search", placeholder: "Find tokens that contain…", "aria-label": "Find tokens", oninput: (event: Event) => search((event.target as HTMLInputElement).value) }), count),
        list));
  });
}

function tokens(found: FoundTokens, session: Session, text: string, list: HTMLElement, start = 0): Child {
  const more = start + found.tokens.length < found.found && h("button", {
    onclick: (event: Event) => {
      (event.currentTarget as HTMLElement).remove();
      void session.open.model.vocabulary(text, start + found.tokens.length).then((next) => {
        if (next) list.append(...([tokens(next, session, text, list, start + found.tokens.length)].flat(9) as Node[]).filter(Boolean));
      });
    },
  }, "Show more");
  return [...found.tokens.map(({ id, shown }) => h("span.token", h("small", id), h("code", seen(shown)))), more];
}

/** A token so that all of it can be seen. */
function seen(text: string): string {
  return visible(text).replaceAll(" ", "␣") || "∅";
}

function tokenizer(session: Session): HTMLElement {
  const result = h("p.tokenized", { role: "status" });
  const run = debounced(250, async (text: string) => {
    if (text === "") {
      fill(result);
      return;
    }
    try {
      const cut = await session.open.model.tokenize(text);
      fill(result, h("span.dim", `${counted(cut.length, "token")} `), cut.map(({ id, text, shown }, index) => h(`span.piece.piece-${index % 4}`, { title: `token ${id}` }, seen(shown ?? text))));
    } catch (thrown) {
      fill(result, failure(thrown));
    }
  });
  return h("section.card",
    h("h2", "Try the tokenizer"),
    h("textarea", { rows: 2, placeholder: "A text", "aria-label": "A text to cut into tokens", oninput: (event: Event) => void run((event.target as HTMLTextAreaElement).value) }),
    result);
}
