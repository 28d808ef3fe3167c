"""The parts of a plan as tasks of Ray, and then the finish.

    python ray_parts.py PLAN [CPUS_A_PART]

Every node needs apr, and the folder of the plan at the same path. A task that is lost with its node is run again: a part that is
done by then is skipped.
"""

import json
import os
import subprocess
import sys

import ray

APR = os.environ.get("APR", "apr")


def run_part(plan: str, part: int, threads: int) -> dict:
    """Does one part, and returns its report."""
    command = [APR, "--json", "--threads", str(threads), "run-part", plan, str(part)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"part {part}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main() -> int:
    plan = os.path.abspath(sys.argv[1])
    cpus = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with open(plan) as file:
        parts = len(json.load(file)["parts"])
    ray.init()
    task = ray.remote(num_cpus=cpus, max_retries=3)(run_part)
    waiting = [task.remote(plan, part, cpus) for part in range(parts)]
    while waiting:
        done, waiting = ray.wait(waiting)
        report = ray.get(done[0])
        print(f"part {report['part']} of {report['of']}", "skipped" if report["skipped"] else "done", flush=True)
    ray.shutdown()
    return subprocess.run([APR, "finish", plan]).returncode


if __name__ == "__main__":
    sys.exit(main())
