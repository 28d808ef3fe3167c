"""Tensors of torch, beside `safetensors.torch` and `torch.load`, where torch is installed."""

import importlib.util
import unittest

import apr
import apr.torch

import places

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    from apr.safetensors import safe_open
    from apr.safetensors import torch as ours


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Torch(places.Folder):
    def setUp(self):
        import torch

        super().setUp()
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

    def test_backends_give_views_or_memory_of_their_own(self):
        path = self.folder / "a.safetensors"
        ours.save_file(self.state, path)
        for backend in ("mmap", "pread"):
            self.same(ours.load_file(path, backend=backend))
        with safe_open(path, framework="pt", backend="pread") as file:
            kept = file.get_tensors()
            part = file.get_slice("large")[10:20, ::7]
        # In place, as a program does that knows of no readers.
        with path.open("r+b") as file:
            file.truncate(1000)
        self.same(kept)
        self.assertTrue(part.is_contiguous())
        self.assertEqual(part.tolist(), self.state["large"][10:20, ::7].tolist())

    def test_slices_of_views_are_those_of_torch(self):
        path = self.folder / "a.safetensors"
        ours.save_file(self.state, path)
        with safe_open(path, framework="pt") as file:
            part = file.get_slice("large")
            for index in (slice(1000), (slice(None), -1), [3, 5], [], (..., slice(2, 9, 3)), 7):
                self.assertEqual(part[index].tolist(), self.state["large"][index].tolist())
            for name in ("none", "flags"):
                for index in (slice(None), ..., None, []):
                    found, expected = file.get_slice(name)[index], self.state[name][index]
                    self.assertEqual(found.dtype, expected.dtype)
                    self.assertEqual(found.shape, expected.shape)
        with safe_open(path, framework="pt", backend="pread") as file:
            with self.assertRaisesRegex(apr.Error, "index 999 out of bounds"):
                file.get_slice("large")[:1000]
            self.assertEqual(file.get_slice("one")[()].item(), 7)
            self.assertEqual(file.get_slice("half")[1, 2], self.state["half"][1, 2])

    def test_two_values_of_4_bits_are_an_element(self):
        import torch

        if not hasattr(torch, "float4_e2m1fn_x2"):
            self.skipTest("this torch has no float4_e2m1fn_x2")
        bits = torch.arange(12, dtype=torch.uint8).reshape(2, 6)
        path = self.folder / "a.safetensors"
        ours.save_file({"a": bits.view(torch.float4_e2m1fn_x2)}, path)
        self.assertEqual(apr.open(path)["a"].shape, (2, 12))
        for backend in ("mmap", "pread"):
            with safe_open(path, framework="pt", backend=backend) as file:
                self.assertEqual(file.get_tensor("a").view(torch.uint8).tolist(), bits.tolist())
                # torch counts elements, the package values.
                index = (slice(1, 2), slice(2, 4) if backend == "pread" else slice(1, 2))
                part = file.get_slice("a")[index]
                self.assertEqual(part.view(torch.uint8).tolist(), [[7]])
        with safe_open(path, framework="pt", backend="pread") as file:
            with self.assertRaisesRegex(apr.Error, "two elements of f4_e2m1 are a byte"):
                file.get_slice("a")[:, 1:2]

    def test_memory_that_tensors_share_is_written_once(self):
        import torch

        whole = torch.arange(6.0)
        with self.assertRaisesRegex(RuntimeError, "share memory"):
            ours.save_file({"whole": whole, "part": whole[2:]}, self.folder / "a.safetensors")
        ours.save_file({"first": whole[:2], "rest": whole[2:]}, self.folder / "a.safetensors")
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 3), "b": torch.nn.Linear(2, 3)})
        model["b"].weight = model["a"].weight
        path = self.folder / "model.safetensors"
        ours.save_model(model, path, {"b.weight": "of a"})
        with safe_open(path, framework="pt") as file:
            self.assertEqual(file.keys(), ["a.bias", "a.weight", "b.bias"])
            self.assertEqual(file.metadata(), {"b.weight": "of a"})
        for backend in ("mmap", "pread"):
            self.assertEqual(ours.load_model(model, path, backend=backend), ([], []))
        other = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 3), "c": torch.nn.Linear(2, 3)})
        found = ours.load_model(other, path, strict=False)
        self.assertEqual(found, (["c.bias", "c.weight"], ["b.bias"]))


if __name__ == "__main__":
    unittest.main()
