// What is no tensor of the model: data that are not listed, and what is not read.

import type { LeftOut } from "../../api/index.js";
import { h, type Child } from "../dom.js";
import { visible, whole } from "../format.js";

/** Parts that are named before the rest is only counted. */
const SHOWN = 12;

/** A line for each kind of data, and one for the parts; the commands print the same. */
export function leftOut({ unlisted = [], left_out: parts = [] }: LeftOut): Child {
  const named = `not read: ${parts.slice(0, SHOWN).map(visible).join(", ")}`;
  return [
    unlisted.map(({ what, count }) => h("p.dim", `not listed: ${visible(what)} (${whole(count)})`)),
    parts.length > 0 && parts.length <= SHOWN && h("p.dim", named),
    parts.length > SHOWN && h("details.dim",
      h("summary", `${named}, and ${whole(parts.length - SHOWN)} more`),
      h("ul.remarks", parts.map((part) => h("li", visible(part))))),
  ];
}
