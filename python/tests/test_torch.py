"""Tensors of torch, beside `safetensors.torch` and `torch.load`, where torch is installed."""

import importlib.util
import tempfile
import unittest
from pathlib import Path

import apr
import apr.torch
from apr.safetensors import torch as ours

HAS_TORCH = importlib.util.find_spec("torch") is not None


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Torch(unittest.TestCase):
    def setUp(self):
        import torch

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.state = {
            "large": torch.randn(600, 700),
            "half": torch.randn(3, 5).bfloat16(),
            "one": torch.tensor(7),
            "none": torch.empty(0, 4),
            "flags": torch.tensor([True, False, True]),
        }

    def same(self, found):
        import torch

        self.assertEqual(set(found), set(self.state))
        for name, tensor in self.state.items():
            self.assertEqual(found[name].dtype, tensor.dtype, name)
            self.assertTrue(torch.equal(found[name], tensor), name)

    def test_files_of_both_kinds_are_loaded(self):
        import safetensors.torch
        import torch

        safetensors.torch.save_file(self.state, self.folder / "a.safetensors")
        torch.save(self.state, self.folder / "a.pt")
        self.same(ours.load_file(self.folder / "a.safetensors"))
        for mapped in (False, True):
            self.same(apr.torch.load(self.folder / "a.pt", mmap=mapped))
        ours.save_file(self.state, self.folder / "b.safetensors")
        self.same(safetensors.torch.load_file(self.folder / "b.safetensors"))

    def test_what_is_written_to_a_tensor_stays_in_memory(self):
        path = self.folder / "a.safetensors"
        ours.save_file(self.state, path)
        before = path.read_bytes()
        ours.load_file(path)["large"].zero_()
        apr.open(path)["half"].torch().zero_()
        self.assertEqual(path.read_bytes(), before)
        self.same(ours.load_file(path))

    def test_a_file_may_be_saved_over_after_it_was_loaded(self):
        import torch

        path = self.folder / "a.pt"
        torch.save(self.state, path)
        state = apr.torch.load(path)
        # In place, as torch does it.
        path.write_bytes(b"")
        torch.save(state, path)
        self.same(apr.torch.load(path))


if __name__ == "__main__":
    unittest.main()
