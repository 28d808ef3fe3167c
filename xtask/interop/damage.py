"""Which tensor was damaged: `apr trace --diff` beside the truth.

Each model is quantized six ways, with one tensor damaged before: a norm scaled by ten, two heads swapped, a sign flipped, a
block of a projection zeroed. The comparison with the sound original has to name that tensor at the first step that is out of
line. Undamaged models must have no such step.

How many damaged models fail a canary of the sound original, and the comparison of outputs, is printed, with their usual
tolerances: those let pass what quantization costs, and so damage that costs less. The undamaged model in half precision has to
pass both. A strict canary of the sound file of the same type has to fail for every damaged one, and to pass for that file.

    damage.py APR FOLDER TEXT [FOLDER TEXT ...]

Each FOLDER is a model of Hugging Face in safetensors (LLaMA or BERT). Prints a table in Markdown. Needs numpy and
safetensors.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

TYPES = ["f16", "q8_0", "q5_1", "q4_0", "q4_k_m", "q3_k_m"]
F32 = "F32"


def read(path):
    """Tensors of a safetensors file, in single precision."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, info in json.loads(data[8:end]).items():
        if name == "__metadata__":
            continue
        start, stop = (end + at for at in info["data_offsets"])
        raw = data[start:stop]
        if info["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif info["dtype"] in ("F16", F32):
            values = np.frombuffer(raw, {"F16": np.float16, F32: np.float32}[info["dtype"]]).astype(np.float32)
        else:
            continue
        tensors[name] = values.reshape(info["shape"]).copy()
    return tensors


def write(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": F32, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in tensors.values()))


def named(tensors, *ends, layer):
    """The tensor of a layer, whatever the family calls it."""
    is_it = lambda name: f".{layer}." in f".{name}" and any(name.endswith(end) for end in ends)
    return next(name for name in tensors if is_it(name))


def damages(tensors, config):
    """Damages by what they do: the tensor's name, and the tensor as it is then."""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    last = layers - 1
    norm = named(tensors, "post_attention_layernorm.weight", "attention.output.LayerNorm.weight", layer=last // 2)
    yield "norm x 10", norm, tensors[norm] * 10
    query = named(tensors, "q_proj.weight", "attention.self.query.weight", layer=last)
    swapped = tensors[query].reshape(heads, -1, tensors[query].shape[1]).copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    yield "heads 0 and 1 swapped", query, swapped.reshape(tensors[query].shape)
    value = named(tensors, "v_proj.weight", "attention.self.value.weight", layer=0)
    yield "sign flipped", value, -tensors[value]
    down = named(tensors, "mlp.down_proj.weight", f"{layers // 2}.output.dense.weight", layer=layers // 2)
    zeroed = tensors[down].copy()
    zeroed[: zeroed.shape[0] // 4, : zeroed.shape[1] // 4] = 0
    yield "1/16 zeroed", down, zeroed


def quantized(apr, folder, kind, path):
    command = [apr, "quantize", folder, "--type", kind] if kind != "f16" else [apr, "export", folder, "--precision", "f16", "--format", "gguf"]
    subprocess.run([*command, "-o", path, "-f", "-q", "--relaxed"], check=True, capture_output=True)


def inputs(text, scratch, config):
    """A prompt for a model that continues texts, a file for one that embeds them."""
    if config["model_type"] != "bert":
        return ["--prompt", text, "--max-tokens", "16"]
    path = Path(scratch, "text.txt")
    path.write_text(text)
    return ["--input", path]


def compared(apr, folder, path, text):
    run = subprocess.run([apr, "trace", folder, path, "--diff", "--prompt", text, "--json", "-q"], capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(run.stderr)
    return json.loads(run.stdout)


def fails(*command):
    """Whether a command finds what it judges beyond its tolerance."""
    run = subprocess.run([*command, "--json", "-q"], capture_output=True, text=True)
    if run.returncode not in (0, 5):
        raise SystemExit(run.stderr)
    return run.returncode == 5


def first(diff):
    """The weight that the first divergence names; None where no step diverges."""
    for part in diff["passes"]:
        for divergence in part.get("divergences", []):
            weights = divergence["weights"]
            return (weights[0]["tensor"] if weights else divergence["path"]), divergence
    return None, None


def main():
    apr, *models = sys.argv[1:]
    hits = cases = alarms = 0
    seen = dict.fromkeys(["canary", "--quality", "canary --strict"], 0)
    passed, undamaged, halves = dict(seen), 0, 0
    print("| model | damage | " + " | ".join(TYPES) + " |")
    print("|---|---|" + "---|" * len(TYPES))
    for folder, text in zip(map(Path, models[::2]), models[1::2]):
        tensors = read(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        with tempfile.TemporaryDirectory() as scratch:
            broken = Path(scratch, "model")
            shutil.copytree(folder, broken, ignore=shutil.ignore_patterns("*.safetensors"))
            path, canary = Path(scratch, "quantized.gguf"), Path(scratch, "canary.json")
            create = [apr, "canary", "create", folder, "-o", canary, "-q", *inputs(text, scratch, config)]
            subprocess.run(create, check=True, capture_output=True)
            for what, name, values in [("none", None, None), *damages(tensors, config)]:
                write(broken / "model.safetensors", tensors | ({name: values} if name else {}))
                cells = []
                for kind in TYPES:
                    quantized(apr, broken, kind, path)
                    strict = Path(scratch, f"{kind}.json")
                    if name is None:
                        record = [apr, "canary", "create", path, "-o", strict, "--strict", "-q"]
                        subprocess.run([*record, *inputs(text, scratch, config)], check=True, capture_output=True)
                    found, divergence = first(compared(apr, folder, path, text))
                    judged = {
                        "canary": fails(apr, "canary", "check", path, "--canary", canary),
                        "--quality": fails(apr, "validate", folder, path, "--quality"),
                        "canary --strict": fails(apr, "canary", "check", path, "--canary", strict),
                    }
                    counts = passed if name is None else seen
                    for judge, failed in judged.items():
                        counts[judge] += failed if name else not failed
                    undamaged += name is None
                    halves += name is None and kind == "f16" and any(judged.values())
                    if name is None:
                        alarms += found is not None
                        cells.append("none" if found is None else f"false: {found}")
                    else:
                        cases += 1
                        hits += found == name
                        change = divergence["weights"][0]["change"]["kind"] if found == name else f"not found: {found}"
                        cells.append(change)
                print(f"| {folder.name} | {what}{f', `{name}`' if name else ''} | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{hits} of {cases} damaged tensors named; {alarms} false alarms")
    for judge in seen:
        print(f"{judge}: {seen[judge]} of {cases} damaged models fail, {passed[judge]} of {undamaged} undamaged ones pass")
    is_strict = seen["canary --strict"] == cases and passed["canary --strict"] == undamaged
    sys.exit(0 if hits * 10 >= cases * 9 and not alarms and not halves and is_strict else 1)


if __name__ == "__main__":
    main()
