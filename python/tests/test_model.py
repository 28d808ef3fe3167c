"""Models and their tensors, beside the packages that other people wrote for their formats."""

import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

import ml_dtypes
import numpy as np
import safetensors.numpy

import apr

import places


class Counting(io.BytesIO):
    """A file object that counts what is read."""

    def __init__(self, content):
        super().__init__(content)
        self.count = 0

    def read(self, size=-1):
        found = super().read(size)
        self.count += len(found)
        return found


class Reading(places.Folder):
    def test_tensors_equal_those_of_safetensors(self):
        expected = safetensors.numpy.load_file(places.WEIGHTS)
        for model in (apr.open(places.WEIGHTS), apr.open(places.TINY_LLAMA)):
            self.assertEqual(set(model), set(expected))
            for name, tensor in model.items():
                array = tensor.numpy()
                self.assertEqual(array.dtype, expected[name].dtype)
                np.testing.assert_array_equal(array, expected[name])
                np.testing.assert_array_equal(tensor.copy(), expected[name])
                np.testing.assert_array_equal(
                    tensor.dequantize(), expected[name].astype(np.float32)
                )

    def test_arrays_are_views_where_bytes_lie_flat(self):
        arrays = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.arange(5)}
        for extension in ("safetensors", "gguf", "apr", "pt"):
            path = self.folder / f"flat.{extension}"
            apr.save(path, arrays)
            model = apr.open(path)
            for name, array in arrays.items():
                view = model[name].numpy()
                self.assertFalse(view.flags.owndata or view.flags.writeable, extension)
                np.testing.assert_array_equal(view, array)
                with self.assertRaises(ValueError):
                    view[...] = 0
                model[name].copy()[...] = 0

    def test_a_file_that_takes_the_place_of_another_is_not_read(self):
        shape = (1024, 1024)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            apr.save(path, {"a": np.ones(shape, np.float32), "b": np.full(shape, 2, np.float32)})
            model = apr.open(path)
            self.assertEqual(model["a"].copy()[0, 0], 1)
            other = {"a": np.full(shape, 3, np.float32), "z": np.full(shape, 4, np.float32)}
            apr.save(path, other, replace=True)
            self.assertEqual(model["b"].copy()[-1, -1], 2)
            self.assertEqual(model["b"].numpy()[-1, -1], 2)
            self.assertEqual(apr.open(path)["z"].copy()[-1, -1], 4)

    def test_names_are_loaded_when_they_are_asked_for(self):
        self.assertLessEqual(set(apr.__all__), set(dir(apr)))
        for name in apr.__all__:
            self.assertIsNotNone(getattr(apr, name), name)
        self.assertEqual(apr.__version__, apr.command("version")["version"])
        with self.assertRaises(AttributeError):
            apr.opne

    def test_the_command_starts_without_numpy(self):
        script = "import sys, apr._command; sys.exit('numpy' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", script]).returncode, 0)

    def test_a_header_beyond_the_memory_is_refused_wherever_it_is_read(self):
        content = safetensors.numpy.save({str(at): np.ones(1, np.uint8) for at in range(10_000)})
        path = self.folder / "many.safetensors"
        path.write_bytes(content)
        out = self.folder / "many.apr"
        readers = (
            lambda most: apr.open(path, max_memory=most),
            lambda most: apr.open(io.BytesIO(content), max_memory=most),
            lambda most: apr.convert(path, out, replace=True, max_memory=most),
        )
        for read in readers:
            with self.assertRaisesRegex(apr.Error, "E008.*10000 tensors"):
                read(8 << 20)
            read(64 << 20)

    def test_compressed_and_sharded_models_read_alike(self):
        expected = safetensors.numpy.load_file(places.WEIGHTS)
        compressed = self.folder / "model.apr"
        apr.convert(places.WEIGHTS, compressed, compress="auto")
        self.assertEqual(apr.diff(compressed, places.WEIGHTS)["max_delta"], 0)
        self.assertLess(compressed.stat().st_size, places.WEIGHTS.stat().st_size)
        shards = self.folder / "shards"
        apr.convert(places.WEIGHTS, shards, format="safetensors", shard_size=100_000)
        self.assertGreater(len(list(shards.glob("*.safetensors"))), 1)
        for name, tensor in apr.open(shards).items():
            np.testing.assert_array_equal(tensor.numpy(), expected[name])
        self.assertFalse(apr.open(shards)["lm_head.weight"].numpy().flags.writeable)

    def test_slices_are_those_of_numpy_and_read_no_more(self):
        array = np.arange(40 * 6 * 5, dtype=np.int32).reshape(40, 6, 5)
        content = safetensors.numpy.save({"a": array})
        indices = [
            3, -1, np.int64(7), slice(2, 5), slice(None, None, -1), slice(30, 10, -4),
            slice(5, 5), (slice(1, 3), 2), (4, slice(1, 3), 0), (slice(None), slice(2, 4)),
            Ellipsis, (Ellipsis, 1), None, [1, 5], (slice(0, 9, 2), slice(None), 4),
        ]  # fmt: skip
        path = self.folder / "a.safetensors"
        path.write_bytes(content)
        for index in indices:
            for source in (io.BytesIO(content), path):
                with self.subTest(index=index, source=type(source)):
                    np.testing.assert_array_equal(apr.open(source)["a"][index], array[index])
        with self.assertRaises(IndexError):
            apr.open(io.BytesIO(content))["a"][40]
        file = Counting(content)
        tensor = apr.open(file)["a"]
        before = file.count
        tensor[10:12]
        self.assertEqual(file.count - before, 2 * 6 * 5 * 4)

    def test_quantized_tensors_are_dequantized_and_not_mistaken(self):
        path = self.folder / "model.gguf"
        apr.quantize(places.TINY_LLAMA, path, "q8_0")
        tensor = apr.open(path)["token_embd.weight"]
        self.assertEqual(tensor.dtype, "q8_0")
        with self.assertRaises(apr.VersionError):
            tensor.numpy()
        blocks = np.frombuffer(tensor.bytes(), dtype=[("scale", "<f2"), ("quants", "i1", 32)])
        values = blocks["scale"].astype(np.float32)[:, None] * blocks["quants"]
        np.testing.assert_array_equal(tensor.dequantize(), values.reshape(tensor.shape))

    def test_scalars_and_empty_tensors(self):
        arrays = {"scalar": np.float32(4.5), "empty": np.zeros((0, 3), np.int64)}
        path = self.folder / "a.safetensors"
        apr.save(path, arrays)
        for source in (path, io.BytesIO(path.read_bytes())):
            model = apr.open(source)
            self.assertEqual(model["scalar"].numpy(), 4.5)
            self.assertEqual(model["scalar"][()], 4.5)
            self.assertEqual(model["empty"].numpy().shape, (0, 3))
            self.assertEqual(model["empty"][:].shape, (0, 3))

    def test_facts(self):
        model = apr.open(places.TINY_LLAMA)
        self.assertEqual((model.format, model.family), ("safetensors", "llama"))
        self.assertEqual(model.config["model_type"], "llama")
        self.assertIn("tokenizer.json", model.companions)
        ids = model.tokenizer.encode("12+34=")
        self.assertEqual(model.tokenizer.decode(ids), "12+34=")
        self.assertTrue(model.validate()["valid"])
        self.assertIn("remarks", model.lint())
        self.assertTrue(apr.diff(model, apr.open(places.TINY_LLAMA))["same"])


class Opening(places.Folder):
    def test_a_model_is_closed_at_the_end_of_a_block_and_its_arrays_stay(self):
        with apr.open(places.TINY_LLAMA) as model:
            tensor = model["lm_head.weight"]
            values = tensor.numpy()
            self.assertIn("<td>lm_head.weight</td>", model._repr_html_())
        self.assertEqual(values.shape, tensor.shape)
        np.testing.assert_array_equal(tensor.copy(), values)
        self.assertEqual(repr(model), "<apr.Model, closed>")
        for ask in (model.inspect, model.validate, lambda: model["lm_head.weight"]):
            with self.assertRaisesRegex(ValueError, "closed"):
                ask()
        model.close()

    def test_names_of_tensors_are_text_in_a_notebook(self):
        path = self.folder / "m.safetensors"
        safetensors.numpy.save_file({"<b>": np.zeros(2, np.float32)}, path)
        shown = apr.open(path)._repr_html_()
        self.assertIn("&lt;b&gt;", shown)
        self.assertIn("safetensors, 1 tensor<", shown)
        self.assertEqual(repr(apr.open(path)), "<apr.Model safetensors, 1 tensor>")
        self.assertNotIn("<b>", shown)

    def test_a_model_is_pickled_by_its_path(self):
        model = pickle.loads(pickle.dumps(apr.open(places.TINY_LLAMA, max_memory=1 << 30)))
        self.assertEqual(model.inspect()["parameters"], 361856)
        with self.assertRaisesRegex(TypeError, "pickle its model"):
            pickle.dumps(model["model.norm.weight"])
        # A relative path holds wherever the pickle is loaded.
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(places.TINY_LLAMA.parent)
        pickled = pickle.dumps(apr.open(places.TINY_LLAMA.name))
        os.chdir(before)
        self.assertEqual(len(pickle.loads(pickled)), 21)
        bytes = io.BytesIO((places.TINY_LLAMA / "model.safetensors").read_bytes())
        with self.assertRaisesRegex(TypeError, "opened by a path"):
            pickle.dumps(apr.open(bytes))


class Failing(places.Folder):
    def test_errors_have_codes_and_places(self):
        content = places.WEIGHTS.read_bytes()
        path = self.folder / "cut.safetensors"
        path.write_bytes(content[:-100])
        with self.assertRaises(apr.Error) as caught:
            apr.open(path)
        self.assertEqual(caught.exception.code, "E002")
        self.assertEqual(caught.exception.where.file, str(path))
        self.assertIn("E002", str(caught.exception))
        with self.assertRaises(FileNotFoundError) as caught:
            apr.open(self.folder / "absent.gguf")
        self.assertEqual(caught.exception.code, "E007")
        with self.assertRaises(apr.FormatError):
            apr.open(io.BytesIO(b"not a model"))
        with self.assertRaises(KeyError):
            apr.open(places.WEIGHTS)["absent"]

    def test_files_of_any_length_and_flipped_bits_raise_errors_alone(self):
        content = bytearray(safetensors.numpy.save({"a": np.arange(6.0), "b": np.arange(3)}))
        for length in range(len(content)):
            with self.assertRaises(apr.Error):
                apr.open(io.BytesIO(content[:length]))
        for at in range(len(content)):
            flipped = bytearray(content)
            flipped[at] ^= 1 << (at % 8)
            try:
                for tensor in apr.open(io.BytesIO(flipped)).values():
                    tensor.bytes()
            except apr.Error:
                pass

    def test_a_file_object_that_fails_is_an_error(self):
        class Broken(io.BytesIO):
            def read(self, size=-1):
                raise RuntimeError("the disk is gone")

        with self.assertRaisesRegex(apr.IoError, "the disk is gone"):
            apr.open(Broken(places.WEIGHTS.read_bytes()))

    def test_what_is_there_is_not_replaced(self):
        path = self.folder / "a.safetensors"
        apr.save(path, {"a": np.zeros(3)})
        before = path.read_bytes()
        with self.assertRaises(FileExistsError):
            apr.save(path, {"a": np.ones(3)})
        with self.assertRaises(FileExistsError):
            apr.convert(places.WEIGHTS, path)
        self.assertEqual(path.read_bytes(), before)
        apr.save(path, {"a": np.ones(3)}, replace=True)
        self.assertNotEqual(path.read_bytes(), before)

    def test_types_of_single_tensors(self):
        output = self.folder / "a.gguf"
        apr.convert(places.TINY_LLAMA, output, quantize="q4_0", tensor_types=["ffn_down=q8_0"])
        types = {tensor.dtype for name, tensor in apr.open(output).items() if "ffn_down" in name}
        self.assertEqual(types, {"q8_0"})
        again = self.folder / "b.gguf"
        with self.assertRaisesRegex(apr.Error, "requantize"):
            apr.convert(output, again, quantize="q5_0")
        apr.convert(output, again, quantize="q5_0", requantize=True)

    def test_requests_that_mean_nothing_are_refused(self):
        output = self.folder / "a.gguf"
        idle = ({"tensor_types": ["*=q8_0"]}, {"requantize": True})
        for options in (*idle, {"quantize": "q99"}, {"format": "exe"}, {"compress": "rar"}):
            with self.assertRaises(ValueError):
                apr.convert(places.WEIGHTS, output, **options)
        with self.assertRaises(TypeError):
            apr.convert(places.WEIGHTS, output, quantise="q8_0")
        with self.assertRaises(ValueError):
            apr.open(places.TINY_LLAMA).generate("a", tokens=[1])
        with self.assertRaises(apr.Error):
            list(apr.open(places.WEIGHTS).generate("no tokenizer", chat=True))
        self.assertEqual(list(self.folder.iterdir()), [])


class Writing(places.Folder):
    def test_arrays_come_back_in_every_format(self):
        numbers = np.random.default_rng(0).normal(size=(7, 5))
        dtypes = [
            np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
            ml_dtypes.float8_e5m2, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32,
            np.uint16, np.uint8, np.bool_,
        ]  # fmt: skip
        arrays = {np.dtype(dtype).name: numbers.astype(dtype) for dtype in dtypes}
        arrays["strided"] = np.arange(24, dtype=np.int32).reshape(4, 6)[::2, ::-3]
        arrays["big-endian"] = np.arange(5, dtype=">f4")
        path = self.folder / "a.safetensors"
        apr.save(path, arrays, {"licence": "mit"})
        with safetensors.safe_open(path, "np") as file:
            for name in file.keys():
                if arrays[name].dtype.itemsize > 1:
                    np.testing.assert_array_equal(file.get_tensor(name), arrays[name])
        for name, tensor in apr.open(path).items():
            self.assertEqual(tensor.numpy().dtype, arrays[name].dtype.newbyteorder("<"))
            np.testing.assert_array_equal(tensor.numpy(), arrays[name])
        with safetensors.safe_open(path, "np") as file:
            self.assertEqual(file.metadata(), {"licence": "mit"})
        native = self.folder / "a.apr"
        apr.save(native, apr.open(path))
        for name, tensor in apr.open(native).items():
            np.testing.assert_array_equal(tensor.numpy(), arrays[name])

    def test_conversions_tell_how_far_they_are(self):
        steps = []
        report = apr.convert(
            places.TINY_LLAMA,
            self.folder / "model.gguf",
            quantize="q4_k_m",
            progress=lambda *step: steps.append(step),
        )
        self.assertGreater(report["bytes_in"], report["bytes_out"])
        phase, done, total = steps[-1]
        self.assertEqual((phase, done), ("converting", total))

    def test_an_exception_of_the_callback_ends_the_job(self):
        def stop(*step):
            raise StopAsyncIteration("enough")

        weights = {f"w{at}": np.ones((1024, 1024), np.float32) for at in range(24)}
        source, output = self.folder / "big.safetensors", self.folder / "big.apr"
        apr.save(source, weights)
        with self.assertRaisesRegex(StopAsyncIteration, "enough"):
            apr.convert(source, output, quantize="q6_k", progress=stop)
        self.assertEqual(list(self.folder.iterdir()), [source])

    def test_ctrl_c_ends_a_job_and_leaves_nothing(self):
        weights = {f"w{at}": np.ones((1024, 1024), np.float32) for at in range(48)}
        source = self.folder / "big.safetensors"
        apr.save(source, weights)
        program = """
            import signal, sys, apr
            # Whoever started the tests in the background had it ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                apr.convert(sys.argv[1], sys.argv[2], quantize="q4_k_m", threads=1,
                            progress=lambda *step: print(*step, flush=True))
            except KeyboardInterrupt:
                print("interrupted")
        """
        output = self.folder / "big.apr"
        words = [sys.executable, "-c", textwrap.dedent(program), str(source), str(output)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as job:
            job.stdout.readline()
            job.send_signal(signal.SIGINT)
            told, _ = job.communicate(timeout=120)
        self.assertIn("interrupted", told)
        self.assertEqual(list(self.folder.iterdir()), [source])


class Command(places.Folder):
    def test_the_command_is_there(self):
        words = [sys.executable, "-m", "apr", "--version"]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        self.assertTrue(done.stdout.startswith("apr "), done.stdout)
        done = subprocess.run([*words[:-1], "inspect", "absent.gguf"], stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 3)

    def test_reports_of_commands(self):
        report = apr.command("inspect", places.TINY_LLAMA)
        self.assertEqual(
            [report.pop("schema"), report.pop("command")], ["apr.inspect/1", "inspect"]
        )
        self.assertEqual(report, apr.inspect(str(places.TINY_LLAMA)))
        reports = apr.command("inspect", places.TINY_LLAMA, places.WEIGHTS)
        self.assertEqual([report["format"] for report in reports], ["safetensors"] * 2)
        with self.assertRaises(apr.NotFoundError):
            apr.command("inspect", self.folder / "absent.gguf")
        with self.assertRaises(apr.RequestError):
            apr.command("inspekt")
        hostile = self.folder / "model.pt"
        hostile.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
        self.assertEqual(apr.command("scan", hostile)["verdict"], "dangerous")
        self.assertEqual(apr.scan(hostile)["verdict"], "dangerous")


if __name__ == "__main__":
    unittest.main()
