"""Distils the repository's tiny LLaMA into one layer, with `apr distill` and with torch, on the same sums.

Rows, their order, the held-out share, initial weights, loss, AdamW, warm-up and cosine are the same. The student of
either must come to the same held-out loss within 2 %. The folder that apr wrote is loaded by transformers, whose
greedy answers to the held-out sums are counted. Prints the time and the peak memory of both, or all as JSON.

    python distill.py APR MODEL [STEPS] [--json]

Needs torch, transformers and tokenizers.
"""

import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

BATCH = 256
RATE, DECAY, CLIP, TEMPERATURE = 2e-3, 0.1, 1.0, 2.0
HELD_OUT = 0.05
MASK = 2**64 - 1


def sums():
    rows = [f"{a}+{b}={a + b}\n" for a in range(100) for b in range(100)]
    random.Random(0).shuffle(rows)
    return rows


def mixed(value):
    """SplitMix64's output function, as apr-distill orders rows by it."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def shuffled(rows, seed, epoch):
    return [row for _, row in sorted((mixed(mixed(seed ^ mixed(epoch)) ^ row), row) for row in rows)]


def batches(rows, lengths, seed, epoch):
    """Rows of like length side by side, 16 steps at a time, and the steps in another order."""
    order = shuffled(rows, seed, epoch)
    parts = [sorted(order[at : at + 16 * BATCH], key=lengths.__getitem__) for at in range(0, len(order), 16 * BATCH)]
    order = [row for part in parts for row in part]
    steps = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    return [steps[place] for place in shuffled(list(range(len(steps))), seed, epoch)]


def padded(rows, pad):
    width = max(len(row) for row in rows)
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return tokens, mask


def loss_of(student, teacher, tokens, mask):
    """KL of softened predictions over all tokens that are no padding, times the square of the temperature."""
    with torch.no_grad():
        theirs = F.log_softmax(teacher(tokens, attention_mask=mask, use_cache=False).logits / TEMPERATURE, -1)
    own = F.log_softmax(student(tokens, attention_mask=mask, use_cache=False).logits / TEMPERATURE, -1)
    divergence = (theirs.exp() * (theirs - own)).sum(-1)
    return TEMPERATURE**2 * (divergence * mask).sum() / mask.sum()


def with_torch(model, rows, steps):
    """The best held-out loss, and the seconds that the steps took."""
    teacher = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    config = AutoConfig.from_pretrained(model)
    config.num_hidden_layers = 1
    student = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    student.load_state_dict(teacher.state_dict(), strict=False)
    student.train()
    everything = list(range(len(rows)))
    order = shuffled(everything, 0, MASK)
    held = round(len(rows) * HELD_OUT)
    learnt, held = sorted(order[:-held]), sorted(order[-held:], key=lambda row: (len(rows[row]), row))
    pad = config.pad_token_id
    groups = [
        dict(params=[p for p in student.parameters() if p.dim() > 1], weight_decay=DECAY),
        dict(params=[p for p in student.parameters() if p.dim() == 1], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), eps=1e-8)
    each, warmup, interval = math.ceil(len(learnt) / BATCH), steps // 20, max(1, steps // 20)

    def evaluated():
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(held), BATCH):
                part = held[start : start + BATCH]
                total += loss_of(student, teacher, *padded([rows[row] for row in part], pad)).item() * len(part)
        return total / len(held)

    best, started = math.inf, time.monotonic()
    for step in range(steps):
        if step % each == 0:
            parts = batches(learnt, [len(row) for row in rows], 0, step // each)
        part = parts[step % each]
        rise = (step + 1) / max(warmup, 1)
        fall = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * (rise if step < warmup else fall)
        loss = loss_of(student, teacher, *padded([rows[row] for row in part], pad))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), CLIP)
        optimizer.step()
        if (step + 1) % interval == 0 or step + 1 == steps:
            best = min(best, evaluated())
    return best, time.monotonic() - started


def with_apr(apr, model, folder, steps):
    """apr's report, its seconds, and the folder that it wrote."""
    data = folder / "sums.jsonl"
    data.write_text("".join(json.dumps(dict(text=row)) + "\n" for row in sums()))
    out = folder / "student"
    command = [
        apr, "distill", model, "--distill-layers", "1", "--data", str(data), "-o", str(out), "--format", "safetensors",
        "--batch", str(BATCH), "--steps", str(steps), "--lr", str(RATE), "--held-out", str(HELD_OUT), "--json",
    ]
    started = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["distillation"], time.monotonic() - started, out


def right(folder, rows):
    """Share of the sums that a model answers right, by greedy decoding."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    assert model.dtype == torch.float32, model.dtype
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    count = 0
    for row in rows:
        question, answer = row.split("=")
        tokens = torch.tensor([tokenizer.encode(question + "=").ids])
        with torch.no_grad():
            made = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=5, do_sample=False)
        text = tokenizer.decode(made[0, tokens.shape[1] :].tolist())
        count += text.strip() == answer.strip()
    return count / len(rows)


def main():
    apr, model, *rest = [word for word in sys.argv[1:] if word != "--json"]
    steps = int(rest[0]) if rest else 1000
    torch.set_num_threads(2)
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    texts = sums()
    rows = [tokenizer.encode(text).ids for text in texts]
    order = shuffled(list(range(len(rows))), 0, MASK)
    held = [texts[row] for row in order[-round(len(rows) * HELD_OUT) :]]
    with tempfile.TemporaryDirectory() as folder:
        report, own_seconds, out = with_apr(apr, model, Path(folder), steps)
        own_memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        share = right(out, held)
    loss, seconds = with_torch(model, rows, steps)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    own = report["after"]["loss"]
    if "--json" in sys.argv:
        found = dict(
            loss=[own, loss], seconds=[own_seconds, seconds], memory=[own_memory, memory], right=share, steps=steps
        )
        print(json.dumps(found))
    else:
        print(f"held-out loss     apr {own:.5f}  torch {loss:.5f}  (before: {report['before']['loss']:.5f})")
        print(f"seconds           apr {own_seconds:.1f}  torch {seconds:.1f}  ratio {seconds / own_seconds:.2f}")
        print(f"peak memory, MiB  apr {own_memory:.0f}  torch {memory:.0f}")
        print(f"held-out sums right, by transformers: {100 * share:.1f} %")
    # A short training ends before it matters.
    if abs(own - loss) > 0.02 * loss:
        sys.exit("the losses are more than 2 % apart")


if __name__ == "__main__":
    main()
