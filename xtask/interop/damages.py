"""Thirty kinds of damage to a model of Hugging Face, as tensors that are others then.

Damages that are marked with * were chosen after the judges were written: no limit of a judge was set by them.
"""

import json
from pathlib import Path

import numpy as np

from damage import named, read

PROJECTIONS = {
    "query": ("attn.q_proj.weight", "attention.self.query.weight", "attention.q_proj.weight"),
    "key": ("attn.k_proj.weight", "attention.self.key.weight", "attention.k_proj.weight"),
    "value": ("attn.v_proj.weight", "attention.self.value.weight", "attention.v_proj.weight"),
    "output": ("attn.o_proj.weight", "self_attn.out_proj.weight", "attention.output.dense.weight", "attention.out_proj.weight"),
    "up": ("mlp.up_proj.weight", "intermediate.dense.weight", "fc1.weight", "mlp.c_fc.weight", "experts.0.w3.weight"),
    "norm": (
        "post_attention_layernorm.weight",
        "attention.output.LayerNorm.weight",
        "self_attn_layer_norm.weight",
        "ln_2.weight",
        "input_layernorm.weight",
    ),
}
DOWN = ("mlp.down_proj.weight", ".output.dense.weight", "fc2.weight", "mlp.c_proj.weight", "experts.0.w2.weight")
EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight")


class Model:
    """A sound model, and what its tensors are called. Of a model with an encoder and a decoder, the decoder is damaged."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.name = "MiniLM" if "minilm" in str(self.folder) else self.folder.name
        self.tensors = read(self.folder / "model.safetensors")
        self.config = json.loads((self.folder / "config.json").read_text())
        keys = ("num_hidden_layers", "n_layer", "decoder_layers", "num_layers")
        self.layers = next(self.config[key] for key in keys if key in self.config)
        heads = ("num_attention_heads", "decoder_attention_heads", "num_heads")
        self.heads = next(self.config[key] for key in heads if key in self.config)
        self.middle, self.last = self.layers // 2, self.layers - 1
        self.own = {name: 0 for name in self.tensors if not name.startswith("model.encoder.") and "encoder_attn" not in name}
        self.random = np.random.default_rng(7)

    def of(self, kind, layer):
        return named(self.own, *PROJECTIONS[kind], layer=layer)

    def down(self, layer):
        """The second matrix of a feed-forward block, whose name in BERT ends like that of attention."""
        own = {name: 0 for name in self.own if "attention.output" not in name}
        return named(own, *DOWN, layer=layer)

    def of_layer(self, layer):
        """Tensors of a layer, by the rest of their names."""
        mark = f".{layer}."
        found = [name for name in self.tensors if mark in name and not name.startswith("model.encoder.")]
        return {name.replace(mark, ".#.", 1): name for name in found}

    def matrices_of_layer(self, layer):
        return [name for name in self.of_layer(layer).values() if self.tensors[name].ndim == 2]

    def embedding(self):
        return next(name for name in self.own if name.endswith(EMBEDDINGS))

    def noise(self, values, share):
        return (values + self.random.standard_normal(values.shape) * values.std() * share).astype(np.float32)

    def likewise(self, values):
        return (self.random.standard_normal(values.shape) * values.std()).astype(np.float32)


def louder(model, gains):
    """A norm x 20. Gemma stores gains less 1."""
    offset = model.config["model_type"].startswith("gemma")
    return (gains + offset) * 20 - offset


def turned(values):
    """Read in the order of columns: transposed, or for another shape what a reader makes of it."""
    return np.ascontiguousarray(values.T).reshape(values.shape)


def at(values, row, column, value):
    values = values.copy()
    values[row, column] = value
    return values


def exchanged(model, one, other):
    return copied(model, one, other) | copied(model, other, one)


def copied(model, one, other):
    """Weights of a layer in the place of another one's."""
    first, second = model.of_layer(one), model.of_layer(other)
    return {second[key]: model.tensors[first[key]] for key in first if key in second}


def heads_exchanged(model, name):
    values = model.tensors[name]
    by_head = values.reshape(model.heads, -1, values.shape[1]).copy()
    by_head[[0, 1]] = by_head[[1, 0]]
    return by_head.reshape(values.shape)


def of_matrices(model, change):
    return {name: change(values) for name, values in model.tensors.items() if values.ndim == 2}


def in_each_layer(model, kinds, change):
    names = [model.of(kind, layer) for kind in kinds for layer in range(model.layers)]
    return {name: change(model.tensors[name]) for name in names}


def known(model):
    """Damages by what they do: a description, and a function that returns the tensors that are others then."""
    t, of, middle, last = model.tensors, model.of, model.middle, model.last
    query, value, output, up, norm = (of(kind, middle) for kind in ("query", "value", "output", "up", "norm"))
    down, embedding = model.down(middle), model.embedding()
    yield "one value NaN", lambda: {down: at(t[down], 0, 0, np.nan)}
    yield "one value infinite", lambda: {value: at(t[value], 0, 0, np.inf)}
    yield "a query transposed", lambda: {query: turned(t[query])}
    yield "an output of attention transposed", lambda: {of("output", last): turned(t[of("output", last)])}
    yield "a value transposed, first layer", lambda: {of("value", 0): turned(t[of("value", 0)])}
    yield "a feed-forward matrix read by columns", lambda: {down: turned(t[down])}
    yield "a projection zeroed", lambda: {up: t[up] * 0}
    yield "a value zeroed, first layer", lambda: {of("value", 0): t[of("value", 0)] * 0}
    yield "a block of a projection zeroed", lambda: {down: at(t[down], slice(len(t[down]) // 2), slice(t[down].shape[1] // 8), 0)}
    yield "a projection x 10", lambda: {value: t[value] * 10}
    yield "an output of attention x 3", lambda: {output: t[output] * 3}
    yield "the sign of a projection", lambda: {down: -t[down]}
    yield "a projection random", lambda: {up: model.likewise(t[up])}
    yield "all matrices random", lambda: of_matrices(model, model.likewise)
    yield "noise of 60 % in all matrices", lambda: of_matrices(model, lambda values: model.noise(values, 0.6))
    yield "a layer twice", lambda: copied(model, middle - 1, middle)
    yield "two neighbours exchanged", lambda: exchanged(model, middle - 1, middle)
    yield "a norm x 20", lambda: {norm: louder(model, t[norm])}
    yield "two heads of a query exchanged", lambda: {query: heads_exchanged(model, query)}
    yield "rows of the vocabulary in another order", lambda: {embedding: model.random.permutation(t[embedding])}


def later(model):
    """Damages that were chosen after the judges were written."""
    t, of, middle, last = model.tensors, model.of, model.middle, model.last
    key, up, output = of("key", middle), of("up", middle), of("output", middle)
    down, embedding = model.down(middle), model.embedding()
    yield "* keys of a layer from the next", lambda: {key: t[of("key", (middle + 1) % model.layers)]}
    yield "* rows of a projection one place further", lambda: {up: np.roll(t[up], 1, axis=0)}
    yield "* every tenth column of a projection negative", lambda: {output: t[output] * np.where(np.arange(t[output].shape[1]) % 10, 1, -1)}
    yield "* queries and keys of all layers transposed", lambda: in_each_layer(model, ("query", "key"), turned)
    yield "* a projection in bf16 with its bytes exchanged", lambda: {down: bytes_exchanged(t[down])}
    yield "* the last quarter of a projection from its first", lambda: {up: repeated(t[up])}
    yield "* matrices of the last layer zero from the middle on", lambda: {name: cut(t[name]) for name in model.matrices_of_layer(last)}
    yield "* norms of the first layer in the last", lambda: {name: values for name, values in copied(model, 0, last).items() if values.ndim == 1}
    yield "* the second layer in the place of the first", lambda: copied(model, 1, 0)
    yield "* half of the vocabulary negative", lambda: {embedding: np.concatenate([t[embedding][: len(t[embedding]) // 2], -t[embedding][len(t[embedding]) // 2 :]])}


def damages(model):
    return [*known(model), *later(model)]


def bytes_exchanged(values):
    halves = (values.view(np.uint32) >> 16).astype(np.uint16).byteswap()
    return (halves.astype(np.uint32) << 16).view(np.float32)


def repeated(values):
    quarter = len(values) // 4
    return np.concatenate([values[: len(values) - quarter], values[:quarter]])


def cut(values):
    return np.concatenate([values[: len(values) // 2], np.zeros_like(values[len(values) // 2 :])])
