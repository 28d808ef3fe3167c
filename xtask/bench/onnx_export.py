"""Export to ONNX beside `cp`, and beside torch.onnx.export where a Python with torch and transformers is named."""

import os
import subprocess

TORCH_EXPORT = """
import sys, torch, transformers
torch.set_num_threads(2)
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
model.config.use_cache = False
tokens = torch.ones((1, 4), dtype=torch.int64)
torch.onnx.export(model, (tokens,), sys.argv[2], input_names=["input_ids"], dynamo=True)
"""


def bench(harness, copy, apr, source, dtype, folder, runs, rows):
    """`source` is a Hugging Face folder of weights of this dtype; what is exported goes to `folder`."""
    target, copied = folder / "out.onnx", folder / "c"

    def clear():
        for path in [target, folder / "out.onnx_data", folder / "out.onnx.data"]:
            path.unlink(missing_ok=True)

    def ours():
        result = harness.run(apr, "export", source, "-o", target, "-q")
        clear()
        return result

    size = (source / "model.safetensors").stat().st_size
    peer, exported = harness.alternate(runs, lambda: copy(source / "model.safetensors", copied), ours)
    rows.append((f"`export --format onnx` of a {dtype.lower()} LLaMA folder, {size / harness.GB:.1f} GB",
                 f"{harness.ratio(peer, exported):.2f} of `cp`'s speed", harness.against(exported, peer)))
    if dtype == "F32":
        bench_torch(harness, source, folder, ours, clear, rows)


def bench_torch(harness, source, folder, ours, clear, rows):
    """`ours` exports the folder, `clear` takes away what was exported."""
    target, size = folder / "out.onnx", (source / "model.safetensors").stat().st_size
    python = os.environ.get("APR_GRAPH_PYTHON")
    check = "import onnx, onnxscript, torch, transformers"
    if not python or subprocess.run([python, "-c", check], capture_output=True).returncode != 0:
        print("no Python with torch, transformers and onnxscript (APR_GRAPH_PYTHON): torch.onnx.export is not measured")
        return

    def theirs():
        result = harness.run(python, "-c", TORCH_EXPORT, source, target)
        clear()
        return result

    exported, peer = harness.alternate(1, ours, theirs)
    rows.append((f"the same beside `torch.onnx.export`, {size / harness.GB:.1f} GB",
                 f"{harness.ratio(peer, exported):.0f} times as fast", harness.against(exported, peer)))
