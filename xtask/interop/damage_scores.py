"""What `apr validate --quality` scores sound models and damaged copies of them.

    damage_scores.py APR FOLDER [FOLDER ...] [--only WORDS] [--sound FILE ...]

Each FOLDER is a model of Hugging Face in safetensors, which is copied with one damage at a time. Files behind `--sound` are
scored as they are. Prints a table in Markdown: a row for each damage, a column for each model, the score, and in brackets the
critical point that failed. `--only` names damages by a part of their description. Damages that are marked with * were chosen
after the points were written: no limit of a point was set by them. Noise of 10 % costs what quantization to 4 bits does, and
counts as sound.

Exit code 1 if a sound model scores less than 95. Needs numpy.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from damage import named, read, write

SOUND, DAMAGED = 95, 70
PROJECTIONS = {
    "query": ("self_attn.q_proj.weight", "attention.self.query.weight", "attention.attn.q.weight"),
    "key": ("self_attn.k_proj.weight", "attention.self.key.weight", "attention.attn.k.weight"),
    "value": ("self_attn.v_proj.weight", "attention.self.value.weight", "attention.attn.v.weight"),
    "output": ("self_attn.o_proj.weight", "self_attn.out_proj.weight", "attention.output.dense.weight", "attention.attn.o.weight"),
    "up": ("mlp.up_proj.weight", "intermediate.dense.weight", "fc1.weight"),
    "gate": ("mlp.gate_proj.weight",),
    "norm": ("post_attention_layernorm.weight", "attention.output.LayerNorm.weight", "attention.LayerNorm.weight", "self_attn_layer_norm.weight"),
}
EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight")


class Model:
    """A sound model, and what its tensors are called."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.tensors = read(self.folder / "model.safetensors")
        self.config = json.loads((self.folder / "config.json").read_text())
        keys = ("num_hidden_layers", "n_layer", "decoder_layers")
        self.layers = next(self.config[key] for key in keys if key in self.config)
        self.heads = self.config.get("num_attention_heads") or self.config.get("decoder_attention_heads")
        self.middle = self.layers // 2
        self.last = self.layers - 1
        self.random = np.random.default_rng(7)

    def name(self, kind, layer):
        ends = PROJECTIONS[kind]
        own = {name: 0 for name in self.tensors if not name.startswith("model.encoder.")}
        return named(own, *ends, layer=layer)

    def down(self, layer):
        """The second matrix of a feed-forward block, whose name in BERT ends like that of attention."""
        ends = (f".{layer}.mlp.down_proj.weight", f".{layer}.output.dense.weight", f"decoder.layers.{layer}.fc2.weight")
        return next(name for name in self.tensors if name.endswith(ends))

    def of_layer(self, layer):
        """Tensors of a layer, by the rest of their names."""
        mark = f".{layer}."
        found = [name for name in self.tensors if mark in name and not name.startswith("model.encoder.")]
        return {name.replace(mark, ".#.", 1): name for name in found}

    def embedding(self):
        return next(name for name in self.tensors if name.endswith(EMBEDDINGS))

    def noise(self, values, share):
        return (values + self.random.standard_normal(values.shape) * values.std() * share).astype(np.float32)

    def likewise(self, values):
        return (self.random.standard_normal(values.shape) * values.std()).astype(np.float32)


def turned(values):
    """Read in the order of columns: transposed, or for another shape what a reader makes of it."""
    return np.ascontiguousarray(values.T).reshape(values.shape)


def at(values, row, column, value):
    values = values.copy()
    values[row, column] = value
    return values


def two_exchanged(values, one, other, axis=0):
    values = np.moveaxis(values, axis, 0).copy()
    values[[one, other]] = values[[other, one]]
    return np.ascontiguousarray(np.moveaxis(values, 0, axis))


def exchanged(model, one, other):
    first, second = model.of_layer(one), model.of_layer(other)
    pairs = [(first[key], second[key]) for key in first if key in second]
    return {a: model.tensors[b] for a, b in pairs} | {b: model.tensors[a] for a, b in pairs}


def copied(model, one, other):
    first, second = model.of_layer(one), model.of_layer(other)
    return {second[key]: model.tensors[first[key]] for key in first if key in second}


def heads_exchanged(model, name):
    values = model.tensors[name]
    return two_exchanged(values.reshape(model.heads, -1, values.shape[1]), 0, 1).reshape(values.shape)


def rotary_rows(model, name):
    """The rows of a projection as the rotary embedding of llama.cpp has them."""
    values = model.tensors[name]
    size = model.config.get("head_dim") or model.config["hidden_size"] // model.heads
    return values.reshape(-1, 2, size // 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def of_matrices(model, change):
    return {name: change(values) for name, values in model.tensors.items() if values.ndim == 2}


def damages(model):
    """Damages by what they do: tensors that are others then."""
    t, middle, first, last = model.tensors, model.middle, 0, model.last
    name = model.name
    query, value, up, norm = name("query", middle), name("value", middle), name("up", middle), name("norm", middle)
    down, embedding = model.down(middle), model.embedding()
    rows = t[embedding]
    yield "one value NaN", lambda: {down: at(t[down], 0, 0, np.nan)}
    yield "one value infinite", lambda: {value: at(t[value], 0, 0, np.inf)}
    yield "a query transposed", lambda: {query: turned(t[query])}
    yield "an output of attention transposed", lambda: {name("output", last): turned(t[name("output", last)])}
    yield "a value transposed, first layer", lambda: {name("value", first): turned(t[name("value", first)])}
    yield "a feed-forward matrix read by columns", lambda: {down: turned(t[down])}
    yield "a projection zeroed", lambda: {up: t[up] * 0}
    yield "a value zeroed, first layer", lambda: {name("value", first): t[name("value", first)] * 0}
    yield "a block of a projection zeroed", lambda: {down: at(t[down], slice(t[down].shape[0] // 2), slice(t[down].shape[1] // 8), 0)}
    yield "a projection x 10", lambda: {value: t[value] * 10}
    yield "a projection / 10", lambda: {down: t[down] / 10}
    yield "the sign of a projection", lambda: {down: -t[down]}
    yield "a projection random", lambda: {up: model.likewise(t[up])}
    yield "a layer random", lambda: {name: model.likewise(t[name]) for name in model.of_layer(middle).values() if t[name].ndim == 2}
    yield "all matrices random", lambda: of_matrices(model, model.likewise)
    yield "a layer twice", lambda: copied(model, middle - 1, middle)
    yield "two neighbours exchanged", lambda: exchanged(model, middle - 1, middle)
    yield "first and last layer exchanged", lambda: exchanged(model, first, last)
    yield "two heads of a query exchanged", lambda: {query: heads_exchanged(model, query)}
    yield "a norm x 20", lambda: {norm: t[norm] * 20}
    yield "rows of the vocabulary shifted", lambda: {embedding: np.roll(rows, 1, axis=0)}
    yield "rows of the vocabulary in another order", lambda: {embedding: model.random.permutation(rows)}
    yield "two rows of the vocabulary exchanged", lambda: {embedding: two_exchanged(rows, *letters(model))}
    yield "noise of 10 %, as of 4 bits", lambda: of_matrices(model, lambda values: model.noise(values, 0.1))
    yield "noise of 60 %", lambda: of_matrices(model, lambda values: model.noise(values, 0.6))
    key = name("key", middle)
    yield "keys of all layers zeroed", lambda: {name("key", layer): t[name("key", layer)] * 0 for layer in range(model.layers)}
    yield "columns of a projection shifted", lambda: {down: np.roll(t[down], 1, axis=1)}
    yield "layers in reverse order", lambda: reversed_layers(model)
    yield "value and key exchanged", lambda: {key: t[name("value", middle)], name("value", middle): t[key]}
    yield "half of a layer's rows from the next", lambda: {down: halves(t[down], t[model.down(min(middle + 1, model.last))])}
    yield "a projection of four bits too few", lambda: {query: np.sign(t[query]) * np.abs(t[query]).mean()}
    yield "all projections x 2", lambda: {name: values * 2 for name, values in t.items() if values.ndim == 2 and ".layers." in f".{name}"}
    if "model.layers.0.mlp.gate_proj.weight" in t:
        gate, up = name("gate", middle), name("up", middle)
        yield "gate and up exchanged", lambda: {gate: t[up], up: t[gate]}
        names = [name(kind, layer) for kind in ("query", "key") for layer in range(model.layers)]
        yield "rotary rows of another layout", lambda: {one: rotary_rows(model, one) for one in names}
        yield "base of the rotary embedding / 100", lambda: {"config.json": {"rope_theta": 100.0, "rope_parameters": None}}
    yield from later(model)


def later(model):
    """Damages that were chosen after the judge was written."""
    t, middle, last, name = model.tensors, model.middle, model.last, model.name
    query, value, output = name("query", middle), name("value", middle), name("output", middle)
    up, down, embedding = name("up", middle), model.down(middle), model.embedding()
    yield "* a layer does nothing", lambda: {output: t[output] * 0, down: t[down] * 0}
    yield "* every other row of a projection negative", lambda: {up: t[up] * alternating(len(t[up]))[:, None]}
    yield "* half of a projection's rows x 4", lambda: {value: np.concatenate([t[value][: len(t[value]) // 2], 4 * t[value][len(t[value]) // 2 :]])}
    yield "* an output of attention x 3", lambda: {output: t[output] * 3}
    yield "* a layer's matrices / 2", lambda: {one: t[one] / 2 for one in model.of_layer(middle).values() if t[one].ndim == 2}
    yield "* norms of a layer 1", lambda: {one: np.ones_like(t[one]) for one in model.of_layer(middle).values() if t[one].ndim == 1 and not one.endswith("bias")}
    yield "* matrices cut off at a deviation", lambda: of_matrices(model, lambda values: np.clip(values, -values.std(), values.std()))
    yield "* neurons of one matrix in another order", lambda: {up: model.random.permutation(t[up])}
    yield "* columns of an output in reverse order", lambda: {output: t[output][:, ::-1]}
    yield "* a projection's mean of two layers", lambda: {value: (t[value] + t[name("value", max(middle - 1, 0))]) / 2}
    yield "* each layer in the place of the next", lambda: rotated_layers(model)
    yield "* a quarter of the vocabulary zeroed", lambda: {embedding: at(t[embedding], slice(len(t[embedding]) // 4), slice(None), 0)}
    yield "* a feed-forward matrix of the last layer random", lambda: {model.down(last): model.likewise(t[model.down(last)])}
    yield "* a query and its output exchanged", lambda: {query: t[output].reshape(t[query].shape), output: t[query].reshape(t[output].shape)}
    yield "* a byte of each value lost", lambda: {down: (t[down].view(np.uint32) & 0xFF800000).view(np.float32)}
    yield "* rows of an output of the feed-forward in reverse order", lambda: {down: t[down][::-1]}
    yield "* first layer random", lambda: {one: model.likewise(t[one]) for one in model.of_layer(0).values() if t[one].ndim == 2}


def alternating(count):
    return np.where(np.arange(count) % 2 == 0, 1, -1).astype(np.float32)


def rotated_layers(model):
    found = {}
    for layer in range(model.layers):
        own, other = model.of_layer(layer), model.of_layer((layer + 1) % model.layers)
        found |= {other[key]: model.tensors[own[key]] for key in own if key in other}
    return found


def reversed_layers(model):
    found = {}
    for layer in range(model.layers // 2):
        found |= exchanged(model, layer, model.last - layer)
    return found


def halves(one, other):
    return np.concatenate([one[: len(one) // 2], other[len(one) // 2 :]])


def letters(model):
    """Ids of two tokens that most texts have."""
    tokenizer = json.loads((model.folder / "tokenizer.json").read_text())["model"]["vocab"]
    vocabulary = tokenizer if isinstance(tokenizer, dict) else {token: at for at, (token, _) in enumerate(tokenizer)}
    pairs = [("Ġthe", "Ġa"), ("▁the", "▁a"), ("the", "a"), ("1", "3")]
    return next((vocabulary[a], vocabulary[b]) for a, b in pairs if a in vocabulary and b in vocabulary)


def score(apr, path):
    """The score, and the number of the worst critical point."""
    run = subprocess.run([apr, "validate", path, "--quality", "--json", "-q"], capture_output=True, text=True)
    if not run.stdout.startswith("{"):
        return None, run.stderr.strip().splitlines()[-1][:60]
    report = json.loads(run.stdout)
    critical = report.get("critical", [])
    return report["score"], critical[0]["number"] if critical else None


def shown(value, why):
    return f"{value} ({why})" if why is not None else str(value)


def write_copy(model, folder, changed):
    shutil.copytree(model.folder, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"), dirs_exist_ok=True)
    config = changed.pop("config.json", {})
    settings = model.config | config
    (folder / "config.json").write_text(json.dumps({key: value for key, value in settings.items() if value is not None or key not in config}))
    write(folder / "model.safetensors", model.tensors | changed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("apr")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--sound", nargs="*", default=[])
    args = parser.parse_args()
    table, names, failures = {}, [], []
    for path in map(Path, args.sound):
        value, why = score(args.apr, path)
        print(f"{path.name}: {shown(value, why)}", file=sys.stderr, flush=True)
        if value is None or value < SOUND:
            failures.append(f"{path.name}: {value}")
    for folder in args.folders:
        model = Model(folder)
        names.append(model.folder.name)
        for what, change in [("none", dict), *damages(model)]:
            if args.only not in what and what != "none":
                continue
            with tempfile.TemporaryDirectory() as scratch:
                copy = Path(scratch, model.folder.name)
                write_copy(model, copy, {name: np.ascontiguousarray(values, np.float32) if name != "config.json" else values for name, values in change().items()})
                value, why = score(args.apr, copy)
            table.setdefault(what, {})[model.folder.name] = value, why
            print(f"{model.folder.name}: {what}: {shown(value, why)}", file=sys.stderr, flush=True)
            if what == "none" and (value is None or value < SOUND):
                failures.append(f"{folder}: {value}")
    print("| damage | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for what, row in table.items():
        print(f"| {what} | " + " | ".join(shown(*row[name]) if name in row else "-" for name in names) + " |")
    cells = [value for what, row in table.items() if what != "none" and "noise of 10" not in what for value, _ in row.values()]
    seen = sum(value is None or value < DAMAGED for value in cells)
    print(f"\n{seen} of {len(cells)} damaged models score less than {DAMAGED}")
    if failures:
        sys.exit(f"sound models below {SOUND}: {', '.join(failures)}")


if __name__ == "__main__":
    main()
