// The portable crates as WebAssembly: opens, checks and converts model files without a host that has any.
//
//     node smoke.mjs MODULE.wasm MODEL.safetensors

import { readFileSync } from "node:fs";

const [modulePath, modelPath] = process.argv.slice(2);
const module = new WebAssembly.Module(readFileSync(modulePath));
const { exports: wasm } = new WebAssembly.Instance(module, {});

/** Hands `file` to an export and returns its result; an error of the module is thrown. */
function call(name, file) {
  const input = wasm.input(file.length);
  // A call may grow the memory, and then `buffer` is another one.
  new Uint8Array(wasm.memory.buffer).set(file, input);
  const ok = wasm[name]();
  const output = wasm.output();
  const result = new Uint8Array(wasm.memory.buffer).slice(output, output + wasm.output_len());
  if (!ok) throw Object.assign(new Error(), JSON.parse(new TextDecoder().decode(result)));
  return result;
}

const inspect = (file) => JSON.parse(new TextDecoder().decode(call("inspect", file)));
const convert = (file) => call("convert", file);

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
    "what is no model is E001": () => checkCode(() => inspect(Buffer.from("just some text")), ["E001"]),
  };
}

const small = writeFile([
  { name: "bias", dtype: "F32", shape: [3], bytes: Buffer.from(new Float32Array([1, -2, 0.5]).buffer) },
  { name: "été ✓", dtype: "I8", shape: [2, 2], bytes: Buffer.from([0, 1, 127, 128]) },
  { name: "scalar", dtype: "F64", shape: [], bytes: Buffer.from(new Float64Array([Math.PI]).buffer) },
  { name: "empty", dtype: "BF16", shape: [0, 4], bytes: Buffer.alloc(0) },
]);

let passed = 0;
let failed = 0;
for (const [title, model] of [["a file made here", small], [modelPath, readFileSync(modelPath)]]) {
  for (const [name, run] of Object.entries(checksOf(model))) {
    try {
      run();
      passed += 1;
    } catch (error) {
      failed += 1;
      console.log(`failed: ${title}: ${name}: ${error.message}`);
    }
  }
}
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed > 0 ? 1 : 0;
