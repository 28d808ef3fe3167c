// The package in Node: paths, folders, bytes, conversion, a run.
//
//     node node.mjs SITE APR

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";

const [, , site, apr] = process.argv;
const { open, unopened, AprError } = await import(resolve(site, "../npm/api/node.js"));
const llama = resolve(import.meta.dirname, "../../../../../fixtures/tiny-llama");
const cases = resolve(llama, "../../../shared/cases/codes");
// The report of a command, without its envelope; the exit code says what the report says.
const json = (...args) => {
  const { stdout } = spawnSync(apr, [...args, "--json"], { encoding: "utf8", maxBuffer: 1 << 28 });
  const { schema, command, ...report } = JSON.parse(stdout);
  assert.deepEqual([schema.startsWith("apr."), command], [true, args[0]]);
  return report;
};

test("a folder is explored and run", async () => {
  const model = await open(llama);
  const { parameters, family } = await model.inspect();
  assert.deepEqual([parameters, family.title], [361856, "LLaMA"]);
  assert.deepEqual((await model.tensors()).tensors, json("tensors", llama).tensors);
  const pieces = [];
  const { kind, result } = await model.run({ text: "12+34=", maxTokens: 8 }, { onText: (piece) => pieces.push(piece) });
  assert.deepEqual([kind, result.text, pieces.join("")], ["completion", "46\n", "46\n"]);
  const { result: states } = await model.run({ text: "12+34=", want: ["final_norm/scaled"] });
  assert.deepEqual(states.outputs[0].shape, [1, 7, 128]);
  model.close();
});

test("the package reports what the command reports", async () => {
  const fixtures = resolve(llama, "..");
  const models = [
    "tiny-llama", "run/tiny-whisper", "run/tiny-bert", "lora/lora", "lora/lora/adapter_model.safetensors",
    "onnx/kinds.onnx", "keras/images.keras", "tflite/lowered.tflite", "torch/lightning.ckpt", "tensorflow/saved",
    "numpy/mixed.npz", "wrapped/small.nemo", "flax/state.msgpack",
    // Weights in codes and scales, where the shared cases are.
    ...["fp8-block", "gptq4"].map((name) => join(cases, name)).filter((path) => existsSync(path)),
  ];
  // A page has no paths.
  const same = (mine, theirs, what) => {
    for (const report of [mine, theirs]) for (const key of ["path", "other_path"]) delete report[key];
    assert.deepEqual(mine, theirs, what);
  };
  const first = await open(llama);
  for (const name of models) {
    const path = resolve(fixtures, name);
    const model = await open(path);
    for (const report of ["inspect", "tensors", "validate", "lint", "explain"]) {
      same(await model[report](), json(report, path), `${report} ${name}`);
    }
    same(await first.diff(model), json("diff", llama, path), `diff ${name}`);
    model.close();
  }
  first.close();
});

test("bytes open, errors have codes, progress is told", async () => {
  const bytes = readFileSync(join(llama, "model.safetensors"));
  const model = await open(bytes);
  const told = [];
  assert.equal((await model.validate({ onProgress: (...step) => told.push(step) })).valid, true);
  assert.ok(told.length > 1 && told.at(-1)[1] === told.at(-1)[2], JSON.stringify(told.at(-1)));
  const cut = open(bytes.subarray(0, 5000));
  await assert.rejects(cut, (error) => error instanceof AprError && error.code === "E002");
  await assert.rejects(model.stats("absent"), (error) => error.code === "E001" && error.where.tensor === "absent");
  await assert.rejects(open(join(llama, "absent")), (error) => error.code === "E007");
});

test("what can't be opened is scanned", async () => {
  const folder = mkdtempSync(join(tmpdir(), "apr-node-"));
  writeFileSync(join(folder, "evil.bin"), "cos\nsystem\n(S'echo'\ntR.");
  await assert.rejects(open(join(folder, "evil.bin")), (error) => error.code === "E001");
  const { verdict, files } = await (await unopened(join(folder, "evil.bin"))).scan();
  const [{ module, name }] = files[0].pickles[0].findings;
  assert.deepEqual([verdict, module, name], ["dangerous", "os", "system"]);
  rmSync(folder, { recursive: true });
});

test("a conversion writes the bytes of the command, and nothing where it fails", async () => {
  const folder = mkdtempSync(join(tmpdir(), "apr-node-"));
  const model = await open(llama, { outputFolder: folder });
  const { files } = await model.convert({ format: "gguf", fileName: "mine.gguf", quantize: "q8_0" });
  execFileSync(apr, ["quantize", llama, "-t", "q8_0", "-o", join(folder, "theirs.gguf")]);
  assert.ok(readFileSync(files[0].path).equals(readFileSync(join(folder, "theirs.gguf"))));
  await assert.rejects(model.convert({ format: "gguf", fileName: "bad.gguf", quantize: "q9" }));
  assert.deepEqual(readdirSync(folder).sort(), ["mine.gguf", "theirs.gguf"]);
  rmSync(folder, { recursive: true });
});
