"""The module reports what the command reports, on models of all kinds."""

import tempfile
import unittest
from pathlib import Path

import apr

import places

MODELS = [
    "tiny-llama",
    "tiny-llama/model.safetensors",
    "run/tiny-whisper",
    "lora/lora/adapter_model.safetensors",
    "onnx/kinds.onnx",
    "tflite/lowered.tflite",
    "tensorflow/saved",
    "wrapped/small.nemo",
]

#: Models whose weights are in codes and scales.
CODED = [places.CASES / "codes" / name for name in ("fp8-block", "gptq4")]

REPORTS = {
    "inspect": lambda path: apr.open(path).inspect(),
    "validate": lambda path: apr.open(path).validate(),
    "lint": lambda path: apr.open(path).lint(),
    "scan": apr.scan,
}


def of_command(name, *arguments):
    """A report of the command, without its envelope."""
    report = apr.command(name, *arguments)
    schema, command = report.pop("schema"), report.pop("command")
    assert (schema, command) == (f"apr.{name}/1", name), (schema, command)
    return report


class Reports(unittest.TestCase):
    maxDiff = 2000

    def test_every_report_is_that_of_the_command(self):
        for model in MODELS:
            self.check(places.FIXTURES / model)

    def test_every_report_on_weights_in_codes_is_that_of_the_command(self):
        for path in CODED:
            if not path.exists():
                self.skipTest("shared/cases is absent")
            self.check(path)

    def check(self, path):
        for name, report in REPORTS.items():
            with self.subTest(model=path, report=name):
                self.assertEqual(report(path), of_command(name, path))
        with self.subTest(model=path, report="diff"):
            self.assertEqual(
                apr.diff(places.TINY_LLAMA, path), of_command("diff", places.TINY_LLAMA, path)
            )

    def test_shards_are_validated_as_by_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            whole, parts = Path(folder) / "m.apr", Path(folder) / "parts" / "m.apr"
            apr.command("import", places.TINY_LLAMA, "-o", whole)
            apr.command("shard", whole, "--size", "200KB", "-o", parts)
            self.assertTrue(apr.open(parts).validate()["valid"])
            shards = sorted(parts.parent.glob("*-0000*"))
            damaged = bytearray(shards[1].read_bytes())
            damaged[len(damaged) // 2] ^= 1
            shards[1].write_bytes(damaged)
            report = apr.open(parts).validate()
            self.assertFalse(report["valid"])
            self.assertTrue(any(shards[1].name in str(finding) for finding in report["findings"]))


if __name__ == "__main__":
    unittest.main()
