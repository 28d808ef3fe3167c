"""BERT in NumPy, for sentence embeddings: mean over tokens, then unit length."""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer


class Bert:
    """The encoder of a Hugging Face folder (Devlin et al. 2018)."""

    def __init__(self, folder):
        folder = Path(folder)
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def linear(self, name, x):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        return centred / deviation * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def attention(self, name, x):
        heads = self.config["num_attention_heads"]
        split = lambda part: self.linear(f"{name}.self.{part}", x).reshape(len(x), heads, -1).transpose(1, 0, 2)
        q, k, v = split("query"), split("key"), split("value")
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ v).transpose(1, 0, 2).reshape(len(x), -1)
        return self.norm(f"{name}.output.LayerNorm", self.linear(f"{name}.output.dense", mixed) + x)

    def embed(self, text):
        ids = self.tokenizer.encode(text).ids
        table = lambda part: self.weights[f"embeddings.{part}_embeddings.weight"]
        x = table("word")[ids] + table("position")[: len(ids)] + table("token_type")[0]
        x = self.norm("embeddings.LayerNorm", x)
        gelu = np.vectorize(lambda value: value * 0.5 * (1 + math.erf(value / math.sqrt(2))))
        for number in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{number}"
            x = self.attention(f"{layer}.attention", x)
            inner = gelu(self.linear(f"{layer}.intermediate.dense", x))
            x = self.norm(f"{layer}.output.LayerNorm", self.linear(f"{layer}.output.dense", inner) + x)
        mean = x.mean(axis=0)
        return mean / np.linalg.norm(mean)
