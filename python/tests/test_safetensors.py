"""Programs for the package `safetensors` do the same with `apr.safetensors`."""

import importlib
import io
import tempfile
import unittest
from pathlib import Path

import ml_dtypes
import numpy as np

import apr
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

    def test_slices_are_taken_and_refused_alike(self):
        arrays = {
            "matrix": np.arange(50, dtype=np.float32).reshape(10, 5),
            "deep": np.arange(60, dtype=np.int16).reshape(3, 4, 5),
            "none": np.zeros((0, 4)),
            "one": np.array(3.0),
        }
        parts = [
            0, 3, -1, -5, -6, 9, 10, True, np.int64(2), None, 2.0, 2**40, "a", ..., [], [0],
            slice(None), slice(2), slice(2, None), slice(1, 4, 2), slice(None, None, 3),
            slice(None, None, -1), slice(0, 4, 0), slice(-3, None), slice(20), slice(10, 10),
            slice(1.5, None),
        ]  # fmt: skip
        indices = [*parts, (), (..., ...), *((first, last) for first in parts for last in parts)]
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/model.safetensors"
            importlib.import_module("safetensors.numpy").save_file(arrays, path)
            for backend in ("mmap", "pread"):
                theirs, ours = (
                    importlib.import_module(package).safe_open(path, "np", backend=backend)
                    for package in PACKAGES
                )
                for name in arrays:
                    for index in indices:
                        with self.subTest(name=name, index=index, backend=backend):
                            expected, found = (
                                taken(file.get_slice(name), index) for file in (theirs, ours)
                            )
                            self.same(found, expected)

    def test_specs_are_written_as_the_package_writes_them(self):
        """`float4_e2m1fn_x2` has two values in an element."""
        names = (
            "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 "
            "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
            "float4_e2m1fn_x2 complex64"
        ).split()
        memory = np.ones(64, np.uint8)

        def program(package, _, path):
            specs = {}
            for at, name in enumerate(names):
                for rank in range(3):
                    width = int("".join(filter(str.isdigit, name.split("_")[0])) or 8) // 8 or 1
                    specs[f"{at % 7}.{name}.{rank}"] = package.TensorSpec(
                        dtype=name, shape=[2] * rank or [1], data_ptr=memory.ctypes.data,
                        data_len=width * 2**rank,
                    )  # fmt: skip
            package.serialize_file(specs, path, {"step": "7"})
            spec = specs["4.float4_e2m1fn_x2.2"]
            return [
                path.read_bytes(), package.serialize(specs), package.serialize(specs, {"a": "b"}),
                repr(spec), spec.dtype, spec.shape, spec.data_ptr, spec.data_len,
            ]  # fmt: skip

        with tempfile.TemporaryDirectory() as folder:
            self.assertNotEqual(self.alike(program, Path(folder) / "a.safetensors"), "raised")

    def test_specs_that_contradict_themselves_are_refused(self):
        def short(package, _):
            memory = np.ones(8, np.uint8)
            spec = package.TensorSpec(
                dtype="float32", shape=[3], data_ptr=memory.ctypes.data, data_len=8
            )
            package.serialize({"a": spec})

        def unknown(package, _):
            package.TensorSpec(dtype="nonsense", shape=[1], data_ptr=0, data_len=0)

        for program in (short, unknown):
            self.assertEqual(self.alike(program), "raised")
        for name in PACKAGES:
            package = importlib.import_module(name)
            with self.assertRaises(TypeError):
                package.serialize({"a": {"dtype": "float32", "shape": [0], "data": b""}})
            with self.assertRaises(OverflowError):
                package.TensorSpec(dtype="float32", shape=[-1], data_ptr=0, data_len=0)

    def test_frameworks_devices_and_backends_are_called_alike(self):
        def message(package, **options):
            try:
                package.safe_open(places.WEIGHTS, **options)
            except package.SafetensorError as error:
                return str(error)
            return None

        asked = [
            {"framework": "numpy", "backend": "zz"},
            {"framework": "numpy"},
            {"framework": "x"},
        ]
        for device in ("cpu", "cuda", "cuda:1", "foo", "mps:1", -1, 0, None):
            asked.append({"framework": "np", "device": device})
        for options in asked:
            theirs, ours = (message(importlib.import_module(name), **options) for name in PACKAGES)
            self.assertEqual(ours, theirs, options)

    def test_what_is_read_is_memory_of_its_own(self):
        arrays = importlib.import_module("apr.safetensors.numpy")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            arrays.save_file({"a": np.arange(6.0)}, path)
            before = path.read_bytes()
            for backend in ("mmap", "pread"):
                arrays.load_file(path, backend=backend)["a"][:] = 0
                self.assertEqual(path.read_bytes(), before)

    def test_file_objects_are_opened(self):
        opened = importlib.import_module("apr.safetensors")._safe_open_handle
        with open(places.WEIGHTS) as file, opened(file, "np") as model:
            names = model.keys()
        with opened(io.BytesIO(places.WEIGHTS.read_bytes()), framework="np") as model:
            self.assertEqual(model.keys(), names)
            self.assertEqual(model.get_slice(names[0])[:2, 0].shape, (2,))

    def test_byte_orders_and_strides_of_arrays_do_not_matter(self):
        arrays = importlib.import_module("apr.safetensors.numpy")
        numbers = np.arange(12, dtype=np.int32).reshape(3, 4)
        self.assertEqual(arrays.save({"a": numbers.astype(">i4")}), arrays.save({"a": numbers}))
        self.assertEqual(
            arrays.save({"a": np.asfortranarray(numbers)}), arrays.save({"a": numbers})
        )
        self.assertEqual(
            arrays.save({"a": numbers[:, ::2]}), arrays.save({"a": numbers[:, ::2] + 0})
        )

    def test_small_floats_come_back(self):
        """Elements of ml_dtypes are bytes; two of `float4_e2m1fn` lie in one of a file."""
        arrays = importlib.import_module("apr.safetensors.numpy")
        bits = np.arange(24, dtype=np.uint8).reshape(4, 6)
        made = {"f4": (bits % 16).view(ml_dtypes.float4_e2m1fn)}
        for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"):
            made[name] = bits.view(getattr(ml_dtypes, f"float8_{name}"))
        content = arrays.save(made)
        loaded = arrays.load(content)
        for name, array in made.items():
            self.assertEqual((loaded[name].dtype, loaded[name].shape), (array.dtype, (4, 6)))
            np.testing.assert_array_equal(loaded[name].view(np.uint8), array.view(np.uint8))
        stored = dict(importlib.import_module("apr.safetensors").deserialize(content))["f4"]
        self.assertEqual((stored["dtype"], stored["shape"]), ("F4", [4, 6]))
        self.assertEqual(bytes(stored["data"][:3]), b"\x10\x32\x54")
        del made["f4"]
        self.assertEqual(arrays.save(made), importlib.import_module("safetensors.numpy").save(made))

    def test_parts_of_elements_of_4_bits(self):
        arrays = importlib.import_module("apr.safetensors.numpy")
        values = np.arange(12, dtype=np.uint8).reshape(2, 6).view(ml_dtypes.float4_e2m1fn)
        tensor = apr.open(io.BytesIO(arrays.save({"a": values})))["a"]
        np.testing.assert_array_equal(tensor.dequantize(), values.astype(np.float32))
        np.testing.assert_array_equal(tensor[1, 1:4].view(np.uint8), values[1, 1:4].view(np.uint8))


def taken(part, index):
    """A part of a tensor, or what is said against it."""
    try:
        array = part[index]
    except Exception as error:
        return str(error)
    return (array, array.flags.c_contiguous)


if __name__ == "__main__":
    unittest.main()
