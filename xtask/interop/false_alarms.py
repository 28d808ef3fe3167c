"""Whether judges accuse sound quantizations: `false_alarms.py APR FOLDER TEXT [FOLDER TEXT ...]`.

Each FOLDER is a model of Hugging Face. It becomes a GGUF file of each type, mixes and importance matrices included, and is
compared with the original by `trace --diff`, by `validate --quality` and, alone, by `validate`. Prints a table in Markdown, and
ends with exit code 1 if one of them finds more than rounding.

Types of less than two bits are not judged by `--quality`: what they leave of a small model is no copy of it.
"""

import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TYPES = (
    "f16 bf16 q8_0 q6_k q5_k_m q5_k_s q5_1 q5_0 q4_k_m q4_k_s q4_1 q4_0 iq4_nl iq4_xs q3_k_l q3_k_m q3_k_s q2_k q2_k_s "
    "iq3_m iq3_s iq3_xs iq3_xxs iq2_m iq2_s iq2_xs iq2_xxs iq1_m iq1_s tq1_0 tq2_0 q1_0 q2_0 mxfp4 nvfp4"
).split()
COARSE = ("iq1_m", "iq1_s", "tq1_0", "tq2_0", "q1_0", "q2_0", "iq2_xxs")
JUDGES = ("trace --diff", "--quality", "validate")


def run(*command):
    return subprocess.run([*map(str, command), "-q", "--threads", "1"], capture_output=True, text=True)


def accused(done, what):
    if done.returncode not in (0, 5):
        raise SystemExit(f"{what}: {done.stderr}")
    return done.returncode == 5


def quantized(apr, folder, kind, imatrix, path):
    more = ["--imatrix", imatrix] if imatrix.exists() else []
    command = ["quantize", folder, "--type", kind, *more]
    if kind in ("f16", "bf16"):
        command = ["export", folder, "--precision", kind, "--format", "gguf"]
    done = run(apr, *command, "-o", path, "-f")
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def judged(apr, folder, text, kind, imatrix, scratch):
    """What each judge found; `None` for a type that the model can't have."""
    path = Path(scratch, f"{kind}.gguf")
    why = quantized(apr, folder, kind, imatrix, path)
    if why:
        return why
    name = f"{folder.name} as {kind}"
    diff = run(apr, "trace", folder, path, "--diff", "--prompt", text, "--json", "--exit-code")
    found = {"trace --diff": accused(diff, name)}
    if kind not in COARSE:
        found["--quality"] = accused(run(apr, "validate", folder, path, "--quality", "--json"), name)
    found["validate"] = accused(run(apr, "validate", path, "--json"), name)
    path.unlink()
    if found["trace --diff"]:
        print(name, json.loads(diff.stdout)["recommendation"], file=sys.stderr, flush=True)
    return found


def main():
    apr, *models = sys.argv[1:]
    alarms, counted, missing = [], 0, []
    print("| model | " + " | ".join(JUDGES) + " |")
    print("|---|" + "---|" * len(JUDGES))
    for folder, text in zip(map(Path, models[::2]), models[1::2]):
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
            imatrix, words = Path(scratch, "imatrix.gguf"), Path(scratch, "text.txt")
            words.write_text("\n".join(f"{text} {number}" for number in range(400)))
            run(apr, "imatrix", folder, "--text", words, "--context", 32, "-o", imatrix)
            results = list(pool.map(lambda kind: judged(apr, folder, text, kind, imatrix, scratch), TYPES))
        cells = []
        for judge in JUDGES:
            seen = [(kind, found[judge]) for kind, found in zip(TYPES, results) if isinstance(found, dict) and judge in found]
            wrong = [kind for kind, is_accused in seen if is_accused]
            alarms += [f"{folder.name} as {kind}: {judge}" for kind in wrong]
            counted += len(seen)
            cells.append(f"{len(wrong)} of {len(seen)}" + (f" ({', '.join(wrong)})" if wrong else ""))
        missing += [f"{folder.name} as {kind}: {found}" for kind, found in zip(TYPES, results) if isinstance(found, str)]
        print(f"| {folder.name} | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{len(alarms)} false alarms in {counted} judgements")
    for line in missing:
        print(f"not made: {line}", file=sys.stderr)
    if alarms:
        sys.exit("\n".join(alarms))


if __name__ == "__main__":
    main()
