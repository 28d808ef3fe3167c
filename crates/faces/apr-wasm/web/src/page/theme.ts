// Light, dark, or as the system is.

const THEMES = ["", "light", "dark"] as const;
const KEY = "apr-theme";

/** Takes the theme that was chosen last. */
export function restoreTheme(): void {
  apply(read());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
}

/** Goes on to the next theme. */
export function nextTheme(): void {
  const next = THEMES[(THEMES.findIndex((theme) => theme === read()) + 1) % THEMES.length]!;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // A page without storage forgets it.
  }
  apply(next);
}

function read(): string {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return document.documentElement.dataset["theme"] ?? "";
  }
}

function apply(theme: string): void {
  if (theme === "") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  tell();
}

function tell(): void {
  document.dispatchEvent(new Event("themechange"));
}
