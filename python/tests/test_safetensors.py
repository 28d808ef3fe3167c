"""Programs for the package `safetensors` do the same with `apr.safetensors`."""

import importlib
import tempfile
import unittest
from pathlib import Path

import ml_dtypes
import numpy as np

import places

PACKAGES = ["safetensors", "apr.safetensors"]


def answers(package, name, *arguments):
    """What a program gives with a package: its result, or that it raised."""
    root = importlib.import_module(package)
    arrays = importlib.import_module(f"{package}.numpy")
    try:
        return name(root, arrays, *arguments)
    except root.SafetensorError:
        return "raised"


class Alike(unittest.TestCase):
    def alike(self, program, *arguments):
        theirs, ours = (answers(package, program, *arguments) for package in PACKAGES)
        self.same(ours, theirs)
        return ours

    def same(self, ours, theirs):
        if isinstance(theirs, dict):
            self.assertEqual(set(ours), set(theirs))
            for key, value in theirs.items():
                self.same(ours[key], value)
        elif isinstance(theirs, (list, tuple)):
            self.assertEqual(len(ours), len(theirs))
            for mine, value in zip(ours, theirs):
                self.same(mine, value)
        elif isinstance(theirs, np.ndarray):
            self.assertEqual((ours.dtype, ours.shape), (theirs.dtype, theirs.shape))
            np.testing.assert_array_equal(ours, theirs)
            self.assertEqual(ours.flags.writeable, theirs.flags.writeable)
        else:
            self.assertEqual(ours, theirs)

    def test_files_are_loaded(self):
        self.alike(lambda _, arrays: arrays.load_file(str(places.WEIGHTS)))
        numbers = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        content = importlib.import_module("safetensors.numpy").save({"a": numbers, "b": numbers[0]})
        self.alike(lambda _, arrays: arrays.load(content))

    def test_files_are_opened_lazily(self):
        def program(package, _):
            with package.safe_open(places.WEIGHTS, framework="np") as file:
                part = file.get_slice("model.embed_tokens.weight")
                return [
                    file.keys(), file.offset_keys(), file.metadata(),
                    file.get_tensor("model.norm.weight"), part.get_shape(), part.get_dtype(),
                    part[:5, 3:7], part[10:20], part[:, 1:2], part[4, :], part[:],
                ]  # fmt: skip

        self.alike(program)

    def test_absent_names_and_files(self):
        def absent(package, _):
            with package.safe_open(places.WEIGHTS, framework="np") as file:
                file.get_tensor("absent")

        self.assertEqual(self.alike(absent), "raised")
        for package in PACKAGES:
            with self.assertRaises(FileNotFoundError):
                importlib.import_module(package).safe_open("absent.safetensors", framework="np")

        def cut(_, arrays):
            arrays.load(places.WEIGHTS.read_bytes()[:1000])

        self.assertEqual(self.alike(cut), "raised")

        def closed(package, _):
            with package.safe_open(places.WEIGHTS, framework="np") as file:
                pass
            file.keys()

        self.assertEqual(self.alike(closed), "raised")

    def test_what_is_written_is_the_same_file(self):
        numbers = np.random.default_rng(1).normal(size=(4, 6))
        dtypes = "f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 ? c8".split()
        arrays = {f"{at:x}": np.abs(numbers).astype(dtype) for at, dtype in enumerate(dtypes)}
        arrays["bfloat16"] = numbers.astype(ml_dtypes.bfloat16)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"

            def program(_, package, metadata):
                package.save_file(arrays, path, metadata)
                return [path.read_bytes(), package.save(arrays, metadata)]

            for metadata in (None, {"format": "pt"}):
                self.alike(program, metadata)

    def test_parts_of_files(self):
        theirs, ours = (importlib.import_module(package) for package in PACKAGES)
        content = importlib.import_module("safetensors.numpy").save({"x": np.arange(4)})
        (name, expected), (mine, found) = (
            theirs.deserialize(content)[0],
            ours.deserialize(content)[0],
        )
        self.assertEqual(mine, name)
        self.assertEqual(found["shape"], expected["shape"])
        self.assertEqual(found["dtype"], expected["dtype"])
        self.assertEqual(bytes(found["data"]), bytes(expected["data"]))
