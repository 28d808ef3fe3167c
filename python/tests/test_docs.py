"""The examples in the documentation of the package run."""

import contextlib
import doctest
import importlib
import io
import os
import tempfile
import unittest
from pathlib import Path

import apr
import places

MODULES = [
    "apr", "apr._model", "apr._tensors", "apr._texts", "apr._jobs", "apr.safetensors",
    "apr.safetensors._indices", "apr.safetensors._open", "apr.safetensors._specs",
]  # fmt: skip


class Examples(unittest.TestCase):
    def test_examples_of_modules(self):
        for name in MODULES:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                globs = {"MODEL": str(places.TINY_LLAMA), "FOLDER": folder, "apr": apr}
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

    def test_examples_of_the_page_about_programs(self):
        """It names files as they are from a clone, and writes beside them."""
        page = places.ROOT / "docs/start/program.md"
        with tempfile.TemporaryDirectory() as folder, working_in(folder):
            os.symlink(places.FIXTURES, "fixtures")
            failed, tried = doctest.testfile(str(page), module_relative=False)
        self.assertEqual(failed, 0)
        self.assertGreater(tried, 0)

    def test_the_python_of_the_readme_of_the_repository_runs(self):
        text = (places.ROOT / "README.md").read_text("utf-8")
        block = text.split("```python\n")[1].split("```")[0]
        printed = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, working_in(folder):
            os.symlink(places.FIXTURES, "fixtures")
            with contextlib.redirect_stdout(printed):
                exec(compile(block, "README.md", "exec"), {})
        self.assertTrue(printed.getvalue().endswith("46\n"), printed.getvalue())


@contextlib.contextmanager
def working_in(folder):
    """As `contextlib.chdir` of Python 3.11."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
