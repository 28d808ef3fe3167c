"""Simplified graphs of apr beside onnxsim and onnxslim: onnx's checker, onnxruntime's outputs, nodes and seconds.

Small models with random weights are exported by torch, with fixed and with open sizes. Files and folders of ONNX models
can be given instead (`--peers` lets the others simplify them too). Each model is simplified by `apr convert --simplify`, by onnxsim and by onnxslim. The result of apr
must pass the full check of onnx, keep inputs, outputs and metadata_props, and give onnxruntime's outputs (without its
optimizations) of the original: bit for bit where apr reports so, else within 1e-5 of the largest value.

    python onnx_simplified.py APR [--peers] [FILE | FOLDER ...]

Prints a Markdown table, and ends with 1 where a result is wrong. Needs onnx, onnxruntime, onnxsim, onnxslim, torch,
torchvision and transformers.
"""

import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

warnings.filterwarnings("ignore")

TOLERANCE = 1e-5
PEERS = {
    "onnxsim": "import sys, onnx, onnxsim; m, ok = onnxsim.simplify(sys.argv[1]); assert ok; onnx.save(m, sys.argv[2])",
    "onnxslim": "import sys, onnxslim; onnxslim.slim(sys.argv[1], sys.argv[2])",
}


def modules():
    """Modules with their inputs and the names of the inputs."""
    import torch
    import torchvision
    import transformers
    from torch import nn

    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)

    def block(inputs, outputs, size=3, stride=1):
        convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())

    class Detector(nn.Module):
        """Parts of a YOLO: split and joined channels, a pyramid of pools, upsampling, and a decoded grid."""

        def __init__(self):
            super().__init__()
            self.stem, self.down = nn.Sequential(block(3, 16, 3, 2), block(16, 32, 3, 2)), block(48, 64, 3, 2)
            self.left, self.right, self.narrow = block(32, 16, 1), block(16, 16), block(64, 32, 1)
            self.wide, self.neck, self.head = block(128, 64, 1), block(112, 32), nn.Conv2d(32, 27, 1)
            self.register_buffer("anchors", torch.rand(3, 2))

        def forward(self, x):
            x = self.stem(x)
            left = self.left(x)
            joined = torch.cat([*left.chunk(2, 1), self.right(left), x[:, :16]], 1)
            pools = [self.narrow(self.down(joined))]
            for _ in range(2):
                pools.append(nn.functional.max_pool2d(pools[-1], 5, 1, 2))
            wide = self.wide(torch.cat([*pools, pools[0]], 1))
            head = self.head(self.neck(torch.cat([nn.functional.interpolate(wide, scale_factor=2.0), joined], 1)))
            count, _, height, width = head.shape
            head = head.view(count, 3, 9, height, width).permute(0, 1, 3, 4, 2).contiguous()
            grid = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            places = (head[..., :2].sigmoid() * 2 - 0.5 + torch.stack(grid[::-1], -1).float()) * 8
            sizes = (head[..., 2:4].sigmoid() * 2) ** 2 * self.anchors.view(1, 3, 1, 1, 2)
            return torch.cat([places, sizes, head[..., 4:].sigmoid()], -1).view(count, -1, 9)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out, self.drop = nn.Embedding(50, 16), nn.Linear(48, 5), nn.Dropout(0.2)
            self.lstm = nn.LSTM(16, 24, 2, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.out(self.drop(self.lstm(self.table(x))[0])).log_softmax(-1)

    class First(nn.Module):
        """The first output of a model of transformers."""

        def __init__(self, model, names):
            super().__init__()
            self.model, self.names = model, names

        def forward(self, *values):
            return self.model(**dict(zip(self.names, values)))[0]

    def trained(module):
        """With statistics that normalize."""
        for norm in module.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.running_mean.normal_(0, 0.2), norm.running_var.uniform_(0.5, 1.5)
                norm.weight.data.uniform_(0.5, 1.5), norm.bias.data.normal_(0, 0.2)
        return module

    def of(kind, config, names, **options):
        options = dict(attn_implementation="eager", **options)
        return First(getattr(transformers, kind)(getattr(transformers, config)(**options)), names)

    text, picture = ["input_ids", "attention_mask"], torch.randn(1, 3, 64, 64)
    ids = (torch.randint(0, 60, (2, 7)), torch.ones(2, 7, dtype=torch.long))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    yield "mobilenet_v2", trained(torchvision.models.mobilenet_v2(num_classes=10)), (picture,), ["x"]
    yield "resnet18", trained(torchvision.models.resnet18(num_classes=10)), (picture,), ["x"]
    yield "yolo-like", trained(Detector()), (picture,), ["x"]
    yield "lstm", Tagger(), (torch.randint(0, 50, (2, 9)),), ["x"]
    yield "bert", of("BertModel", "BertConfig", text, vocab_size=60, **sizes), ids, text
    gpt2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False,
            "bos_token_id": 1, "eos_token_id": 2}
    yield "gpt2", of("GPT2LMHeadModel", "GPT2Config", text, **gpt2), ids, text
    vit = of("ViTForImageClassification", "ViTConfig", ["pixel_values"], image_size=64, patch_size=16, **sizes)
    yield "vit", vit, (picture,), ["pixel_values"]


def export(folder):
    """Writes each module twice: with fixed sizes, and with open ones."""
    import torch

    for name, module, inputs, names in modules():
        open_sizes = {0: "batch"} if inputs[0].dim() == 4 else {0: "batch", 1: "tokens"}
        for suffix, axes in (("", None), (" (open)", {name: open_sizes for name in names})):
            path = folder / f"{name}{suffix}.onnx"
            # Nothing is folded by torch, so that simplifiers have it to do.
            torch.onnx.export(module.eval(), inputs, str(path), input_names=names, output_names=["y"], dynamic_axes=axes,
                              opset_version=17, do_constant_folding=False, dynamo=False,
                              training=torch.onnx.TrainingMode.PRESERVE)
            yield path


def nodes(graph):
    inner = (part for node in graph.node for attribute in node.attribute
             for part in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs])
    return len(graph.node) + sum(map(nodes, inner))


def session(path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


NUMBERS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
           "tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(uint8)": np.uint8, "tensor(int8)": np.int8}


def feeds(model, sizes):
    generator = np.random.default_rng(7)
    values = {}
    for port in model.get_inputs():
        shape = [size if isinstance(size, int) else sizes.setdefault(size, 2 + len(sizes)) for size in port.shape]
        kind = NUMBERS[port.type]
        is_float = np.issubdtype(kind, np.floating)
        values[port.name] = (generator.normal(size=shape) if is_float else generator.integers(0, 2, size=shape)).astype(kind)
    return values


def difference(expected, found):
    """The largest distance in parts of the largest value; 0 for equal bytes."""
    if isinstance(expected, list):
        return max(map(difference, expected, found), default=0.0) if len(expected) == len(found) else np.inf
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return np.inf
    if expected.dtype == object or expected.tobytes() == found.tobytes():
        return 0.0 if np.array_equal(expected, found) or expected.tobytes() == found.tobytes() else np.inf
    expected, found = expected.astype(np.float64), found.astype(np.float64)
    if np.array_equal(expected, found, equal_nan=True):
        return 0.0
    return float(np.nanmax(np.abs(expected - found)) / max(np.nanmax(np.abs(expected)), 1e-30))


def distance(original, simple):
    """The difference of onnxruntime's outputs, or None where it does not run the original, or not alike each time."""
    try:
        before = session(original)
        values = feeds(before, {})
        expected = before.run(None, values)
        if max(map(difference, expected, before.run(None, values)), default=0.0) > 0:
            return None
    except Exception:
        return None
    return max(map(difference, expected, session(simple).run(None, values)), default=0.0)


def ports(model):
    return [port.name for port in model.graph.input], [port.name for port in model.graph.output]


def judge(original, simple, report):
    """What is wrong with a result of apr."""
    before, after = onnx.load(str(original), load_external_data=False), onnx.load(str(simple))
    try:
        onnx.checker.check_model(str(simple), full_check=True)
    except Exception as error:
        try:
            onnx.checker.check_model(str(original), full_check=True)
            yield f"checker: {str(error)[:200]}"
        except Exception:
            pass
    stored = {tensor.name for tensor in before.graph.initializer}
    inputs = [name for name in ports(before)[0] if name not in stored or name in ports(after)[0]]
    if (inputs, ports(before)[1]) != ports(after):
        yield "other inputs or outputs"
    props = lambda model: {prop.key: prop.value for prop in model.metadata_props}
    if props(before).items() - props(after).items():
        yield "lost metadata_props"
    counted = sum(report["after"].values())
    if counted != nodes(after.graph):
        yield f"{nodes(after.graph)} nodes, and {counted} in the report"
    apart = distance(original, simple)
    if apart is not None:
        compared = report["compared"]
        if apart > (0 if compared and compared["identical"] else TOLERANCE):
            yield f"outputs differ by {apart:.1e}"


def peer(name, original, output):
    """Nodes and seconds of another simplifier; its own failure is a text."""
    start = time.monotonic()
    run = subprocess.run([sys.executable, "-c", PEERS[name], str(original), str(output)], capture_output=True, timeout=600)
    seconds = time.monotonic() - start
    if run.returncode or not output.exists():
        return "fails"
    try:
        apart = distance(original, output)
        wrong = "" if apart is None or apart <= 1e-4 else f", differs by {apart:.0e}"
    except Exception:
        wrong = ", does not run"
    return f"{nodes(onnx.load(str(output)).graph)}{wrong}, {seconds:.1f} s"


def simplify(apr, original, folder):
    """A row of the table, and what is wrong."""
    simple = folder / "simple.onnx"
    simple.unlink(missing_ok=True)
    start = time.monotonic()
    command = [apr, "convert", str(original), "-o", str(simple), "--simplify", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    seconds = time.monotonic() - start
    if run.returncode:
        reason = (run.stderr.strip().splitlines() or ["?"])[0][:160]
        expected = "can't be compared" in reason or run.returncode == 3
        return f"rejected: {reason}", [] if expected else [reason]
    report = json.loads(run.stdout)["simplified"][0]
    wrong = list(judge(original, simple, report))
    return f"{nodes(onnx.load(str(simple)).graph)}, {seconds:.1f} s", wrong


def main():
    apr, *places = [word for word in sys.argv[1:] if word != "--peers"]
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print("| model | nodes | apr | onnxsim | onnxslim |\n|---|---|---|---|---|")
        given = [path for place in map(Path, places) for path in ([place] if place.is_file() else sorted(place.rglob("*.onnx")))]
        exported = folder / "exported"
        exported.mkdir()
        for original in given or export(exported):
            try:
                before = nodes(onnx.load(str(original), load_external_data=False).graph)
            except Exception:
                continue
            row, wrong = simplify(apr, original, folder)
            peers = []
            for name in PEERS if not given or "--peers" in sys.argv else []:
                output = folder / f"{name}.onnx"
                output.unlink(missing_ok=True)
                peers.append(peer(name, original, output))
            print(f"| {original.stem} | {before} | {row} | {' | '.join(peers)} |", *wrong, flush=True)
            failures += bool(wrong)
    sys.exit(1 if failures else 0)


main()
