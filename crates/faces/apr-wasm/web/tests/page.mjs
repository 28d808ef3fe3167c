// The page in Chromium: real files of every format, what it shows beside what the command prints.
//
//     node page.mjs SITE APR [--pictures FOLDER]

import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { closeSync, existsSync, ftruncateSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test, before, after } from "node:test";

import { chromium } from "playwright-core";

import { serve } from "./serve.mjs";

const [, , site, apr, ...rest] = process.argv;
const pictures = rest[0] === "--pictures" ? rest[1] : undefined;
const root = resolve(import.meta.dirname, "../../../../..");
const shared = join(root, "../shared/data");
const llama = join(root, "fixtures/tiny-llama");
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let browser, server, foreign, folder;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "apr-page-"));
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  server = await serve(site);
  // Other origins, as hubs and other people's servers are.
  foreign = await serve(site, { mounts: {
    ranges: { folder, cors: true },
    whole: { folder, cors: true, ranges: false },
    closed: { folder },
    hub: { folder: llama, cors: true, hub: true },
  } });
});

after(async () => {
  await browser?.close();
  await server?.close();
  await foreign?.close();
  rmSync(folder, { recursive: true, force: true });
});

/** A page, and the promise that nothing goes wrong silently in it. */
async function openPage(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("response", (response) => response.status() >= 400 && response.url().startsWith(server.url) && problems.push(`${response.status()} ${response.url()}`));
  await page.goto(`${server.url}/`);
  await page.getByRole("heading", { name: "Open a model file" }).waitFor();
  return { page, problems, close: () => context.close() };
}

/** Opens files as a user who chooses them. */
async function choose(page, files) {
  await page.locator('input[type="file"]:not([webkitdirectory])').first().setInputFiles(files);
}

const view = (page, name) => page.getByRole("link", { name, exact: true }).click();
// The report of a command, without its envelope.
const json = (...args) => {
  const text = execFileSync(apr, [...args, "--json"], { encoding: "utf8", maxBuffer: 1 << 28 });
  const { schema, command, ...report } = JSON.parse(text);
  assert.deepEqual([schema.startsWith("apr."), command], [true, args[0]]);
  return report;
};
const folderFiles = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
  .map((name) => join(llama, name)).filter(existsSync);

async function shoot(page, name) {
  if (!pictures) return;
  mkdirSync(pictures, { recursive: true });
  await page.screenshot({ path: join(pictures, `${name}.png`) });
}

/** A safetensors file of `size` bytes that takes no room. */
function sparse(path, size) {
  const elements = (size - 4096) / 4;
  const header = JSON.stringify({ weight: { dtype: "F32", shape: [elements], data_offsets: [0, elements * 4] } }).padEnd(4088, " ");
  const file = openSync(path, "w");
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(4088n);
  writeSync(file, length);
  writeSync(file, header);
  ftruncateSync(file, 4096 + elements * 4);
  closeSync(file);
}

test("every format of real files opens and says what it is", async () => {
  const files = [
    [join(llama, "model.safetensors"), "safetensors"],
    [join(shared, "derived/stories260K_Q8_0.gguf"), "GGUF"],
    [join(shared, "onnx/webonnx_wonnx__opt-mnist.onnx"), "ONNX"],
    [join(shared, "pytorch/tracel-ai_burn__mnist.pt"), "PyTorch"],
    [join(shared, "tflite/tensorflow_tflite-micro__person_detect.tflite"), "TFLite"],
    [join(site, "example/model.apr"), "APR"],
  ];
  const { page, problems, close } = await openPage();
  for (const [file] of files.filter(([file]) => existsSync(file))) {
    const said = json("inspect", file);
    await choose(page, file);
    const shown = page.locator(".fact", { hasText: "Parameters" }).locator("small");
    await shown.waitFor();
    assert.equal(await shown.textContent(), said.parameters.toLocaleString("en"), file);
    await page.getByRole("button", { name: "Open…" }).click();
  }
  assert.deepEqual(problems, []);
  await close();
});

test("qa_25_an_apr_file_of_the_native_command_opens_in_the_browser", async () => {
  const { page, problems, close } = await openPage();
  await choose(page, join(site, "example/model.apr"));
  await view(page, "Tensors");
  await page.getByRole("cell", { name: "norm.weight", exact: true }).first().click();
  await page.locator(".stats").waitFor();
  const said = json("tensors", join(site, "example/model.apr"), "--stats").tensors.find((row) => row.name === "norm.weight").stats;
  const shown = await page.locator(".stats").innerText();
  assert.match(shown, new RegExp(`max\\s+${Number(said.max.toPrecision(4))}`));
  assert.match(shown, new RegExp(`L2 norm\\s+${Number(said.l2.toPrecision(4))}`));
  await shoot(page, "tensor");
  assert.deepEqual(problems, []);
  await close();
});

test("reports are those of the command", async () => {
  const { page, close } = await openPage();
  const reports = await page.evaluate(async () => {
    const { open } = await import("./api/index.js");
    const model = await open(new URL("example/model.apr", location.href));
    const name = "layers.0.attn.q_proj.weight";
    return {
      inspect: await model.inspect(), tensors: await model.tensors(), lint: await model.lint(), stats: await model.stats(name),
      histogram: await model.histogram(name), values: await model.values(name, "0:2, 3:7"), validate: await model.validate(), explain: await model.explain(),
    };
  });
  const file = join(site, "example/model.apr");
  // What is called otherwise here is the file alone.
  const same = (mine, theirs, what) => assert.deepEqual(mine, JSON.parse(JSON.stringify(theirs).replaceAll(file, "model.apr")), what);
  const name = "layers.0.attn.q_proj.weight";
  same(reports.tensors, json("tensors", file), "tensors");
  same(reports.lint, json("lint", file), "lint");
  same(reports.validate, json("validate", file), "validate");
  same(reports.explain, json("explain", file), "explain");
  same(reports.values, json("tensors", file, "--values", `${name}[0:2, 3:7]`), "values");
  const { kind, violations, ...histogram } = reports.histogram;
  same(histogram, json("tensors", file, "--hist", name), "histogram");
  assert.equal(typeof kind, "string");
  assert.deepEqual(violations, []);
  assert.deepEqual(reports.stats.stats, json("tensors", file, "--hist", name).tensor.stats);
  assert.equal(reports.inspect.parameters, json("inspect", file).parameters);
  await close();
});

test("data that are no tensors and parts that are not read are named in each view", async () => {
  const { page, problems, close } = await openPage();
  const cases = [["onnx/kinds.onnx", "not listed: tensors of text (2)"], ["keras/small.keras", "not read: the optimizer's state (16 variables)"]];
  for (const [name, line] of cases) {
    await choose(page, join(root, "fixtures", name));
    for (const [label, shown] of [["Overview", ".facts"], ["Tensors", ".split"], ["Checks", ".lines"]]) {
      await view(page, label);
      await page.locator(shown).first().waitFor();
      await page.getByText(line, { exact: true }).waitFor();
      await shoot(page, `left-out-${label.toLowerCase()}`);
    }
    await page.getByRole("button", { name: "Open…" }).click();
  }
  assert.deepEqual(problems, []);
  await close();
});

test("a folder's files are one model: it runs, its graph is drawn, its tokens are found", async () => {
  const { page, problems, close } = await openPage();
  await choose(page, folderFiles);
  await page.getByText("LLaMA").first().waitFor();
  await shoot(page, "overview");
  await view(page, "Structure");
  await page.getByText(/\d+ boxes/).waitFor();
  await page.getByPlaceholder("Find a node").fill("final_norm");
  await page.getByRole("option").first().click();
  await page.locator(".side h3", { hasText: "Inputs" }).waitFor();
  await shoot(page, "structure");
  await view(page, "Vocabulary");
  await page.getByPlaceholder("Find tokens that contain").fill("7");
  await page.locator(".token").first().waitFor();
  await page.getByLabel("A text to cut into tokens").fill("12+34=");
  await page.locator(".piece").first().waitFor();
  await shoot(page, "vocabulary");
  await view(page, "Run");
  await page.getByLabel("Text", { exact: true }).fill("12+34=");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator(".answer .completion", { hasText: "46" }).waitFor({ timeout: 60_000 });
  await shoot(page, "run");
  assert.deepEqual(problems, []);
  await close();
});

test("ten gigabytes open without being read, by file and by address", async () => {
  const path = join(folder, "sparse.safetensors");
  sparse(path, 10e9);
  const { page, problems, close } = await openPage();
  await choose(page, path);
  await page.locator(".fact", { hasText: "Size" }).getByText("10.0 GB").waitFor();
  const traffic = await page.evaluate(async (url) => {
    const { open } = await import("./api/index.js");
    const model = await open(url);
    await model.inspect();
    return await model.traffic();
  }, `${foreign.url}/ranges/sparse.safetensors`);
  assert.ok(traffic.bytes < 1e6, JSON.stringify(traffic));
  assert.ok(foreign.sent.get("/ranges/sparse.safetensors") < 1e6, String(foreign.sent.get("/ranges/sparse.safetensors")));
  assert.deepEqual(problems, []);
  await close();
});

test("servers: without ranges, without leave, a hub; a link says what is shown", async () => {
  writeFileSync(join(folder, "small.safetensors"), readFileSync(join(llama, "model.safetensors")));
  const { page, close } = await openPage();
  const opened = (url, options = {}) => page.evaluate(async ([url, options]) => {
    const { open } = await import("./api/index.js");
    try {
      return (await (await open(url, options)).inspect()).parameters;
    } catch (error) {
      return `${error.code}: ${error.message}`;
    }
  }, [url, options]);
  assert.equal(await opened(`${foreign.url}/whole/small.safetensors`), 361856);
  assert.match(await opened(`${foreign.url}/closed/small.safetensors`), /^E007: .*CORS/);
  assert.match(await opened(`${foreign.url}/whole/absent`), /^E007: the server answers 404/);
  assert.match(await opened(`${foreign.url}/whole/sparse.safetensors`), /^E008: .*no ranges/);
  assert.equal(await opened("hf://tests/tiny-llama", { hub: `${foreign.url}/hub` }), 361856);
  const address = `${foreign.url}/ranges/small.safetensors`;
  await page.goto(`${server.url}/#model=${address}&view=tensors&tensor=model.norm.weight`);
  await page.reload();
  await page.locator(".side h2", { hasText: "model.norm.weight" }).waitFor();
  await close();
});

test("encrypted, damaged and hostile files say so", async () => {
  const secret = join(folder, "secret.apr");
  writeFileSync(join(folder, "password"), "correct horse");
  execFileSync(apr, ["encrypt", join(site, "example/model.apr"), "-o", secret, "--password-file", join(folder, "password"), "-f"]);
  const { page, problems, close } = await openPage();
  const password = await page.evaluate(async (bytes) => {
    const { open } = await import("./api/index.js");
    const file = new File([Uint8Array.from(bytes)], "secret.apr");
    const model = await open(file);
    const refused = await model.stats("norm.weight").catch((error) => error.code);
    const unlocked = await open(file, { password: "correct horse" });
    return [refused, (await unlocked.stats("norm.weight")).stats.max];
  }, [...readFileSync(secret)]);
  assert.deepEqual(password, ["E005", json("tensors", join(site, "example/model.apr"), "--stats").tensors.find((row) => row.name === "norm.weight").stats.max]);

  writeFileSync(join(folder, "cut.safetensors"), readFileSync(join(llama, "model.safetensors")).subarray(0, 5000));
  await choose(page, join(folder, "cut.safetensors"));
  await page.getByRole("alert").getByText("E002").waitFor();
  await shoot(page, "damaged");
  await page.getByRole("button", { name: "Open…" }).click();

  const name = "<img src=x onerror=alert(1)>\u202e";
  const header = Buffer.from(JSON.stringify({ [name]: { dtype: "F32", shape: [1], data_offsets: [0, 4] }, __metadata__: { "<b>": "<script>alert(2)</script>" } }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(join(folder, "hostile.safetensors"), Buffer.concat([length, header, Buffer.alloc(4)]));
  page.on("dialog", (dialog) => problems.push(`dialog ${dialog.message()}`));
  await choose(page, join(folder, "hostile.safetensors"));
  await page.getByText("<script>alert(2)</script>").waitFor();
  await view(page, "Tensors");
  await page.getByRole("cell", { name: "<img src=x" }).click();
  await page.locator(".side h2", { hasText: "\\u{202e}" }).waitFor();
  assert.equal(await page.locator("#app img[src=x]").count(), 0);
  await view(page, "Structure");
  await page.locator(".tree").waitFor();
  assert.deepEqual(problems, []);
  await close();
});

test("a file that can't be opened shows what loading it would run", async () => {
  const samples = [
    join(shared, "malicious/protectai_modelscan__unsafe_zip_pytorch.pt"),
    join(root, "fixtures/scan/evil_deflated.pt"), join(root, "fixtures/scan/evil_0.pkl"),
  ];
  const { page, problems, close } = await openPage();
  for (const sample of samples.filter(existsSync)) {
    const scan = spawnSync(apr, ["scan", sample, "--json"], { encoding: "utf8" });
    const [said] = JSON.parse(scan.stdout).files[0].pickles[0].findings;
    await choose(page, sample);
    await page.getByRole("alert").getByText("E001").waitFor();
    await page.getByText("Dangerous: loading executes code.").waitFor();
    await page.locator(".remarks li", { hasText: `${said.module}.${said.name}` }).first().waitFor();
    await shoot(page, "refused");
    await page.getByRole("button", { name: "Open…" }).click();
  }
  // A pickle that ends in the middle has a reason, and no entry that it is in.
  const cut = join(folder, "cut.pkl");
  writeFileSync(cut, Buffer.from([0x80, 2, 0x63, ...Buffer.from("os\nsystem\n"), 0x1a]));
  await choose(page, cut);
  await page.locator(".remarks li", { hasText: "not a pickle opcode" }).waitFor();
  assert.match(await page.locator(".remarks li", { hasText: "os.system" }).innerText(), /at byte 2$/);
  assert.deepEqual(problems, []);
  await close();
});

test("a reload opens the same file at the same place, or asks for it", async () => {
  const { page, problems, close } = await openPage();
  // A file of the private file system has a handle, as one that was chosen in a dialog has.
  await page.evaluate(async (bytes) => {
    const folder = await navigator.storage.getDirectory();
    const handle = await folder.getFileHandle("kept.safetensors", { create: true });
    const file = await handle.createWritable();
    await file.write(Uint8Array.from(bytes));
    await file.close();
    window.showOpenFilePicker = async () => [handle];
  }, [...readFileSync(join(llama, "model.safetensors"))]);
  await page.getByRole("button", { name: "Choose files" }).click();
  await view(page, "Tensors");
  await page.getByRole("cell", { name: "model.norm.weight" }).click();
  const chosen = page.locator(".side h2", { hasText: "model.norm.weight" });
  await chosen.waitFor();
  await page.reload();
  await chosen.waitFor();
  assert.equal(await page.locator("header h1").innerText(), "kept.safetensors");
  // A browser that wants the user to agree again.
  await page.addInitScript(() => {
    FileSystemHandle.prototype.queryPermission = async () => "prompt";
    FileSystemHandle.prototype.requestPermission = async () => "granted";
  });
  await page.reload();
  await page.locator(".notice", { hasText: "asks again before it reads kept.safetensors" }).waitFor();
  await page.getByRole("button", { name: "Read it again" }).click();
  await chosen.waitFor();
  await page.getByRole("button", { name: "Open…" }).click();
  await page.reload();
  await page.getByRole("heading", { name: "Open a model file" }).waitFor();
  assert.equal(await page.locator(".notice").count(), 0);

  // A file of a form has no handle.
  await choose(page, join(llama, "model.safetensors"));
  await view(page, "Tensors");
  await page.getByRole("cell", { name: "model.norm.weight" }).click();
  await chosen.waitFor();
  await page.reload();
  await page.locator(".notice", { hasText: "model.safetensors was open" }).waitFor();
  await shoot(page, "reloaded");
  await choose(page, join(llama, "model.safetensors"));
  await chosen.waitFor();
  assert.deepEqual(problems, []);
  await close();
});

test("the chosen tensor is marked, and filter, place in the list and focus stay", async () => {
  const { page, problems, close } = await openPage({ viewport: { width: 1440, height: 900 } });
  await choose(page, folderFiles);
  await view(page, "Tensors");
  const names = page.locator(".table .space .name");
  await names.first().waitFor();
  const cut = await names.evaluateAll((all) => all.filter((name) => name.scrollWidth > name.clientWidth).map((name) => name.textContent));
  assert.deepEqual(cut, [], "the names have the free width");
  assert.equal(await page.locator(".row.chosen").count(), 0);
  await page.getByPlaceholder("Filter").fill("mlp");
  await page.getByText("6 of 21").waitFor();
  await names.nth(2).click();
  const second = await names.nth(2).innerText();
  await page.locator(".side h2", { hasText: second }).waitFor();
  assert.equal(await page.locator('.row.chosen[aria-current="true"]').innerText().then((text) => text.split(/\s/u)[0]), second);
  assert.equal(await page.getByPlaceholder("Filter").inputValue(), "mlp");
  const focused = () => page.evaluate(() => document.activeElement.className);
  assert.equal(await focused(), "body");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await page.locator(".side h2", { hasText: await names.nth(3).innerText() }).waitFor();
  assert.equal(await focused(), "body");
  await page.goBack();
  await page.locator(".side h2", { hasText: second }).waitFor();
  await page.locator(".row.chosen", { hasText: second }).waitFor();
  // A tab keeps the focus when its view is drawn.
  await page.getByRole("link", { name: "Checks" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Every byte" }).waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Checks");
  assert.deepEqual(problems, []);
  await close();
});

test("values have their indices, and the slice is one of the tensor's rank", async () => {
  const file = join(folder, "ranks.safetensors");
  const tensors = { cube: [2, 3, 4], line: [5], one: [] };
  let offset = 0;
  const header = JSON.stringify(Object.fromEntries(Object.entries(tensors).map(([name, shape]) => {
    const size = 4 * shape.reduce((product, size) => product * size, 1);
    return [name, { dtype: "F32", shape, data_offsets: [offset, (offset += size)] }];
  })));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(file, Buffer.concat([length, Buffer.from(header), Buffer.from(Float32Array.from({ length: offset / 4 }, (_, at) => at).buffer)]));
  const { page, problems, close } = await openPage();
  await choose(page, file);
  await view(page, "Tensors");
  const grid = async (name) => {
    await page.getByRole("cell", { name, exact: true }).click();
    await page.locator(".side h2", { hasText: name }).waitFor();
    await page.locator(".grid td.number").first().waitFor();
    return await page.locator(".grid tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  };
  await grid("cube");
  const hint = await page.getByLabel("Range of values").getAttribute("placeholder");
  assert.equal(hint.split(",").length, 3);
  await page.getByLabel("Range of values").fill("1:2, 1:3, 2:4");
  await page.getByRole("button", { name: "Show", exact: true }).click();
  await page.getByText("[1:2, 1:3, 2:4]").waitFor();
  const shown = await page.locator(".grid tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  // Element [a, b, c] of the cube is 12 a + 4 b + c.
  assert.deepEqual(shown, [["", "2", "3"], ["1, 1", "18", "19"], ["1, 2", "22", "23"]]);
  assert.deepEqual(await grid("line"), [["0", "1", "2", "3", "4"], ["24", "25", "26", "27", "28"]]);
  assert.deepEqual(await grid("one"), [["29"]]);
  assert.deepEqual(problems, []);
  await close();
});

test("on a phone the tab of the view is on the screen, and no card is empty", async () => {
  const { page, problems, close } = await openPage({ viewport: { width: 390, height: 844 } });
  await choose(page, folderFiles);
  for (const name of ["Overview", "Structure", "Tensors", "Vocabulary", "Compare", "Checks", "Run", "Convert"]) {
    await view(page, name);
    await page.locator("main:not([aria-busy])").waitFor();
    const { x, width } = await page.locator("nav [aria-current]").boundingBox();
    assert.ok(x >= 0 && x + width <= 390, `${name}: ${x} + ${width}`);
    if (name === "Run") await page.getByRole("heading", { name: "Run it here" }).waitFor();
    assert.equal(await page.locator(".conversation:visible").count(), 0);
  }
  await view(page, "Tensors");
  await page.getByRole("cell", { name: "norm.weight" }).last().click();
  await page.getByRole("button", { name: "← All tensors" }).click();
  await page.getByRole("cell", { name: "norm.weight" }).last().waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.className), "body");
  // So do the pairs of a comparison. The two layers have three matrices of neurons each.
  const other = join(folder, "other-shapes.safetensors");
  execFileSync(apr, ["prune", llama, "--prune-neurons", "64", "-o", other, "-f"]);
  await view(page, "Compare");
  await page.locator('main input[type="file"]:not([webkitdirectory])').setInputFiles(other);
  await page.getByText("6 can’t be compared").waitFor();
  await page.locator(".table .space .row").nth(2).click();
  await page.locator(".side .histogram").waitFor();
  await page.getByRole("button", { name: "← All pairs" }).click();
  await page.locator(".table .space .row.chosen").waitFor();
  assert.deepEqual(problems, []);
  await close();
});

test("structure says that it reads, and names the operands of weights as ONNX does", async () => {
  const { page, problems, close } = await openPage();
  await choose(page, folderFiles);
  await page.getByText("LLaMA").first().waitFor();
  await page.evaluate(() => {
    window.waited = false;
    new MutationObserver(() => { window.waited ||= document.querySelector("main .waiting") !== null; }).observe(document.body, { childList: true, subtree: true });
  });
  await view(page, "Structure");
  await page.getByText(/\d+ boxes/u).waitFor();
  assert.ok(await page.evaluate(() => window.waited));
  await page.getByPlaceholder("Find a node").fill("layers.0/attention/query");
  await page.getByRole("option", { name: "layers.0/attention/query", exact: true }).click();
  const input = page.locator(".side li", { hasText: "tensor" });
  await input.waitFor();
  // MatMul's inputs are A and B.
  assert.match(await input.innerText(), /^B\s/u);
  await shoot(page, "operands");
  const drawn = await page.evaluate(async () => {
    const { open } = await import("./api/index.js");
    const model = await open(new URL("example/model.apr", location.href));
    return (await model.drawing(0)).boxes.filter(({ title }) => title === "MatMul").map(({ lines }) => lines[1]);
  });
  assert.ok(drawn.length > 0 && drawn.every((line) => line.startsWith("B: ")), String(drawn));
  assert.deepEqual(problems, []);
  await close();
});

test("tokens are shown as the bytes that they stand for", async () => {
  const { vocab } = JSON.parse(readFileSync(join(llama, "tokenizer.json"), "utf8")).model;
  const { page, problems, close } = await openPage();
  await choose(page, folderFiles);
  await view(page, "Vocabulary");
  // GPT-2's letters of a new line, a space, a tabulator, and of a byte that is not UTF-8 by itself.
  for (const [letter, shown] of [["Ċ", "⏎"], ["Ġ", "␣"], ["ĉ", "⇥"], ["Ã", "<0xC3>"], ["7", "7"]]) {
    const token = page.locator(".token", { has: page.locator("small", { hasText: new RegExp(`^${vocab[letter]}$`, "u") }) });
    assert.equal(await token.locator("code").innerText(), shown);
  }
  await page.getByPlaceholder("Find tokens that contain").fill(" ");
  await page.getByText("1 of 259").waitFor();
  await page.getByLabel("A text to cut into tokens").fill("é 1");
  await page.locator(".piece").first().waitFor();
  assert.deepEqual((await page.locator(".piece").allInnerTexts()).slice(-4), ["<0xC3>", "<0xA9>", "␣", "1"]);
  await shoot(page, "bytes");
  assert.deepEqual(problems, []);
  await close();
});

test("a GGUF file runs and chats", async () => {
  const [file, template] = [join(folder, "chat.gguf"), join(folder, "gguf.jinja")];
  writeFileSync(template, "{{ bos_token }}{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}");
  execFileSync(apr, ["quantize", llama, "-t", "q8_0", "-o", join(folder, "plain.gguf"), "-f"]);
  execFileSync(apr, ["edit", join(folder, "plain.gguf"), "--chat-template", template, "-o", file]);
  const said = execFileSync(apr, ["run", file, "--prompt", "20+22="], { encoding: "utf8" }).trim();
  const { page, problems, close } = await openPage();
  await choose(page, file);
  await view(page, "Run");
  await page.getByLabel("Text", { exact: true }).fill("20+22=");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator(".answer .completion", { hasText: said }).waitFor({ timeout: 60_000 });
  await page.getByText("Options").click();
  await page.getByRole("checkbox", { name: "Conversation" }).check();
  await page.getByLabel("Text", { exact: true }).fill("12+34=");
  await page.getByRole("button", { name: "Send" }).click();
  await page.locator(".said.assistant", { hasText: "46" }).waitFor({ timeout: 60_000 });
  await shoot(page, "chat");
  assert.deepEqual(problems, []);
  await close();
});

test("signatures are verified, and an encrypted model is decrypted", async () => {
  const [key, signed, secret] = ["key", "signed.apr", "sealed.apr"].map((name) => join(folder, name));
  execFileSync(apr, ["keygen", "-o", key]);
  execFileSync(apr, ["sign", join(site, "example/model.apr"), "--key", key, "-o", signed]);
  writeFileSync(join(folder, "password"), "correct horse");
  execFileSync(apr, ["encrypt", signed, "-o", secret, "--password-file", join(folder, "password"), "-f"]);
  const { page, close } = await openPage();
  const [signers, stranger, same] = await page.evaluate(async ([signed, secret, pem]) => {
    const { open } = await import("./api/index.js");
    const of = (bytes, options) => open(new File([Uint8Array.from(bytes)], "model.apr"), options);
    const model = await of(signed);
    const signers = await model.verify([pem]);
    const stranger = await model.verify([]).catch((error) => error.code);
    const { files } = await (await of(secret, { password: "correct horse" })).decrypt("plain.apr");
    const plain = await open(new File([await files[0].blob.arrayBuffer()], "plain.apr"));
    return [signers, stranger, (await plain.diff(model)).same];
  }, [[...readFileSync(signed)], [...readFileSync(secret)], readFileSync(`${key}.pub`, "utf8")]);
  assert.equal(signers.length, 1);
  assert.deepEqual([stranger, same], ["E006", true]);
  await close();
});

test("the example opens by its link", async () => {
  const { page, problems, close } = await openPage();
  await page.getByRole("link", { name: "an example" }).click();
  await page.getByText("LLaMA").first().waitFor();
  assert.deepEqual(problems, []);
  await close();
});

test("two models are compared, a pass is ended, a pickle is found", async () => {
  const { page, problems, close } = await openPage();
  await choose(page, folderFiles);
  const other = join(folder, "other.gguf");
  execFileSync(apr, ["quantize", llama, "-t", "q8_0", "-o", other, "-f"]);
  await view(page, "Compare");
  await page.locator('main input[type="file"]:not([webkitdirectory])').setInputFiles(other);
  await page.getByRole("cell", { name: /q8_0/ }).first().waitFor();
  const { tensors } = json("diff", llama, other);
  const count = (...verdicts) => tensors.filter(({ verdict }) => verdicts.includes(verdict)).length;
  await page.getByText(`${count("identical", "match")} of ${tensors.length} pairs match. ${count("rounded")} differ within`).waitFor();
  await page.locator(".table .space .row").nth(3).click();
  await page.locator(".histogram").waitFor();
  await shoot(page, "compare");
  await view(page, "Checks");
  await page.getByText("The model is valid.").waitFor();
  await shoot(page, "checks");
  const ended = await page.evaluate(async (url) => {
    const { open } = await import("./api/index.js");
    const model = await open(url);
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 300);
    const failed = await model.validate({ signal: controller.signal }).catch((error) => error.name);
    return [failed, (await model.tensors()).tensor_count];
  }, `${foreign.url}/ranges/sparse.safetensors`);
  assert.deepEqual(ended, ["AbortError", 1]);
  const pickle = "cos\nsystem\n(S'echo'\ntR.";
  writeFileSync(join(folder, "evil.pkl"), pickle);
  const verdict = await page.evaluate(async (text) => {
    const { unopened } = await import("./api/index.js");
    return (await (await unopened(new File([text], "evil.bin"))).scan()).verdict;
  }, pickle);
  assert.equal(verdict, "dangerous");
  assert.deepEqual(problems, []);
  await close();
});

test("a conversion writes the bytes of the command", async () => {
  const { page, problems, close } = await openPage();
  await choose(page, join(shared, "derived/stories260K_F16.gguf"));
  await view(page, "Convert");
  await page.getByLabel("Format").selectOption("gguf");
  await page.getByLabel("Weights").selectOption("quantize:q8_0");
  await page.getByRole("button", { name: "Convert", exact: true }).click();
  const saved = page.waitForEvent("download");
  await page.getByRole("button", { name: /^Save / }).click();
  const bytes = readFileSync(await (await saved).path());
  const theirs = join(folder, "stories.gguf");
  execFileSync(apr, ["quantize", join(shared, "derived/stories260K_F16.gguf"), "-t", "q8_0", "-o", theirs, "-f"]);
  assert.ok(bytes.equals(readFileSync(theirs)), "the same bytes");
  assert.deepEqual(problems, []);
  await close();
});

test("costs of boxes are those of the command, and a node's value is computed", async () => {
  const { page, problems, close } = await openPage();
  const drawn = await page.evaluate(async () => {
    const { open } = await import("./api/index.js");
    const model = await open(new URL("example/model.apr", location.href));
    return (await model.drawing(0, { costs: true })).boxes.map(({ path, times, cost }) => ({ path, times, cost }));
  });
  const { structure } = json("graph", join(site, "example/model.apr"), "--costs").parts[0];
  for (const item of structure.items) {
    assert.deepEqual(drawn.find(({ path, times }) => path === item.path && times === item.times)?.cost, item.cost, item.path);
  }
  await choose(page, folderFiles);
  await view(page, "Structure");
  await page.getByText(/\d+ boxes/).waitFor();
  await page.getByLabel("Costs").check();
  await page.getByText(/\d+ boxes/).waitFor();
  await shoot(page, "costs");
  // Of the layers only the first is shown while they are folded.
  await page.getByPlaceholder("Find a node").fill("layers.1/attention/query_head");
  await page.getByRole("option", { name: "layers.1/attention/query_heads" }).click();
  await page.locator(".side .path", { hasText: "layers.1/attention/query_heads" }).waitFor();
  assert.equal(await page.getByLabel("Fold repeated layers").isChecked(), false);
  await shoot(page, "node");
  // Costs give groups other numbers; those that were open stay so.
  const opened = await page.getByText(/\d+ boxes/u).innerText();
  for (const is of [false, true]) {
    await page.getByLabel("Costs").setChecked(is);
    await page.waitForTimeout(1500);
    assert.equal(await page.getByText(/\d+ boxes/u).innerText(), opened);
  }
  await page.locator(".side .path", { hasText: "layers.1/attention/query_heads" }).waitFor();
  await page.getByRole("button", { name: "Compute it" }).click();
  await page.getByLabel("Text", { exact: true }).fill("12+34=");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator(".answer h3", { hasText: "layers.1/attention/query_heads" }).waitFor({ timeout: 60_000 });
  assert.match(await page.locator(".answer h3").innerText(), /f32 \[?1 ?[×,] ?7/u);
  assert.deepEqual(problems, []);
  await close();
});

test("what lint says of a tensor stands beside it", async () => {
  const file = join(folder, "named.safetensors");
  const header = JSON.stringify({ "fc.w": { dtype: "F32", shape: [2], data_offsets: [0, 8] } }).padEnd(64);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(file, Buffer.concat([length, Buffer.from(header), Buffer.from(new Float32Array([1, 2]).buffer)]));
  const { remarks } = JSON.parse(execFileSync(apr, ["lint", file, "--json"], { encoding: "utf8" }));
  const said = remarks.find(({ tensor }) => tensor === "fc.w").message;
  const { page, problems, close } = await openPage();
  await choose(page, file);
  await view(page, "Tensors");
  await page.getByText("fc.w").first().click();
  await page.locator("p.notice", { hasText: said }).waitFor();
  assert.deepEqual(problems, []);
  await close();
});

test("a conversation goes on with what was said", async () => {
  const template = join(folder, "chat_template.jinja");
  writeFileSync(template, "{{ bos_token }}{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}");
  const { page, problems, close } = await openPage();
  await choose(page, [...folderFiles, template]);
  await view(page, "Run");
  await page.getByText("Options").click();
  await page.getByRole("checkbox", { name: "Conversation" }).check();
  for (const [message, answer] of [["12+34=", "46"], ["20+22=", /\d/u]]) {
    await page.getByLabel("Text", { exact: true }).fill(message);
    await page.getByLabel("Text", { exact: true }).press("Enter");
    await page.locator(".said.assistant", { hasText: answer }).last().waitFor({ timeout: 60_000 });
    await page.locator(".said.assistant", { hasText: "tokens" }).last().waitFor();
  }
  assert.equal(await page.locator(".said").count(), 4);
  await shoot(page, "conversation");
  await page.getByRole("button", { name: "Start over" }).click();
  assert.equal(await page.locator(".said").count(), 0);
  // The keys and values of the first turn are there in the second.
  const reused = await page.evaluate(async ([config, weights, tokenizer, template]) => {
    const { open } = await import("./api/index.js");
    const file = (name, text) => new File([text], name);
    const model = await open([file("config.json", config), file("model.safetensors", Uint8Array.from(weights)), file("tokenizer.json", tokenizer), file("chat_template.jinja", template)]);
    const first = await model.run({ text: "12+34=", chat: true, history: [] });
    const history = [{ role: "user", text: "12+34=" }, { role: "assistant", text: first.result.text }];
    const second = await model.run({ text: "20+22=", chat: true, history });
    // Outside of a chat, the history would have no effect.
    const refused = await model.run({ text: "20+22=", history }).then(() => undefined, (error) => error.message);
    return [first.result.reused, second.result.reused, refused];
  }, [readFileSync(join(llama, "config.json"), "utf8"), [...readFileSync(join(llama, "model.safetensors"))], readFileSync(join(llama, "tokenizer.json"), "utf8"), readFileSync(template, "utf8")]);
  assert.ok(reused[0] === 0 && reused[1] > 6, String(reused));
  assert.match(reused[2], /history.*needs/u);
  assert.deepEqual(problems, []);
  await close();
});

test("formats and types are those that conversions write", async () => {
  const { page, problems, close } = await openPage();
  await choose(page, join(site, "example/model.apr"));
  await view(page, "Convert");
  const offered = async (label) => (await page.getByLabel(label).locator("option").evaluateAll((options) => options.map(({ value }) => value)));
  await page.getByLabel("Format").waitFor();
  const formats = await offered("Format");
  for (const name of ["apr", "safetensors", "gguf", "onnx", "pytorch"]) assert.ok(formats.includes(name), `${name} of ${formats}`);
  await page.getByLabel("Format").selectOption("gguf");
  assert.ok((await offered("Weights")).includes("quantize:iq4_xs"));
  await page.getByLabel("Weights").selectOption("quantize:q4_k_m");
  await page.getByLabel("Format").selectOption("onnx");
  assert.ok(!(await offered("Weights")).some((value) => value.startsWith("quantize:")));
  assert.equal(await page.getByLabel("Weights").inputValue(), "");
  assert.deepEqual(problems, []);
  await close();
});

test("a call that is ended takes no other with it", async () => {
  const { page, close } = await openPage();
  const [first, second] = await page.evaluate(async () => {
    const { open } = await import("./api/index.js");
    const model = await open(new URL("example/model.apr", location.href));
    const end = new AbortController();
    const ended = model.validate({ signal: end.signal }).catch((thrown) => thrown.name);
    const other = model.stats("norm.weight");
    end.abort();
    return [await ended, (await other).stats.nan];
  });
  assert.deepEqual([first, second], ["AbortError", 0]);
  await close();
});

test("a folder is opened with what lies in it", async () => {
  const { page, problems, close } = await openPage();
  await page.locator('input[webkitdirectory]').first().setInputFiles(llama);
  await page.getByText("LLaMA").first().waitFor();
  const shown = page.locator(".fact", { hasText: "Parameters" }).locator("small");
  assert.equal(await shown.textContent(), json("inspect", llama).parameters.toLocaleString("en"));
  assert.deepEqual(problems, []);
  await close();
});

test("the page works without a network once it was opened", async () => {
  const own = await serve(site);
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${own.url}/`);
  await page.evaluate(() => navigator.serviceWorker.ready);
  await page.waitForFunction(async () => (await (await caches.open("apr-page")).keys()).length > 10);
  await own.close();
  await context.setOffline(true);
  await page.reload();
  await choose(page, join(llama, "model.safetensors"));
  await page.locator(".fact", { hasText: "Parameters" }).waitFor();
  await context.close();
});

test("the page of the command requests no missing file", async () => {
  const command = spawn(apr, ["page", join(site, "example/model.apr"), "--site", site, "--json"]);
  try {
    let text = "";
    for await (const piece of command.stdout) {
      text += piece;
      if (text.trimEnd().endsWith("}")) break;
    }
    const context = await browser.newContext();
    const page = await context.newPage();
    const problems = [];
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    page.on("response", (response) => response.status() >= 400 && problems.push(`${response.status()} ${response.url()}`));
    await page.goto(JSON.parse(text).address);
    await page.locator(".fact", { hasText: "Parameters" }).waitFor();
    await view(page, "Structure");
    await page.getByText(/\d+ boxes/u).waitFor();
    assert.deepEqual(problems, []);
    await context.close();
  } finally {
    command.kill();
  }
});

test("typed models load from bytes, a server and the browser's cache", async (context) => {
  const published = join(shared, "apr/aprender-0.20.0-linreg.aprn.apr");
  if (!existsSync(published)) return context.skip("needs the shared data");
  const { page, close } = await openPage();
  writeFileSync(join(folder, "linreg.apr"), readFileSync(published));
  const loaded = await page.evaluate(async ([bytes, url]) => {
    const { loadCached, loadFromBytes, loadFromUrl, store } = await import("./api/typed.js");
    const type = "linear_regression";
    const given = Uint8Array.from(bytes);
    await store("lr", given);
    const refused = await loadFromBytes(given, "kmeans").catch((thrown) => thrown.code);
    return { models: [await loadFromBytes(given, type), await loadFromUrl(url, type), await loadCached("lr", type)], none: await loadCached("absent", type), refused };
  }, [[...readFileSync(published)], `${foreign.url}/whole/linreg.apr`]);
  const { coefficients, intercept, fit_intercept } = loaded.models[0];
  assert.deepEqual([coefficients, fit_intercept], [[1.0000004768371582, 2], true]);
  assert.ok(Math.abs(intercept + 1.557e-6) < 1e-9, String(intercept));
  assert.deepEqual(loaded.models[1], loaded.models[0]);
  assert.deepEqual(loaded.models[2], loaded.models[0]);
  assert.deepEqual([loaded.none, loaded.refused], [null, "E001"]);
  await close();
});

test("axe finds no fault in any view, in either theme, wide and narrow", async () => {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [400, 1600]) {
      // Scripts of the test are not the page's own, so that its policy would refuse them.
      const { page, close } = await openPage({ colorScheme, viewport: { width, height: 900 }, bypassCSP: true });
      const look = async (name) => {
        await shoot(page, `${name}-${colorScheme}-${width}`);
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => globalThis.axe.run());
        const said = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" | ")}`);
        assert.deepEqual(said, [], `${name} ${colorScheme} ${width}`);
      };
      await look("start");
      await choose(page, folderFiles);
      for (const name of ["Overview", "Structure", "Tensors", "Vocabulary", "Compare", "Checks", "Run", "Convert"]) {
        await view(page, name);
        await page.locator("main:not([aria-busy])").waitFor();
        await page.waitForTimeout(400);
        await look(name.toLowerCase());
        if (name !== "Tensors") continue;
        await page.getByRole("cell", { name: "model.norm.weight" }).click();
        await page.locator(".stats").waitFor();
        await look("tensor");
      }
      await page.getByRole("button", { name: "Open…" }).click();
      await choose(page, join(root, "fixtures/scan/evil_deflated.pt"));
      await page.getByText("Dangerous: loading executes code.").waitFor();
      await look("refused");
      await close();
    }
  }
});
