/** Where an error points: a file, a tensor, a byte of the file. */
export interface Where {
  file?: string;
  tensor?: string;
  offset?: number;
}

/** An error of the library: `code` is `E001` to `E008`, or `null` where the request is wrong. */
export class AprError extends Error {
  override readonly name = "AprError";
  readonly code: string | null;
  readonly where: Where;

  constructor(message: string, code: string | null = null, where: Where = {}) {
    super(message);
    this.code = code;
    this.where = where;
  }

  /** As a plain object, for a message between threads. */
  toJSON(): { message: string; code: string | null; where: Where } {
    return { message: this.message, code: this.code, where: this.where };
  }
}

/** Whatever was thrown, as an {@link AprError}. The module throws JSON. */
export function toAprError(thrown: unknown): AprError {
  if (thrown instanceof AprError) return thrown;
  if (typeof thrown === "string") {
    try {
      const { message, code, ...where } = JSON.parse(thrown) as { message: string; code: string | null } & Where;
      return new AprError(message, code, where);
    } catch {
      return new AprError(thrown);
    }
  }
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  // A module that panicked or ran out of memory is not to be used again; the message says which.
  return new AprError(message);
}
