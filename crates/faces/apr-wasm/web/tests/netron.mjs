// Time to a view that can be used, beside Netron's page, in the same Chromium.
//
//     node netron.mjs SITE PYTHON-WITH-NETRON MODEL... [--pictures FOLDER]

import { spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import { basename, dirname, join } from "node:path";

import { chromium } from "playwright-core";

import { serve } from "./serve.mjs";

const [, , site, python, ...rest] = process.argv;
const cut = rest.indexOf("--pictures");
const pictures = cut < 0 ? undefined : rest[cut + 1];
const models = cut < 0 ? rest : rest.slice(0, cut);
const ROUNDS = 3;
/** Netron gives up, or its page does. */
const TIMEOUT = 60_000;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run"],
});

async function timed(url, ready, picture) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  // Netron's page asks for consent first.
  await context.addCookies([{ name: "consent", value: String(Date.now()), url }]);
  const page = await context.newPage();
  const begin = performance.now();
  let milliseconds;
  try {
    await page.goto(url, { timeout: TIMEOUT, waitUntil: "commit" });
    await ready(page).first().waitFor({ state: "attached", timeout: TIMEOUT });
    milliseconds = performance.now() - begin;
    if (pictures) {
      mkdirSync(pictures, { recursive: true });
      await page.screenshot({ path: join(pictures, `${picture}.png`) });
    }
  } catch {
    milliseconds = Infinity;
  }
  await context.close();
  return milliseconds;
}

// Locators, since Netron's page has no `eval`, which functions of Playwright go through.
const isUsableHere = (page) => page.locator("div.tree").or(page.getByText(/\d+ boxes/u));
const isUsableThere = (page) => page.locator("body:not(.welcome) svg .node");

let port = 18080;
for (const model of models) {
  const server = await serve(site, { mounts: { models: { folder: dirname(model) } } });
  const theirs = spawn(python, ["-c", "import netron; netron.main()", model, "--port", String((port += 1)), "--host", "127.0.0.1"], { stdio: "ignore" });
  await new Promise((done) => setTimeout(done, 3000));
  const times = { apr: [], netron: [] };
  for (let round = 0; round < ROUNDS; round += 1) {
    times.apr.push(await timed(`${server.url}/#model=models/${basename(model)}&view=structure`, isUsableHere, `${basename(model)}-apr`));
    if (times.netron.includes(Infinity)) continue;
    times.netron.push(await timed(`http://127.0.0.1:${port}/`, isUsableThere, `${basename(model)}-netron`));
  }
  const [mine, other] = [Math.min(...times.apr), Math.min(...times.netron)];
  console.log(`${basename(model)}: ${mine.toFixed(0)} ms, Netron ${other.toFixed(0)} ms, ${(other / mine).toFixed(1)} times as fast`);
  theirs.kill();
  await server.close();
}
await browser.close();
