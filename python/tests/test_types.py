"""The annotations of the package hold."""

import importlib.util
import subprocess
import sys
import unittest
from pathlib import Path


class Types(unittest.TestCase):
    def test_mypy_finds_nothing(self):
        self.assertIsNotNone(importlib.util.find_spec("mypy"), "mypy is not installed")
        package = Path(__file__).resolve().parents[1] / "apr"
        words = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports"]
        words += ["--cache-dir", "/dev/null", str(package)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
