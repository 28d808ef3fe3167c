"""Running programs in turn, and what the operating system accounts for them."""

import os
import statistics
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).parent
GB = 1_000_000_000


class Run:
    """Wall seconds, CPU seconds and peak memory in MiB of a process."""

    def __init__(self, wall, cpu, peak):
        self.wall, self.cpu, self.peak = wall, cpu, peak


def run(*command, expect=0):
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expect:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {process.returncode}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median(runs, field):
    return statistics.median(getattr(run, field) for run in runs)


def alternate(count, *sides):
    """Runs the sides in turn, `count` times after a warm-up; each side is a function that returns a Run."""
    for side in sides:
        side()
    results = [[] for _ in sides]
    for _ in range(count):
        for side, result in zip(sides, results):
            result.append(side())
    return results


def ratio(peer, ours):
    """How many times faster ours is, pair by pair."""
    return statistics.median(a.wall / b.wall for a, b in zip(peer, ours))


def against(ours, peer):
    """Wall, CPU and memory of both sides."""
    return (f"{median(ours, 'wall'):.2f} s against {median(peer, 'wall'):.2f} s; "
            f"CPU {median(ours, 'cpu'):.2f} s against {median(peer, 'cpu'):.2f} s; "
            f"peak {median(ours, 'peak'):.0f} MiB against {median(peer, 'peak'):.0f} MiB")
