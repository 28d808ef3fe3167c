// The portable crates as WebAssembly: opens, checks, converts, packs, encrypts and signs model files without a host
// that has any. With --as-shipped it prints the size of the module, and fails above the budget.
//
//     node smoke.mjs MODULE.wasm MODEL.safetensors FOLDER-OF-APRN [--as-shipped]

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

/** Most kB of the module after gzip (`docs/decisions.md`, `zstd-encoder`). */
const BUDGET = 400;

const [modulePath, modelPath, aprnFolder, ...flags] = process.argv.slice(2);
const moduleBytes = readFileSync(modulePath);
const module = new WebAssembly.Module(moduleBytes);
const { exports: wasm } = new WebAssembly.Instance(module, {});

/** Copies bytes to where the module makes room for them. */
function hand(room, bytes) {
  const start = wasm[room](bytes.length);
  // A call may grow the memory, and then `buffer` is another one.
  new Uint8Array(wasm.memory.buffer).set(bytes, start);
}

/** Hands `file` to an export and returns its result; an error of the module is thrown. */
function call(name, file, options = {}) {
  hand("input", file);
  hand("options", Buffer.from(JSON.stringify(options)));
  const ok = wasm[name]();
  const output = wasm.output();
  const result = new Uint8Array(wasm.memory.buffer).slice(output, output + wasm.output_len());
  if (!ok) throw Object.assign(new Error(), JSON.parse(new TextDecoder().decode(result)));
  return result;
}

const callForJson = (...given) => JSON.parse(new TextDecoder().decode(call(...given)));
const inspect = (file, keys) => callForJson("inspect", file, keys);
const convert = (file, options) => call("convert", file, options);
const randomBytes = (count) => [...crypto.getRandomValues(new Uint8Array(count))];

/** What a safetensors header says, read without the module. */
function readHeader(file) {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const start = 8 + Number(view.getBigUint64(0, true));
  const { __metadata__, ...tensors } = JSON.parse(new TextDecoder().decode(file.subarray(8, start)));
  return Object.entries(tensors).map(([name, { dtype, shape, data_offsets: [begin, end] }]) => {
    return { name, dtype, shape, bytes: file.subarray(start + begin, start + end) };
  });
}

/** A safetensors file from tensors, written without the module. */
function writeFile(tensors) {
  let end = 0;
  const entries = tensors.map(({ name, dtype, shape, bytes }) => {
    const begin = end;
    end += bytes.length;
    return [name, { dtype, shape, data_offsets: [begin, end] }];
  });
  const header = Buffer.from(JSON.stringify(Object.fromEntries(entries)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, header, ...tensors.map(({ bytes }) => bytes)]);
}

const bytesOf = (file, { offset, len }) => Buffer.from(file.subarray(offset, offset + len));
const byName = (a, b) => (a.name < b.name ? -1 : 1);

function check(condition, message) {
  if (!condition) throw new Error(message);
}

function checkEqual(actual, expected, what) {
  const [a, b] = [JSON.stringify(actual), JSON.stringify(expected)];
  check(a === b, `${what}: ${a} instead of ${b}`);
}

function checkCode(operation, codes) {
  try {
    operation();
  } catch (error) {
    check(codes.includes(error.code), `${error.code ?? error} instead of ${codes.join(" or ")}`);
    return;
  }
  throw new Error(`no error instead of ${codes.join(" or ")}`);
}

function flipped(file, offset) {
  const copy = Uint8Array.from(file);
  copy[offset] ^= 1;
  return copy;
}

/** Checks that the tensors are those of a safetensors file, byte by byte. */
function checkContent(tensors, model) {
  const plain = inspect(model).tensors;
  const content = ({ name, dtype, shape, blake3 }) => ({ name, dtype, shape, blake3 });
  checkEqual(tensors.map(content).sort(byName), plain.map(content).sort(byName), "content");
}

/** Checks that hold for every safetensors file. */
function checksOf(model) {
  const expected = readHeader(model);
  const facts = ({ name, dtype, shape }) => ({ name, dtype: dtype.toLowerCase(), shape });
  return {
    "a safetensors file has the tensors its header names": () => {
      const { format, tensors } = inspect(model);
      checkEqual(format, "safetensors", "format");
      checkEqual(tensors.map(facts).sort(byName), expected.map(facts).sort(byName), "tensors");
    },
    "an APR2 file made from it has the same tensors, each with its digest": () => {
      const { format, tensors } = inspect(convert(model));
      checkEqual(format, "APR2", "format");
      checkEqual(tensors.map(facts).sort(byName), expected.map(facts).sort(byName), "tensors");
      check(tensors.every((tensor) => tensor.has_digest), "a tensor without digest");
    },
    "the bytes of every tensor stay the same": () => {
      const converted = convert(model);
      const tensors = new Map(inspect(converted).tensors.map((tensor) => [tensor.name, tensor]));
      for (const { name, bytes } of expected) {
        check(bytesOf(converted, tensors.get(name)).equals(bytes), `${name} differs`);
      }
    },
    "converting twice gives the same file": () => {
      check(Buffer.from(convert(model)).equals(convert(model)), "the files differ");
    },
    "a changed tensor byte is E004": () => {
      const converted = convert(model);
      const { offset, len } = inspect(converted).tensors.find((tensor) => tensor.len > 0);
      for (const position of [offset, offset + len - 1]) {
        checkCode(() => inspect(flipped(converted, position)), ["E004"]);
      }
    },
    "a changed byte of the digests is E004, of the footer E002 or E004": () => {
      const converted = convert(model);
      checkCode(() => inspect(flipped(converted, converted.length - 48)), ["E004"]);
      for (let fromEnd = 1; fromEnd <= 16; fromEnd += 1) {
        checkCode(() => inspect(flipped(converted, converted.length - fromEnd)), ["E002", "E004"]);
      }
    },
    "a truncated file is E002": () => {
      const converted = convert(model);
      for (const length of [33, converted.length >> 1, converted.length - 1]) {
        checkCode(() => inspect(converted.subarray(0, length)), ["E002"]);
      }
      checkCode(() => inspect(model.subarray(0, model.length - 1)), ["E002"]);
    },
    "compressed tensors are read back": () => {
      const { tensors } = inspect(convert(model, { compress: true }));
      checkContent(tensors, model);
      check(tensors.every(({ len, stored_len }) => stored_len <= len), "a tensor grew");
    },
    "a model encrypted for a password and a recipient opens with either": () => {
      const [recipient, other] = [randomBytes(32), randomBytes(32)];
      const options = { password: "correct horse", recipients: [recipient], random: randomBytes(1024) };
      const sealed = convert(model, { compress: true, ...options });
      checkContent(inspect(sealed, { password: "correct horse" }).tensors, model);
      checkContent(inspect(sealed, { identity: recipient }).tensors, model);
      for (const wrong of [{ password: "correct house" }, { identity: other }, {}]) {
        checkCode(() => inspect(sealed, wrong), ["E005"]);
      }
      const largest = inspect(model).tensors.sort((a, b) => b.len - a.len)[0].name;
      const content = Buffer.from(expected.find(({ name }) => name === largest).bytes);
      check(!Buffer.from(sealed).includes(content), "a tensor lies open");
    },
    "encryption without enough randomness is E007": () => {
      checkCode(() => convert(model, { password: "correct horse", random: randomBytes(8) }), ["E007"]);
    },
    "a signature is verified against trusted keys": () => {
      const [signer, other] = [randomBytes(32), randomBytes(32)];
      const signed = convert(model, { signers: [signer] });
      checkEqual(callForJson("verify", signed, { trusted: [other, signer] }).length, 1, "signers");
      checkCode(() => call("verify", signed, { trusted: [other] }), ["E006"]);
      checkCode(() => call("verify", convert(model), { trusted: [signer] }), ["E006"]);
      const metadata = Buffer.from(signed).indexOf("model_type");
      checkCode(() => call("verify", flipped(signed, metadata), { trusted: [signer] }), ["E006"]);
    },
    "what is no model is E001": () => checkCode(() => inspect(Buffer.from("just some text")), ["E001"]),
  };
}

/** Checks of typed models, on files that another program wrote. */
function checksOfTyped(folder) {
  const read = (name) => readFileSync(join(folder, name));
  // As the program printed them; f32 is exact in JavaScript's numbers.
  const numbers = [1.0000001, 1.9999998, 9.536743e-7];
  const checkModel = ({ coefficients, intercept }) => {
    checkEqual([...coefficients, intercept].map(Math.fround), numbers.map(Math.fround), "model");
  };
  return {
    "a model packed with Zstandard loads": () => checkModel(callForJson("load", read("card-licence-zstd19.apr"))),
    "a model encrypted for a recipient loads with its key alone": () => {
      const identity = Array(32).fill(9);
      checkModel(callForJson("load", read("recipient-x09.apr"), { identity }));
      checkCode(() => call("load", read("recipient-x09.apr"), { identity: randomBytes(32) }), ["E005"]);
    },
    "a model of another type is E001": () => checkCode(() => call("load", read("kmeans.apr")), ["E001"]),
  };
}

const small = writeFile([
  { name: "bias", dtype: "F32", shape: [3], bytes: Buffer.from(new Float32Array([1, -2, 0.5]).buffer) },
  { name: "été ✓", dtype: "I8", shape: [2, 2], bytes: Buffer.from([0, 1, 127, 128]) },
  { name: "scalar", dtype: "F64", shape: [], bytes: Buffer.from(new Float64Array([Math.PI]).buffer) },
  { name: "empty", dtype: "BF16", shape: [0, 4], bytes: Buffer.alloc(0) },
]);

const suites = [
  ["a file made here", checksOf(small)],
  [modelPath, checksOf(readFileSync(modelPath))],
  [aprnFolder, checksOfTyped(aprnFolder)],
];
let passed = 0;
let failed = 0;
for (const [title, checks] of suites) {
  for (const [name, run] of Object.entries(checks)) {
    try {
      run();
      passed += 1;
    } catch (error) {
      failed += 1;
      console.log(`failed: ${title}: ${name}: ${error.message || error.code}`);
    }
  }
}
console.log(`${passed} passed, ${failed} failed`);

let isWithin = true;
if (flags.includes("--as-shipped")) {
  const kilobytes = (bytes) => bytes.length / 1000;
  const gzipped = kilobytes(gzipSync(moduleBytes, { level: 9 }));
  isWithin = gzipped < BUDGET;
  const size = `${kilobytes(moduleBytes).toFixed(0)} kB, ${gzipped.toFixed(0)} kB gzipped`;
  console.log(`the module with every feature but Zstandard's encoder: ${size}; the budget is ${BUDGET} kB gzipped${isWithin ? "" : ": exceeded"}`);
}
process.exitCode = failed > 0 || !isWithin ? 1 : 0;
