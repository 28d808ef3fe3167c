"""Texts that keep to random JSON schemas, expressions and grammars, judged by others: `grammars.py APR TINY_LLAMA [COUNT]`.

APR is the command, TINY_LLAMA the fixture. Texts are made by models with random weights and four kinds of vocabularies,
and by the fixture, with random settings. What they are is judged by jsonschema, Python's expressions, and lark. A text
that its limit of tokens cuts is not judged, but must say so; most must be whole.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import jsonschema
import lark
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

APR, TINY_LLAMA = sys.argv[1], pathlib.Path(sys.argv[2])
COUNT = int(sys.argv[3]) if len(sys.argv) > 3 else 200

TEXTS = [
    '{"name": "Anna", "age": 12, "tags": ["red", "blue"], "ok": true, "none": null}',
    "The quick brown fox jumps over the lazy dog, 1234567890 times. Größe, naïve, 日本語, привет, 😀!",
    "(a + b) * [c - d] / {e: f} = x_1; yes no maybe true false null",
    '[{"x": 1.5e-3, "y": -7}, {"x": 0, "y": 42}]',
] * 8


def byte_level(size):
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=size, special_tokens=["<s>", "</s>", "<|end|>"], initial_alphabet=alphabet)
    )
    return made


def with_fallback(size):
    """As SentencePiece's BPE becomes one: a space is a letter, and characters are bytes where the vocabulary lacks them."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False))
    file = json.loads(made.to_str())
    file["added_tokens"] = [token for token in file["added_tokens"] if token["id"] < 3]
    file["model"].update(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    made = tokenizers.Tokenizer.from_str(json.dumps(file))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def metaspace(size):
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False)
    )
    return made


def model(folder, tokenizer, seed):
    """A Llama with random weights."""
    folder.mkdir()
    size, width, inner, heads, layers = tokenizer.get_vocab_size(), 32, 48, 4, 2
    rng = np.random.default_rng(seed)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size, "hidden_size": width,
        "intermediate_size": inner, "num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": layers,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "bos_token_id": tokenizer.token_to_id("<s>"), "eos_token_id": tokenizer.token_to_id("</s>"), "hidden_act": "silu",
    }
    of = lambda *shape: rng.normal(0, 0.4, shape).astype(np.float32)
    weights = {"model.embed_tokens.weight": of(size, width), "lm_head.weight": of(size, width), "model.norm.weight": 1 + of(width)}
    for layer in range(layers):
        name = f"model.layers.{layer}."
        for norm in ["input_layernorm", "post_attention_layernorm"]:
            weights[f"{name}{norm}.weight"] = 1 + of(width)
        for kind in "qkvo":
            weights[f"{name}self_attn.{kind}_proj.weight"] = of(width, width)
        for kind in ["gate", "up"]:
            weights[f"{name}mlp.{kind}_proj.weight"] = of(inner, width)
        weights[f"{name}mlp.down_proj.weight"] = of(width, inner)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


def schema(rng, depth=0, definitions=()):
    """A random schema, whose documents are short."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "format", "pattern"]
    kinds += ["object", "object", "array", "array", "anyOf", "prefix"] * (depth < 3) + ["ref"] * bool(definitions)
    kind = rng.choice(kinds)
    inner = lambda: schema(rng, depth + 1, definitions)
    match kind:
        case "string":
            least = rng.randrange(3)
            return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(5)}
        case "integer":
            least = rng.randint(-50, 50)
            made = {"type": "integer", "minimum": least, "maximum": least + rng.randint(10, 500)}
            return {**made, "multipleOf": rng.choice([2, 5])} if rng.random() < 0.3 else made
        case "number":
            least = rng.randint(-9, 9)
            return {"type": "number", "minimum": least, "exclusiveMaximum": least + rng.randint(1, 9)}
        case "boolean" | "null":
            return {"type": kind}
        case "enum":
            return {"enum": rng.sample(["a", "ß", "x y", 1, -2.5, None, True, [1, 2], {"k": "v"}, "日本"], rng.randint(1, 4))}
        case "const":
            return {"const": rng.choice(["only", 7, None, ["a", {"b": 1}]])}
        case "format":
            return {"type": "string", "format": rng.choice(["date", "time", "uuid", "ipv4", "date-time"])}
        case "pattern":
            return {"type": "string", "pattern": f"^{expression(rng, 1)}$"}
        case "object":
            names = rng.sample(["a", "b", "name", "größe", "x-y", "_1"], rng.randint(1, 4))
            made = {"type": "object", "properties": {name: inner() for name in names}}
            made["required"] = names if rng.random() < 0.6 else rng.sample(names, rng.randrange(len(names)))
            made["additionalProperties"] = rng.choice([False, False, False, {"type": "boolean"}])
            return made
        case "array":
            least = rng.randrange(3)
            return {"type": "array", "items": inner(), "minItems": least, "maxItems": least + rng.randrange(3)}
        case "prefix":
            return {"type": "array", "prefixItems": [inner(), inner()], "items": False, "minItems": 2}
        case "anyOf":
            return {"anyOf": [inner(), inner()]}
        case "ref":
            return {"$ref": f"#/$defs/{rng.choice(definitions)}"}


def whole_schema(rng):
    definitions = {name: schema(rng, 2) for name in ["one", "two"]}
    made = schema(rng, 0, list(definitions))
    if rng.random() < 0.7:
        made["x-guidance"] = {"whitespace_flexible": False}
    return {**made, "$defs": definitions}


def expression(rng, depth=0):
    """A random expression that Rust and Python read alike: of \\s they have different notions."""
    parts = []
    for _ in range(rng.randint(1, 3)):
        kinds = ["letters", "class", "negated", "digit", "unicode"] + ["group", "choice"] * (depth < 3)
        match rng.choice(kinds):
            case "letters":
                part = rng.choice(["ab", "x", "no", "\\.", "\\+", " ", "_-"])
                parts.append(part)
                continue
            case "class":
                part = rng.choice(["[a-z]", "[0-9a-f]", "[A-Z_]", "[äöü]", "[a-c1-3.+-]"])
            case "negated":
                part = rng.choice(["[^a-z\\n]", "[^0-9 \\n\"\\\\]"])
            case "digit":
                part = "[0-9]"
            case "unicode":
                part = rng.choice(["é", "日", "😀", "ß"])
            case "group":
                part = f"({expression(rng, depth + 1)})"
            case "choice":
                part = f"(?:{expression(rng, depth + 1)}|{expression(rng, depth + 1)})"
        parts.append(part + rng.choice(["", "", "?", "{2}", "{1,3}", "{0,2}"]))
    return "".join(parts)


def rules(rng):
    """A random grammar, as lark, as llguidance and as llama.cpp have it."""
    words = ["a", "b", "ab", "(", ")", "x y", "é", "=>", "日"]
    levels = 3

    def sequence(level):
        later = range(level + 1, levels)
        pick = lambda: rng.choice(later) if later and rng.random() < 0.5 else rng.choice(words)
        return [(pick(), rng.choice([None, None, (0, 1), (1, 2), (2, 2)])) for _ in range(rng.randint(1, 3))]

    bodies = []
    for level in range(levels):
        nested = [[("[", None), (level, None), ("]", None)]] if rng.random() < 0.4 else []
        bodies.append([sequence(level) for _ in range(rng.randint(1, 3))] + nested)

    def written(names, sign, counted):
        def part(what, times):
            text = names[what] if isinstance(what, int) else json.dumps(what, ensure_ascii=False)
            return text + {None: "", (0, 1): "?"}.get(times, times and counted(*times))

        line = lambda body: " | ".join(" ".join(part(*one) for one in alternative) for alternative in body)
        return "".join(f"{name}{sign} {line(body)}\n" for name, body in zip(names, bodies))

    braces = lambda least, most: f"{{{least},{most}}}"
    return (
        written(["start", "two", "three"], ":", lambda least, most: f"~{least}..{most}"),
        written(["start", "two", "three"], ":", braces),
        written(["root", "two", "three"], " ::=", braces),
    )


def case(folder, names, number):
    """What is asked, and how to judge the text."""
    rng = random.Random(number)
    file = folder / f"{number}.txt"
    kind = ["schema", "regex", "lark", "gbnf"][number % 4]
    if kind == "schema":
        wanted = whole_schema(rng)
        file.write_text(json.dumps(wanted, ensure_ascii=False), encoding="utf-8")
        args = ["--json-schema", str(file)]
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        judge = lambda text: jsonschema.Draft202012Validator(wanted, format_checker=checker).validate(json.loads(text))
    elif kind == "regex":
        wanted = expression(rng)
        args = ["--regex", wanted]

        def judge(text):
            assert re.fullmatch(wanted, text), "no match"
    else:
        reference, own, gbnf = wanted = rules(rng)
        file.write_text(own if kind == "lark" else gbnf, encoding="utf-8")
        args = ["--grammar", str(file)]
        judge = lark.Lark(reference, parser="earley", lexer="dynamic_complete").parse
    args += rng.choice(
        [
            [], ["--temperature", "0.7"], ["--temperature", "1"], ["--temperature", "2", "--top-k", "5"], ["--beams", "2"],
            ["--temperature", "1.3", "--top-p", "0.8"], ["--temperature", "1", "--repeat-penalty", "1.2", "--min-p", "0.01"],
        ]
    )
    if "--beams" not in args:
        args += ["--seed", str(number)]
    prompt = rng.choice(["12+34=", "Hello", "x", "é ", '{"a": '])
    return kind, [names[number // 4 % len(names)], "--prompt", prompt, "--max-tokens", "600", *args], wanted, judge


def run(job):
    number, kind, args, wanted, judge = job
    done = subprocess.run([APR, "run", *args, "--json"], capture_output=True)
    error = done.stderr.decode(errors="replace")
    if done.returncode and "metaspace" in args[0] and "the model can't write" in error:
        # A vocabulary without bytes lacks characters.
        return number, kind, "unable", error, wanted
    if done.returncode:
        return number, kind, "error", f"{args}: {error}", wanted
    report = json.loads(done.stdout)
    if not report["grammar"]["complete"]:
        said = "the text ends before it matches the grammar" in error + " ".join(report.get("warnings", []))
        return number, kind, "cut" if said and report["ended"] in ("max_tokens", "context") else "wrong", report, wanted
    try:
        assert "text_base64" not in report, "no UTF-8"
        judge(report["text"])
    except Exception as error:
        return number, kind, "wrong", f"{args}: {report['text']!r}: {type(error).__name__}: {error}", wanted
    return number, kind, "right", report["text"], wanted


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        roomy = folder / "tiny-llama"
        shutil.copytree(TINY_LLAMA, roomy)
        config = json.loads((roomy / "config.json").read_text())
        (roomy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
        kinds = {"bytes": byte_level(700), "fallback": with_fallback(500), "metaspace": metaspace(160)}
        for seed, (name, tokenizer) in enumerate(kinds.items()):
            model(folder / name, tokenizer, seed)
        names = [str(roomy), *(str(folder / name) for name in kinds)]
        jobs = []
        for number in range(COUNT):
            kind, args, wanted, judge = case(folder, names, number)
            jobs.append((number, kind, args, wanted, judge))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            made = list(pool.map(run, jobs))
    counts = {}
    for number, kind, outcome, what, wanted in made:
        counts[kind, outcome] = counts.get((kind, outcome), 0) + 1
        if outcome in ("error", "wrong"):
            print(f"{number} {kind} {outcome}: {what}\n  {wanted}")
    for (kind, outcome), count in sorted(counts.items()):
        print(f"{kind:<8} {outcome:<8} {count}")
    right = sum(count for (_, outcome), count in counts.items() if outcome == "right")
    bad = sum(count for (_, outcome), count in counts.items() if outcome in ("error", "wrong"))
    sys.exit(bool(bad) or right < 0.75 * COUNT)


main()
