"""llama.cpp judges what apr writes: `llama_cpp_check.py APR MINILM`, the binary and the folder of all-MiniLM-L6-v2.

Everything here is llama.cpp's own doing: it loads the files, tokenizes, generates, embeds, and quantizes for comparison.
The expected sums, logits and embeddings come from NumPy (`fixtures/tiny-llama/check.py`, `bert.py`), the expected ids from
the `tokenizers` package.
"""

import itertools
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from tokenizers import Tokenizer

from bert import Bert
from llama_quantize import quantize as llama_quantize
from synthetic import write_llama

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "fixtures/tiny-llama"
sys.path.insert(0, str(TINY))
import check as numpy_llama  # noqa: E402

# By how much the logit of one of two tokens may lead that are as likely.
TIE = 0.05

# llama.cpp's numbers of file types.
FILE_TYPES = {
    "fp16": 1, "bf16": 32, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "q2_k": 10, "q3_k_s": 11, "q3_k_m": 12,
    "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30,
    "tq1_0": 36, "tq2_0": 37,
}
# Those that want an importance matrix.
FEW_BITS = {
    "iq1_s": 24, "iq1_m": 31, "iq2_xxs": 19, "iq2_xs": 20, "iq2_s": 28, "iq2_m": 29, "iq3_xxs": 23, "iq3_xs": 22, "iq3_s": 26,
    "iq3_m": 27, "q1_0": 40, "q2_0": 41,
}
TEXTS = [
    "12+34=", "Hello, world!", "The quick brown fox jumps over the lazy dog.", "Größe, naïve, façade — “quotes”…",
    "你好，世界 日本語", "한국어", "emoji 🙂👩‍👩‍👧 and 3.14159, 1,000,000", "  leading and   inner   spaces\n\nnewlines\ttabs ",
    "def f(x):\n    return x ** 2  # code", "UPPER lower MiXeD I'll don't we've", "",
]
failures = []


def check(condition, what):
    print(("ok    " if condition else "WRONG ") + what, flush=True)
    if not condition:
        failures.append(what)


def apr(*arguments):
    subprocess.run([APR, *map(str, arguments), "-q"], check=True)


def load(path, **options):
    return llama_cpp.Llama(str(path), verbose=False, n_ctx=options.pop("n_ctx", 64), n_threads=2, **options)


def generate(model, prompt):
    """Greedy continuation up to the end of text."""
    ids = model.tokenize(prompt.encode(), add_bos=True, special=False)
    model.reset()
    answer = b""
    for token in model.generate(ids, temp=0.0, repeat_penalty=1.0, top_k=1):
        if token == model.token_eos() or len(answer) > 8:
            break
        answer += model.detokenize([token])
    return answer.decode()


def check_tokens(path, tokenizer_json, what, texts):
    model = load(path, vocab_only=True)
    reference = Tokenizer.from_file(str(tokenizer_json))
    reference.no_padding()
    reference.no_truncation()
    wrong = []
    for text in texts:
        expected = reference.encode(text).ids
        found = model.tokenize(text.encode(), add_bos=True, special=False)
        if found != expected:
            wrong.append((text, expected, found))
    check(not wrong, f"{what}: llama.cpp tokenizes {len(texts)} texts as `tokenizers` does {wrong[:1]}")


def check_sums(folder):
    pairs = [(a, b) for a in range(0, 100, 9) for b in range(3, 100, 13)]
    for name in ["fp32", "fp16", "q8_0", "q4_k_m"]:
        path = folder / f"tiny-{name}.gguf"
        apr("quantize", TINY, "--type", name, "-o", path)
        model = load(path)
        right = sum(generate(model, f"{a}+{b}=") == f"{a + b}\n" for a, b in pairs)
        # Four bits cost a model this small some of its arithmetic; which bytes they are is compared elsewhere.
        needed = len(pairs) if name != "q4_k_m" else len(pairs) // 2
        check(right >= needed, f"tiny-llama as {name} in llama.cpp: {right} of {len(pairs)} sums are right")
        del model


def check_logits(folder):
    path = folder / "tiny-fp32.gguf"
    model = load(path, logits_all=True)
    reference = numpy_llama.Llama()
    tokenizer = numpy_llama.Tokenizer(reference.config["bos_token_id"])
    worst = 0.0
    for text in ["12+34=", "99+99=", "7+0="]:
        ids = tokenizer.encode(text)
        model.reset()
        model.eval(ids)
        cache = [{} for _ in range(reference.config["num_hidden_layers"])]
        expected = reference.last_logits(np.array([ids]), cache)[0]
        found = np.array(model.scores[len(ids) - 1])
        worst = max(worst, float(np.abs(found - expected).max() / np.abs(expected).max()))
    check(worst < 2e-3, f"tiny-llama's logits in llama.cpp are NumPy's within f16 ({worst:.1e} of the largest)")


def check_embeddings(folder):
    path = folder / "minilm.gguf"
    apr("quantize", MINILM, "--type", "fp16", "-o", path)
    # llama.cpp's WordPiece drops Hangul, which decomposes; the original has it.
    texts = [text for text in TEXTS if "한" not in text]
    check_tokens(path, MINILM / "tokenizer.json", "MiniLM", texts)
    model = load(path, embedding=True, n_ctx=512)
    reference = Bert(MINILM)
    worst = 1.0
    for text in [text for text in texts if text.strip()]:
        found = np.array(model.embed(text))
        found = found if found.ndim == 1 else found.mean(axis=0)
        expected = reference.embed(text)
        cosine = float(found @ expected / np.linalg.norm(found) / np.linalg.norm(expected))
        worst = min(worst, cosine)
    check(worst > 0.9999, f"MiniLM's embeddings in llama.cpp are NumPy's (least cosine {worst:.6f})")


def check_files(folder):
    """The same file, byte for byte, as llama-quantize's."""
    for label, options in (("dense", {}), ("grouped queries, tied", {"kv_heads": 2, "tied": True}), ("8 experts", {"experts": 8}),
                           ("rows of 160", {"hidden": 160}), ("Qwen2-MoE", {"experts": 4, "shared": 512})):
        source = folder / "synthetic.gguf"
        write_llama(source, **options)
        same, different = [], []
        for name, number in FILE_TYPES.items():
            ours, theirs = folder / "ours.gguf", folder / "theirs.gguf"
            llama_quantize(source, theirs, number)
            apr("quantize", source, "--type", name, "-o", ours, "-f")
            (same if ours.read_bytes() == theirs.read_bytes() else different).append(name)
        matrix = folder / "imatrix.dat"
        write_imatrix(source, matrix)
        for name, number in FEW_BITS.items():
            # llama.cpp gives up where rows are not of whole blocks of 128.
            if name == "q1_0" and "hidden" in options:
                continue
            llama_quantize(source, theirs, number, matrix)
            apr("quantize", source, "--type", name, "--imatrix", matrix, "-o", ours, "-f")
            (same if ours.read_bytes() == theirs.read_bytes() else different).append(name)
        check(not different, f"{label}: files equal llama_model_quantize's for {len(same)} types {different}")


def write_imatrix(model, path):
    """Random importance of all matrices, in llama.cpp's older format."""
    rng = np.random.default_rng(7)
    entries = []
    for tensor in gguf.GGUFReader(model).tensors:
        if len(tensor.shape) > 1:
            # Innermost first, experts last.
            count = int(tensor.shape[0]) * (int(tensor.shape[2]) if len(tensor.shape) > 2 else 1)
            values = (10 * rng.random(count) ** 3 + 0.01).astype("<f4")
            name = tensor.name.encode()
            entries.append(struct.pack("<i", len(name)) + name + struct.pack("<ii", 1, count) + values.tobytes())
    path.write_bytes(struct.pack("<i", len(entries)) + b"".join(entries))


def check_edits(folder):
    """llama.cpp computes the same with an edited file, with its parts, and with what they are joined to."""
    prompt = "12+34="
    source = folder / "tiny-q8_0.gguf"
    expected = generate(load(source), prompt)
    edited, template = folder / "edited.gguf", folder / "chat.jinja"
    template.write_text("{{ messages }}")
    apr("edit", source, "--set", "general.name=edited", "--chat-template", template, "-o", edited)
    model = load(edited)
    check(generate(model, prompt) == expected, "an edited file computes the same in llama.cpp")
    metadata = model.metadata
    said = (metadata.get("general.name"), metadata.get("tokenizer.chat_template"))
    check(said == ("edited", "{{ messages }}"), "llama.cpp reads the edited name and chat template")
    apr("shard", edited, "--size", "100KB", "-o", folder / "cut.gguf")
    parts = sorted(folder.glob("cut-*.gguf"))
    check(len(parts) > 1 and generate(load(parts[0]), prompt) == expected, f"llama.cpp loads {len(parts)} parts by the first")
    apr("join", parts[-1], "-o", folder / "joined.gguf")
    check((folder / "joined.gguf").read_bytes() == edited.read_bytes(), "the parts join to the file that was cut")


def tokens_of_llama_cpp(path, prompt, count):
    """The likeliest tokens after a prompt, keys and values kept in single precision."""
    single = 0  # GGML_TYPE_F32
    model = load(path, n_ctx=256, type_k=single, type_v=single)
    model.reset()
    model.eval(prompt)
    tokens, scores = [], []
    while len(tokens) < count:
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(model._ctx.ctx), (model.n_vocab(),))
        tokens.append(int(logits.argmax()))
        scores.append(logits.copy())
        model.eval(tokens[-1:])
    return tokens, scores


def lead_of_other(ours, theirs, scores):
    """By how much llama.cpp's logit of its own token leads that of ours, where the two texts part; 0 where they do not."""
    pairs = zip(ours, theirs, scores)
    return next((float(logits[their] - logits[own]) for own, their, logits in pairs if own != their), 0.0)


def check_runs(folder):
    """`apr run --exact` goes on with the tokens of llama.cpp, which gets the same values in single precision; without
    `--exact`, activations are rounded to 8 bits as llama.cpp does with the quantized weights themselves."""
    stories = ROOT.parent / "shared/data/derived/stories260K_F16.gguf"
    models = [(folder / f"tiny-{kind}.gguf", [[256, *b"12+34="], [256, *b"99+99="]], 4) for kind in ("fp16", "q8_0", "q4_k_m")]
    if stories.exists():
        prompts, count = [[1], [1, 403, 407, 261, 378], [1, 410]], 150
        models.append((stories, prompts, count))
        for kind in ["q8_0", "q4_k_m", "q4_0", "q6_k"]:
            path = folder / f"stories-{kind}.gguf"
            apr("quantize", stories, "--type", kind, "-o", path)
            models.append((path, prompts, count))
    else:
        print(f"skip  {stories.name} is not there", flush=True)
    for path, prompts, count in models:
        same_values = folder / "f32.gguf"
        in_floats = ["--precision", "fp32"] if "f16" in path.name.lower() or "fp16" in path.name else ["--dequantize", "f32"]
        apr("convert", path, *in_floats, "-o", same_values, "-f")
        for prompt in prompts:
            ids = ",".join(map(str, prompt))
            for arithmetic, model in [(["--exact"], same_values), ([], path)]:
                command = [APR, "run", path, "--tokens", ids, "--max-tokens", str(count), "--json", *arithmetic]
                ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["added"]
                theirs, scores = tokens_of_llama_cpp(model, prompt, count)
                alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs)))
                lead = lead_of_other(ours, theirs, scores)
                # Which of llama.cpp's kernels run follows from its build: some repack weights and add up in another
                # order, so that an activation is rounded to another level. Two tokens are as likely then.
                most = 0.0 if arithmetic else TIE
                how = " ".join(["apr run", *arithmetic])
                what = f"{how} adds {alike} of {len(ours)} tokens as llama.cpp does; another leads by {lead:.4f} then"
                check(len(ours) > 0 and lead <= most, f"{path.name} after {ids}: {what}")


def check_round_trips(folder):
    """gguf-py reads the same pairs and bytes after a way through .apr."""
    def content(path):
        reader = gguf.GGUFReader(path)
        fields = {key: [bytes(part) for part in field.parts] for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        return fields, {tensor.name: (tensor.tensor_type, tuple(tensor.shape), tensor.data.tobytes()) for tensor in reader.tensors}

    for path in [folder / "tiny-q4_k_m.gguf", folder / "tiny-fp16.gguf"]:
        packed, back = folder / "m.apr", folder / "back.gguf"
        apr("import", path, "-o", packed, "-f")
        apr("export", packed, "--format", "gguf", "-o", back, "-f")
        check(content(path) == content(back), f"{path.name} -> apr -> GGUF: gguf-py finds the same pairs and tensors")


def main():
    llama_cpp.llama_log_set(QUIET, None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_sums(folder)
        check_logits(folder)
        check_runs(folder)
        check_tokens(folder / "tiny-fp16.gguf", TINY / "tokenizer.json", "tiny-llama", TEXTS)
        check_embeddings(folder)
        check_round_trips(folder)
        check_edits(folder)
        check_files(folder)
    if failures:
        sys.exit(f"{len(failures)} checks failed")


QUIET = llama_cpp.llama_log_callback(lambda *_: None)
APR, MINILM = sys.argv[1], Path(sys.argv[2])
main()
