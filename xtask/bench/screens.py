"""How soon `apr tui` shows 100 GB, and how often it draws while a tensor is read.

The terminal is a pseudo-terminal whose other end is read here. A burst of output is a picture: one
that changes nothing writes nothing, so there are at least as many pictures as bursts.
"""

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import statistics
import struct
import tempfile
import termios
import time

COLUMNS, ROWS = 100, 30
# Output that comes this long after other output belongs to another picture.
PAUSE = 0.004
PATIENCE = 60.0


def sparse(path, tensors, elements):
    """A safetensors file of zeros that takes no room on the disk."""
    size = 4 * elements
    header = {
        f"layers.{at}.weight": {
            "dtype": "F32",
            "shape": [elements],
            "data_offsets": [at * size, (at + 1) * size],
        }
        for at in range(tensors)
    }
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + tensors * size)


class Screen:
    """A program on a terminal."""

    def __init__(self, command):
        self.begun = time.monotonic()
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.environ["TERM"] = "xterm-256color"
            os.execv(command[0], command)

    def read(self, patience):
        """Output that is there within so many seconds; nothing where there is none."""
        if not select.select([self.fd], [], [], patience)[0]:
            return b""
        piece = os.read(self.fd, 1 << 16)
        self.seen += piece
        return piece

    def wait(self, text):
        """Seconds since the start until a text was written."""
        while text not in self.seen:
            if not self.read(PATIENCE):
                raise SystemExit(f"{text!r} does not come: {self.seen[-2000:]!r}")
        return time.monotonic() - self.begun

    def bursts(self, text):
        """Moments at which output began, until a text is written."""
        self.seen = b""
        moments = []
        while text not in self.seen:
            if self.read(PAUSE):
                now = time.monotonic()
                if not moments or now - last > PAUSE:
                    moments.append(now)
                last = now
        return moments

    def keys(self, keys):
        os.write(self.fd, keys)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def first_screen(apr, folder, runs):
    path = os.path.join(folder, "huge.safetensors")
    sparse(path, 1000, 25_000_000)
    times = []
    for _ in range(runs + 1):
        screen = Screen([apr, "tui", path])
        times.append(1000 * screen.wait(b"as stored"))
        screen.end()
    # The first run warms up.
    times = times[1:]
    print(
        f"| first screen of a sparse 100 GB file, 1,000 tensors | {statistics.median(times):.1f} ms "
        f"| {min(times):.1f} to {max(times):.1f} ms from the start of the process |"
    )


def pictures(apr, folder, gigabytes):
    path = os.path.join(folder, "long.safetensors")
    sparse(path, 1, gigabytes * 250_000_000)
    screen = Screen([apr, "tui", path])
    screen.wait(b"as stored")
    screen.keys(b"h")
    moments = screen.bursts(b"Mean:")
    screen.end()
    gaps = [1000 * (after - before) for before, after in zip(moments, moments[1:])]
    seconds = moments[-1] - moments[0]
    print(
        f"| pictures while a tensor of {gigabytes} GB is read | {len(gaps) / seconds:.1f} a second "
        f"| {len(moments)} in {seconds:.1f} s; {statistics.median(gaps):.0f} ms from one to the "
        f"next, {max(gaps):.0f} ms at most |"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apr", required=True)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--gb", type=int, default=8)
    arguments = parser.parse_args()
    print("| screen | figure | detail |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        first_screen(arguments.apr, folder, arguments.runs)
        pictures(arguments.apr, folder, arguments.gb)


if __name__ == "__main__":
    main()
