"""Distillation beside torch: the same training, by `xtask/interop/distill.py`."""

import json
import subprocess

from harness import HERE
from infer import python_of_graphs

STEPS = 1000


def bench(apr, rows):
    script = HERE.parent / "interop" / "distill.py"
    model = HERE.parent.parent / "fixtures" / "tiny-llama"
    command = [python_of_graphs(), script, apr, model, str(STEPS), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    (own, peer), (memory, peer_memory), (loss, peer_loss) = found["seconds"], found["memory"], found["loss"]
    rows.append((
        f"distil tiny-llama to one layer, {STEPS} steps of 256 sums, two threads",
        f"{peer / own:.2f} x torch",
        f"{own:.1f} s against {peer:.1f} s; peak {memory:.0f} MiB against {peer_memory:.0f} MiB; "
        f"held-out loss {loss:.5f} against {peer_loss:.5f}; {100 * found['right']:.1f} % of held-out sums right",
    ))
