#!/usr/bin/env python3
"""Trains the classifier of this example and writes its weights as JSON.

    python train.py > weights.json
    cargo run --release -p single-binary --bin pack -- weights.json languages.apr

Softmax regression over hashed character n-grams, by gradient descent on all sentences at once; needs numpy alone.
The sentences in data/ were written for this example. lib.rs computes the same features.
"""

import json
import pathlib
import sys

import numpy as np

BUCKETS = 4096
DATA = pathlib.Path(__file__).parent / "data"


def features(text):
    """Square roots of the counts of all 1-, 2- and 3-grams, hashed (FNV-1a) into buckets, scaled to length 1."""
    letters = " " + " ".join("".join(c if c.isalpha() else " " for c in text.lower()).split()) + " "
    counts = np.zeros(BUCKETS)
    for n in (1, 2, 3):
        for start in range(len(letters) - n + 1):
            hashed = 0x811C9DC5
            for byte in letters[start : start + n].encode():
                hashed = (hashed ^ byte) * 0x01000193 & 0xFFFFFFFF
            counts[hashed % BUCKETS] += 1
    counts = np.sqrt(counts)
    return counts / np.linalg.norm(counts)


def read(name, languages=None):
    lines = [line.split("\t", 1) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
    languages = languages or sorted({language for language, _ in lines})
    return np.array([features(text) for _, text in lines]), np.array([languages.index(l) for l, _ in lines]), languages


def main():
    x, y, languages = read("train.txt")
    weights, bias = np.zeros((len(languages), BUCKETS)), np.zeros(len(languages))
    truth = np.eye(len(languages))[y]
    for _ in range(400):
        logits = x @ weights.T + bias
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (odds / odds.sum(axis=1, keepdims=True) - truth) / len(y)
        weights -= 20.0 * (error.T @ x + 1e-4 * weights)
        bias -= 20.0 * error.sum(axis=0)
    held_x, held_y, _ = read("heldout.txt", languages)
    accuracy = {"train": x @ weights.T + bias, "heldout": held_x @ weights.T + bias}
    accuracy = {k: float((v.argmax(axis=1) == (y if k == "train" else held_y)).mean()) for k, v in accuracy.items()}
    print(accuracy, file=sys.stderr)
    # Two decimals are plenty for weights of this size, and pack well.
    rounded = np.round(weights, 2).astype(np.float32)
    json.dump(
        {
            "languages": languages,
            "weights": [float(w) for w in rounded.ravel()],
            "bias": [float(b) for b in bias.astype(np.float32)],
            "accuracy": accuracy["heldout"],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
