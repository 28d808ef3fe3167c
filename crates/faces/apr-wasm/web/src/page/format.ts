// Numbers and texts as people read them.

/** `1.23 MB`. */
export function bytes(count: number): string {
  return scaled(count, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"]], "B");
}

/** `22.7 M`. */
export function amount(count: number): string {
  return scaled(count, [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]], "");
}

/** `102 MFLOP`. */
export function operations(count: number): string {
  return scaled(count, [[1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1e3, "kFLOP"]], "FLOP");
}

function scaled(count: number, units: [number, string][], plain: string): string {
  const found = units.find(([unit]) => Math.abs(count) >= unit);
  if (!found) return plain ? `${count} ${plain}` : String(count);
  const [unit, name] = found;
  const value = count / unit;
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${name}`;
}

const WHOLE = new Intl.NumberFormat("en");

/** `1,234,567`. */
export function whole(count: number): string {
  return WHOLE.format(count);
}

/** A count and the noun of what is counted: `1 tensor`, `1,234 tensors`. */
export function counted(count: number, noun: string): string {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** A value in four significant digits, or what it is instead of a number. */
export function value(number: number | string | null | undefined): string {
  if (number === null || number === undefined) return "–";
  if (typeof number === "string") return number;
  if (number === 0 || Number.isInteger(number) && Math.abs(number) < 1e6) return String(number);
  const size = Math.abs(number);
  return size >= 1e-3 && size < 1e5 ? Number(number.toPrecision(4)).toString() : number.toExponential(3);
}

/** `[4096, 11008]`. */
export function shape(dims: readonly number[]): string {
  return `[${dims.join(", ")}]`;
}

/** `norm_gamma` as words. */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

/** Characters that would hide or turn a text around are shown as what they are. */
export function visible(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu, (character) => {
    return `\\u{${character.codePointAt(0)?.toString(16)}}`;
  });
}
