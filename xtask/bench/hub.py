"""Models on a hub: apr beside Hugging Face's Python client and curl, on the test hub of this machine.

    python3 xtask/bench/hub.py --apr target/dist/apr --hub target/dist/examples/hub --python VENV/bin/python [--mb 500]

The hub answers after a stated delay, cuts one answer of a file in a hundred, and limits the rate of all connections together,
each where that is said. Without a limit, hub and client share the processor, and that is what limits them: 500 MB then take
half a second. `hf download` is the client's own command, without Xet, which the test hub does not speak. curl fetches the
weights by one connection, and asks nothing else: it stands for the rate of the line. Each run has a cache of its own.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
from harness import median

REPO = "bench/model"
# Megabytes a second, where the rate is limited.
RATE = 200
# Milliseconds before each answer, every how many answers one is cut (0: none), and whether the rate is limited.
DOWNLOADS = [(0, 0, False), (20, 0, False), (100, 0, False), (20, 100, False), (0, 0, True), (20, 0, True), (100, 0, True)]
IMPORTS = [(0, 0, False), (20, 0, False), (0, 0, True), (20, 0, True), (100, 0, True)]


class Hub:
    """The test hub, told on its standard input how bad the line is."""

    def __init__(self, program, folder):
        command = [program, f"{REPO}={folder}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.url = self.process.stdout.readline().strip()

    def set(self, delay, cut=0, rate=0):
        """A delay in milliseconds, how often an answer is cut, and megabytes a second."""
        self.process.stdin.write(f"heal\ndelay {delay}\ncut {cut}\nrate {rate * 1_000_000}\n")

    def count(self):
        """Requests and bytes since it was asked last."""
        self.process.stdin.write("count\n")
        requests, sent, _ = (int(word) for word in self.process.stdout.readline().split())
        return requests, sent

    def close(self):
        self.process.kill()
        self.process.wait()


def make_folder(folder, size):
    """A LLaMA of bf16 weights in `folder`, made by a process of its own, whose memory is not counted."""
    bench = Path(__file__).with_name("bench.py")
    folder.mkdir()
    subprocess.run([sys.executable, bench, "--make-folder", folder, str(size)], check=True)


def environment(hub, home):
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1", "APR_CACHE": str(home / "apr")}


def in_a_home_of_its_own(folder, hub, command):
    """Runs a command whose caches are empty; they are removed afterwards."""
    home = Path(tempfile.mkdtemp(dir=folder))
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment(hub, home))
    try:
        return harness.run(*[word.replace("HOME", str(home)) if isinstance(word, str) else word for word in command])
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(home)


def sides(apr, client, hub, folder):
    """The three programs, each as a function that fetches the model once."""
    file = f"{hub.url}/{REPO}/resolve/main/model.safetensors"
    fetch = {
        "apr": [apr, "download", f"hf://{REPO}", "-q"],
        "hf": [client, "download", REPO, "--quiet"],
        "curl": ["curl", "--silent", "--fail", "--location", "--retry", "9", "--retry-all-errors", "-C", "-",
                 "-o", "HOME/file", file],
    }
    return [lambda command=command: in_a_home_of_its_own(folder, hub, command) for command in fetch.values()]


def named(delay, cut, rate):
    words = [f"{delay} ms of delay" if delay else "no delay"]
    words += ["1 % of the connections cut"] * bool(cut) + [f"{rate} MB/s"] * bool(rate)
    return ", ".join(words)


def bench_downloads(apr, client, hub, folder, runs, rate, rows):
    for delay, cut, is_limited in DOWNLOADS:
        line = (delay, cut, rate if is_limited else 0)
        hub.set(*line)
        ours, theirs, curl = harness.alternate(runs, *sides(apr, client, hub, folder))
        of = lambda peer: statistics.median(b.wall / a.wall for a, b in zip(ours, peer))
        rows.append((f"download, {named(*line)}",
                     f"{of(theirs):.2f} times the Python client's speed, {of(curl):.2f} times curl's",
                     f"{harness.against(ours, theirs)}; curl {median(curl, 'wall'):.2f} s"))


def bench_import(apr, hub, source, folder, runs, rate, rows):
    """An import from the hub beside its two halves: the download, and the import of what is here."""
    for delay, cut, is_limited in IMPORTS:
        line = (delay, cut, rate if is_limited else 0)
        hub.set(*line)
        output = "HOME/model.apr"
        commands = [
            [apr, "import", f"hf://{REPO}", "-o", output, "-q"],
            [apr, "download", f"hf://{REPO}", "-q"],
            [apr, "import", source, "-o", output, "-q"],
        ]
        both, download, local = harness.alternate(
            runs, *[lambda command=command: in_a_home_of_its_own(folder, hub, command) for command in commands])
        slower = statistics.median(a.wall / max(b.wall, c.wall) for a, b, c in zip(both, download, local))
        rows.append((f"import from the hub, {named(*line)}", f"{slower:.2f} of the slower half's time",
                     f"{median(both, 'wall'):.2f} s; download alone {median(download, 'wall'):.2f} s, import of a folder "
                     f"{median(local, 'wall'):.2f} s; CPU {median(both, 'cpu'):.2f} s; peak {median(both, 'peak'):.0f} MiB"))


def bench_looking(apr, hub, folder, runs, rows):
    hub.set(20)
    hub.count()
    looked = [in_a_home_of_its_own(folder, hub, [apr, "inspect", f"hf://{REPO}", "-q"]) for _ in range(runs)]
    requests, sent = hub.count()
    rows.append(("`inspect hf://`, 20 ms of delay", f"{1000 * median(looked, 'wall'):.0f} ms",
                 f"{requests // runs} requests, {sent // runs / 1000:.0f} kB"))


def bench(apr, program, python, folder, size, runs, rate, rows):
    source = folder / "on-the-hub"
    make_folder(source, size)
    client = python.with_name("hf")
    hub = Hub(program, source)
    try:
        bench_looking(apr, hub, folder, runs, rows)
        bench_downloads(apr, client, hub, folder, runs, rate, rows)
        bench_import(apr, hub, source, folder, runs, rate, rows)
    finally:
        hub.close()
        shutil.rmtree(source)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apr", required=True, type=Path)
    parser.add_argument("--hub", required=True, type=Path, help="the example `hub` of apr-testkit")
    parser.add_argument("--python", required=True, type=Path, help="of an environment with huggingface_hub")
    parser.add_argument("--dir", default="/dev/shm", type=Path)
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rate", type=int, default=RATE, help="megabytes a second, where the rate is limited")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        bench(args.apr, args.hub, args.python, Path(folder), args.mb * 1_000_000, args.runs, args.rate, rows)
    print("| job | result | detail |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
