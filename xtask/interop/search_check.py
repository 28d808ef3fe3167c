"""`apr quantize --search` beside the fixed mixes of the same size: `search_check.py APR [MINILM]`.

Types are searched on one text, and judged on another that the search did not see. The size is that of the file that the mix
makes with the same importance. Language models are compared by mean KL divergence, MiniLM by the distance of embeddings.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "fixtures/tiny-llama"
STORIES = ROOT / "../shared/data/derived/stories260K_F16.gguf"
MIXES = ["q3_k_m", "q4_0", "q4_k_s", "q4_k_m", "q5_k_m"]
SENTENCES = [
    "The committee will publish its findings next month.", "A man is eating a piece of bread.", "The river froze in December.",
    "How do I reset my password?", "Der Zug nach Hamburg fährt um acht Uhr.", "Quarterly revenue grew by nine percent.",
    "She plays the violin in a small orchestra.", "Two dogs are running through the snow.",
    "The compiler reports an unused variable.", "El museo abre a las diez.", "Add two eggs and stir until smooth.",
    "A cheetah can run faster than a horse.",
]
failures = []


def apr(*arguments):
    return subprocess.run([APR, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def compare(name, folder, model, calibration, judge, options, mixes=MIXES):
    for mix in mixes:
        fixed, searched = folder / "fixed.gguf", folder / "searched.gguf"
        apr("quantize", model, "--type", mix, "--calibration", calibration, "-o", fixed, "-f", "--relaxed")
        size = fixed.stat().st_size
        asked = ["--search", "--max-size", size, "--calibration", calibration, *options]
        apr("quantize", model, *asked, "-o", searched, "-f", "--relaxed")
        found, base = judge(model, searched), judge(model, fixed)
        fits = searched.stat().st_size <= size
        good = fits and found <= base
        print(f"{'ok   ' if good else 'WORSE'} {name} in {size} bytes: {mix} {base:.3e}, searched {found:.3e}"
              f"{'' if fits else ', larger'}", flush=True)
        if not good:
            failures.append(f"{name} {mix}")


def divergence(text, context):
    def judge(model, other):
        report = json.loads(apr("validate", model, other, "--quality", "--text", text, "--context", context, "--json"))
        return report["kl_divergence"]["mean"]["value"]

    return judge


def distance(texts):
    def judge(model, other):
        line = ["validate", model, other, "--quality", "--max-drift", "1e9", "--json"]
        report = json.loads(apr(*line, *(part for text in texts for part in ("--input", text))))
        return 1.0 - report["cosine"]

    return judge


def sums(path, seed, count):
    random.seed(seed)
    pairs = [(random.randint(10, 79), random.randint(10, 79)) for _ in range(count)]
    path.write_text("\n".join(f"{a}+{b}={a + b}" for a, b in pairs), encoding="utf-8")
    return path


def stories(path, seeds):
    tell = ["run", STORIES, "--prompt", "Once upon a time", "--max-tokens", 400, "--temperature", 1, "-q"]
    path.write_text("\n".join(apr(*tell, "--seed", seed) for seed in seeds), encoding="utf-8")
    return path


def main(minilm):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        window = ["--context", 64]
        judge = divergence(sums(folder / "b.txt", 2, 150), 64)
        compare("tiny-llama", folder, TINY, sums(folder / "a.txt", 1, 300), judge, window)
        if STORIES.exists():
            window = ["--context", 128, "--chunks", 12]
            # By six stories, the judgement depended on which.
            seen, unseen = stories(folder / "c.txt", range(1, 9)), stories(folder / "d.txt", range(21, 41))
            compare("stories260K", folder, STORIES, seen, divergence(unseen, 128), window, ["q3_k_m", "q4_k_m"])
        if minilm:
            seen, texts = folder / "e.txt", []
            seen.write_text("\n".join(SENTENCES[:8]), encoding="utf-8")
            for at, sentence in enumerate(SENTENCES[8:]):
                texts.append(folder / f"{at}.txt")
                texts[-1].write_text(sentence, encoding="utf-8")
            compare("MiniLM", folder, Path(minilm[0]), seen, distance(texts), [])
    sys.exit(f"worse: {', '.join(failures)}" if failures else 0)


if __name__ == "__main__":
    APR, *rest = sys.argv[1:]
    main(rest)
