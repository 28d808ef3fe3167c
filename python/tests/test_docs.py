"""The examples in the documentation of the package run."""

import doctest
import importlib
import tempfile
import unittest
from pathlib import Path

import places

MODULES = ["apr", "apr._model", "apr._jobs", "apr.safetensors"]


class Examples(unittest.TestCase):
    def test_examples_of_modules(self):
        for name in MODULES:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                globs = {"MODEL": str(places.TINY_LLAMA), "FOLDER": folder}
                failed, tried = doctest.testmod(importlib.import_module(name), extraglobs=globs)
                self.assertEqual(failed, 0)
                self.assertGreater(tried, 0)

    def test_examples_of_the_readme(self):
        readme = Path(__file__).resolve().parents[1] / "README.md"
        with tempfile.TemporaryDirectory() as folder:
            globs = {"MODEL": str(places.TINY_LLAMA), "FOLDER": folder}
            failed, tried = doctest.testfile(str(readme), module_relative=False, globs=globs)
        self.assertEqual(failed, 0)
        self.assertGreater(tried, 0)
