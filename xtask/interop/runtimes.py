#!/usr/bin/env python3
"""OpenVINO, XGBoost and LightGBM compute what `apr run` and onnxruntime compute of their files: `runtimes.py APR`.

The models are made here, with random weights: of torch, converted by OpenVINO with weights in single and in half precision, and
of ONNX; boosters of every objective that apr translates, on rows with gaps. Needs the packages of requirements-runtimes.txt.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import lightgbm
import numpy as np
import onnxruntime
import openvino as ov
import torch
import xgboost
from torch import nn

# Kernels of several layers in one have no graph to convert.
torch.backends.mha.set_fastpath_enabled(False)
CORE = ov.Core()
RANDOM = np.random.default_rng(11)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2))
        self.apart = nn.Conv2d(8, 8, 3, groups=8, stride=2, padding=1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Hardsigmoid())
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.norm = nn.GroupNorm(2, 4)
        self.last = nn.Linear(4, 5)

    def forward(self, x):
        x = self.apart(self.first(x))
        x = self.norm(self.up(x * self.gate(x)))
        x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.softmax(self.last(nn.functional.avg_pool2d(x, 3, 1, 1).mean((2, 3))), -1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 16), nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 7)

    def forward(self, ids):
        places = torch.arange(ids.shape[1])
        return self.head(self.layers(self.tokens(ids) + self.places(places)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(10, 4, batch_first=True)

    def forward(self, x):
        states, (hidden, _) = self.lstm(x)
        last, _ = self.gru(states)
        return last, hidden


class Sizes(nn.Module):
    """Slices, gathers, comparisons and shapes that depend on the input."""

    def forward(self, x):
        half = x[:, : x.shape[1] // 2]
        best, at = torch.topk(x, 2, dim=-1)
        mask = torch.where(x > 0, x, torch.full_like(x, -1.0)).cumsum(1)
        wide = torch.nn.functional.pad(half, (1, 2), value=0.5).flip(1)
        rows = torch.gather(x, 1, x.argsort(1).clamp(max=3))
        return best, mask, wide, rows, torch.stack([x.amax(-1), x.argmax(-1).float(), x.var(-1)], -1)


TORCH = [
    ("images", Images, lambda: torch.rand(2, 3, 16, 16)),
    ("encoder", Encoder, lambda: torch.randint(0, 30, (2, 9))),
    ("recurrent", Recurrent, lambda: torch.rand(2, 7, 6)),
    ("sizes", Sizes, lambda: torch.randn(2, 6, 5)),
]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done


def flat(value):
    if isinstance(value, list):
        return np.hstack([flat(item) for item in value]) if value else np.zeros(0)
    if isinstance(value, dict):
        return np.hstack([flat(item) for item in value.values()])
    return np.asarray(value, dtype=np.float64).ravel()


def far(what, own, theirs, tolerance):
    own, theirs = flat(own), flat(np.asarray(theirs, dtype=np.float64).tolist())
    if own.shape != theirs.shape:
        sys.exit(f"{what}: {own.size} numbers, and {theirs.size} are expected")
    scale = max(1.0, float(np.abs(theirs).max(initial=0.0)))
    distance = float(np.abs(own - theirs).max(initial=0.0)) / scale
    if not distance <= tolerance:
        sys.exit(f"{what} is {distance} from what is expected")
    return distance


def compared(apr, model, x, expected, folder, tolerance):
    """How far `apr run`, and onnxruntime on the ONNX file, are from the outputs that are expected, by their names."""
    np.save(folder / "x.npy", x)
    run(apr, "run", model, "-i", folder / "x.npy", "-o", folder / "y.json", "-f")
    found = json.loads((folder / "y.json").read_text())
    run(apr, "convert", model, "-o", folder / "m.onnx", "-f")
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"), providers=["CPUExecutionProvider"])
    (input,) = session.get_inputs()
    named = dict(zip([output.name for output in session.get_outputs()], session.run(None, {input.name: x})))
    worst = 0.0
    for name, values in expected.items():
        own = found if len(expected) == 1 and not isinstance(found, dict) else found[name]
        worst = max(worst, far(f"{model}: {name} of apr", own, values, tolerance))
        worst = max(worst, far(f"{model}: {name} of onnxruntime", named[name].tolist(), values, tolerance))
    return worst


def openvino(apr, folder):
    for name, make, inputs in TORCH:
        torch.manual_seed(5)
        module, x = make().eval(), inputs()
        for halves in (False, True):
            converted = ov.convert_model(module, example_input=x)
            for at, output in enumerate(converted.outputs):
                output.get_tensor().set_names({f"y{at}"})
            target = folder / f"{name}-{halves}"
            target.mkdir()
            ov.save_model(converted, target / "openvino_model.xml", compress_to_fp16=halves)
            compiled = CORE.compile_model(CORE.read_model(target / "openvino_model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            made = compiled([x.numpy()])
            expected = {output.get_any_name(): np.asarray(made[output]) for output in compiled.outputs}
            worst = compared(apr, target, x.numpy(), expected, folder, 1e-4)
            print(f"OpenVINO: {name}, {'half' if halves else 'single'} precision: worst {worst:.1e}")


OBJECTIVES = [
    ("reg:squarederror", {}), ("reg:squaredlogerror", {}), ("reg:logistic", {}), ("reg:pseudohubererror", {}), ("reg:absoluteerror", {}),
    ("reg:gamma", {}), ("reg:tweedie", {}), ("count:poisson", {}), ("binary:logistic", {}), ("binary:logitraw", {}), ("binary:hinge", {}),
    ("multi:softprob", {"num_class": 4}), ("multi:softmax", {"num_class": 4}), ("survival:cox", {}), ("rank:pairwise", {}),
]
LIGHT = [
    ("regression", {}), ("regression", {"reg_sqrt": True}), ("regression_l1", {}), ("huber", {}), ("quantile", {}), ("mape", {}), ("poisson", {}),
    ("gamma", {}), ("tweedie", {}), ("binary", {"sigmoid": 1.7}), ("cross_entropy", {}), ("cross_entropy_lambda", {}),
    ("multiclass", {"num_class": 4}), ("multiclassova", {"num_class": 4}),
]


def table():
    x = RANDOM.standard_normal((500, 7)).astype(np.float32)
    score = x @ RANDOM.standard_normal(7)
    x[RANDOM.random(x.shape) < 0.15] = np.nan
    x[RANDOM.random(x.shape) < 0.05] = 0
    return x, score


def target(objective, score):
    if "multi" in objective:
        return np.digitize(score, [-2, 0, 2])
    if "binary" in objective or "logistic" in objective or "entropy" in objective:
        return (score > 0).astype(float)
    if objective in ("reg:squarederror", "regression", "reg:pseudohubererror", "reg:absoluteerror", "regression_l1", "huber", "quantile"):
        return score
    return np.exp(score / 3).round(3) + 0.1 if "poisson" not in objective else np.exp(score / 3).round()


def trees(apr, folder):
    worst, count = 0.0, 0
    for at, (objective, settings) in enumerate(OBJECTIVES):
        x, score = table()
        data = xgboost.DMatrix(x, target(objective, score))
        if "rank" in objective:
            data.set_group([100] * 5)
        booster = ["gbtree", "dart"][at % 2]
        made = xgboost.train({"objective": objective, "booster": booster, "max_depth": 5, "eta": 0.3, "rate_drop": 0.2, "seed": at, **settings}, data, 20)
        expected = {"margin": made.predict(data, output_margin=True), "prediction": made.predict(data)}
        for extension in ("json", "ubj"):
            model = folder / f"m.{extension}"
            made.save_model(model)
            worst = max(worst, compared(apr, model, x, expected, folder, 2e-5))
            count += 1
    print(f"XGBoost: {count} files of {len(OBJECTIVES)} objectives: worst {worst:.1e}")
    worst = 0.0
    for at, (objective, settings) in enumerate(LIGHT):
        x, score = table()
        settings = {"objective": objective, "verbose": -1, "seed": at, "use_missing": at % 3 > 0, **settings}
        made = lightgbm.train(settings, lightgbm.Dataset(x.astype(np.float64), target(objective, score)), 20)
        made.save_model(folder / "m.txt")
        expected = {"margin": made.predict(x.astype(np.float64), raw_score=True), "prediction": made.predict(x.astype(np.float64))}
        worst = max(worst, compared(apr, folder / "m.txt", x, expected, folder, 2e-5))
    print(f"LightGBM: {len(LIGHT)} objectives and settings: worst {worst:.1e}")


def main():
    (apr,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        openvino(apr, Path(name))
        trees(apr, Path(name))


if __name__ == "__main__":
    main()
