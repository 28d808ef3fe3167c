"""Opening ONNX models beside `onnx.load`, and understanding a graph of many nodes."""

import os
import subprocess

LOAD = "import onnx, sys; onnx.load(sys.argv[1])"


def python_with_onnx(candidates):
    """The first Python that has onnx."""
    for python in candidates:
        if python and subprocess.run([python, "-c", "import onnx"], capture_output=True).returncode == 0:
            return python
    return None


def bench(harness, apr, source, folder, runs, rows, candidates=()):
    """`source` is a Hugging Face folder of f32 weights below 2 GB; it is exported to `folder`."""
    python = python_with_onnx([os.environ.get("APR_GRAPH_PYTHON"), *candidates])
    if python is None:
        print("no Python with onnx (APR_GRAPH_PYTHON): opening ONNX files is not compared")
    for what, placement in (("inline", "never"), ("external", "always")):
        path = folder / f"{what}.onnx"
        subprocess.run([str(apr), "export", str(source), "-o", str(path), "--external-data", placement, "-q"], check=True)
        size = sum(file.stat().st_size for file in folder.glob(f"{what}.onnx*"))
        ours = lambda path=path: harness.run(apr, "tensors", path, "-q")
        label = f"`tensors` of ONNX, {size / harness.GB:.1f} GB, {what} data"
        if python is None:
            (alone,) = harness.alternate(3 * runs, ours)
            rows.append((label, f"{1000 * harness.median(alone, 'wall'):.1f} ms",
                         f"peak {harness.median(alone, 'peak'):.1f} MiB"))
        else:
            peer, opened = harness.alternate(runs, lambda path=path: harness.run(python, "-c", LOAD, path), ours)
            lighter = harness.median(peer, "peak") / harness.median(opened, "peak")
            rows.append((f"{label}, against `onnx.load`",
                         f"{harness.ratio(peer, opened):.0f} times as fast, 1/{lighter:.0f} of its memory",
                         f"{1000 * harness.median(opened, 'wall'):.1f} ms, {harness.median(opened, 'peak'):.1f} MiB against "
                         f"{1000 * harness.median(peer, 'wall'):.0f} ms, {harness.median(peer, 'peak'):.0f} MiB"))
        for file in folder.glob(f"{what}.onnx*"):
            file.unlink()


def bench_graph(large_graph, rows):
    """`large_graph` is the example of apr-graph, which prints what each step took."""
    printed = subprocess.run([str(large_graph), "2000"], capture_output=True, text=True, check=True).stdout
    lines = printed.strip().splitlines()
    rows.append((f"a graph of {lines[0]}, every layer by itself: types, folding, checks, costs",
                 lines[-1].removeprefix("together: "), "; ".join(lines[1:-1])))
