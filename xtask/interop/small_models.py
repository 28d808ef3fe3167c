"""Trains small models of several families on the documentation of this repository: `small_models.py FOLDER [NAME ...]`.

transformers makes and trains them, so that nothing in them is ours. Each is written to FOLDER/NAME as a folder of Hugging
Face, unless it is there. They have a byte-level vocabulary of 512 tokens, three layers of width 256, and take a minute or two
each on one core. Weights are seeded: one installation repeats them.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[2]
STEPS, BATCH, LENGTH = 300, 8, 64
VOCABULARY, WIDTH, INNER, LAYERS, HEADS = 512, 256, 512, 3, 4
END = 0

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 256,
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
}
LLAMA = COMMON | {"intermediate_size": INNER, "num_key_value_heads": HEADS}
# Class and configuration by name: tied and untied heads, biases, experts, norms before and after a block, parallel blocks,
# learnt and rotary positions.
MODELS = {
    "doc-llama": ("LlamaForCausalLM", LLAMA | {"tie_word_embeddings": True}),
    "doc-qwen2": ("Qwen2ForCausalLM", LLAMA | {"tie_word_embeddings": False}),
    "doc-mixtral": ("MixtralForCausalLM", LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "doc-gemma3": ("Gemma3ForCausalLM", LLAMA | {"head_dim": 64, "sliding_window": 32, "query_pre_attn_scalar": 64}),
    "doc-olmo2": ("Olmo2ForCausalLM", LLAMA | {}),
    "doc-cohere": ("CohereForCausalLM", LLAMA | {"logit_scale": 1.0}),
    "doc-opt": ("OPTForCausalLM", COMMON | {"ffn_dim": INNER, "word_embed_proj_dim": WIDTH, "dropout": 0.0}),
    "doc-gpt-neo": (
        "GPTNeoForCausalLM",
        {key: COMMON[key] for key in ("vocab_size", "hidden_size", "max_position_embeddings", "bos_token_id", "eos_token_id")}
        | {"num_layers": LAYERS, "num_heads": HEADS, "intermediate_size": INNER, "window_size": 32}
        | {"attention_types": [[["global", "local", "global"], 1]], "resid_dropout": 0.0, "embed_dropout": 0.0},
    ),
}


def text():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text() for page in pages)


def trained_tokenizer(corpus):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<end>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.splitlines(keepends=True), trainer)
    return tokenizer


def made(name):
    kind, settings = MODELS[name]
    family = kind.removesuffix("ForCausalLM")
    config = {"Gemma3": transformers.Gemma3TextConfig}.get(family) or getattr(transformers, f"{family}Config")
    torch.manual_seed(3)
    return getattr(transformers, kind)(config(**settings))


def train(model, ids):
    random = torch.Generator().manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05, betas=(0.9, 0.95))
    model.train()
    for step in range(STEPS):
        starts = torch.randint(len(ids) - LENGTH, (BATCH,), generator=random)
        batch = torch.stack([ids[start : start + LENGTH] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 30) * (1 - step / STEPS)
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def main():
    torch.set_num_threads(1)
    folder, *names = sys.argv[1:]
    names = names or list(MODELS)
    missing = [name for name in names if not Path(folder, name, "config.json").exists()]
    if not missing:
        return
    corpus = text()
    tokenizer = trained_tokenizer(corpus)
    ids = torch.tensor(tokenizer.encode(corpus).ids)
    for name in missing:
        model = made(name)
        loss = train(model, ids)
        place = Path(folder, name)
        tokenizer_settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "mask_token": "<mask>"}
        # The configuration comes last: it says that a model is whole.
        model.save_pretrained(place)
        config = place.joinpath("config.json").read_bytes()
        place.joinpath("config.json").unlink()
        tokenizer.save(str(place / "tokenizer.json"))
        place.joinpath("tokenizer_config.json").write_text(json.dumps(tokenizer_settings))
        place.joinpath("README.md").write_text(f"---\nlicense: mit\n---\n\n# {name}\n\nTrained by `xtask/interop/small_models.py`.\n")
        place.joinpath("config.json").write_bytes(config)
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{name}: {count:,} parameters, {loss:.2f} nats per token at the end", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
