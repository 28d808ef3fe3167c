"""Progress bars: of tqdm, of text, and none where nobody sees them."""

import contextlib
import io
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import apr

import places


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Tqdm:
    """A bar as tqdm's, which notes what is done with it."""

    made = []

    def __init__(self, *, desc, total, unit, unit_scale, leave, file):
        self.desc, self.total, self.n, self.is_open = desc, total, 0, True
        self.made.append(self)

    def update(self, more):
        assert self.is_open and more >= 0
        self.n += more

    def close(self):
        self.is_open = False


class Progress(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.output = Path(folder.name) / "model.gguf"
        Tqdm.made = []

    def convert(self, stderr, tqdm=Tqdm, modules=None, **options):
        fake = types.SimpleNamespace(tqdm=tqdm) if tqdm else None
        modules = {"tqdm": fake, "tqdm.auto": fake, "IPython": None, **(modules or {})}
        with mock.patch.dict(sys.modules, modules), contextlib.redirect_stderr(stderr):
            apr.convert(places.TINY_LLAMA, self.output, quantize="q8_0", replace=True, **options)
        return Tqdm.made

    def test_a_terminal_shows_bars_of_tqdm_that_end(self):
        bars = self.convert(Terminal())
        self.assertTrue(bars)
        for bar in bars:
            self.assertFalse(bar.is_open, bar.desc)
            self.assertEqual(bar.n, bar.total, bar.desc)

    def test_other_outputs_show_nothing(self):
        stderr = io.StringIO()
        self.assertEqual(self.convert(stderr), [])
        self.assertEqual(stderr.getvalue(), "")

    def test_a_notebook_shows_bars(self):
        shell = types.SimpleNamespace(kernel=object())
        notebook = types.SimpleNamespace(get_ipython=lambda: shell)
        self.assertTrue(self.convert(io.StringIO(), modules={"IPython": notebook}))

    def test_an_argument_hides_and_forces_the_bar(self):
        self.assertEqual(self.convert(Terminal(), progress=False), [])
        self.assertTrue(self.convert(io.StringIO(), progress=True))

    def test_a_function_is_called_instead(self):
        steps = []
        bars = self.convert(Terminal(), progress=lambda *step: steps.append(step))
        self.assertEqual(bars, [])
        phase, done, total = steps[-1]
        self.assertEqual((type(phase), done), (str, total))

    def test_without_tqdm_a_line_of_text_is_shown_and_removed(self):
        terminal = Terminal()
        self.convert(terminal, tqdm=None)
        lines = terminal.getvalue().split("\r")
        self.assertIn(" %", terminal.getvalue())
        self.assertEqual(lines[-1], "")
        self.assertEqual(lines[-2].strip(), "")

    def test_an_error_ends_the_bar(self):
        class Failing(Tqdm):
            def update(self, more):
                raise ValueError("the terminal is gone")

        with self.assertRaises(ValueError):
            self.convert(Terminal(), tqdm=Failing)
        self.assertTrue(Tqdm.made)
        self.assertFalse(any(bar.is_open for bar in Tqdm.made))

    def test_validation_and_comparison_show_bars(self):
        fake = types.SimpleNamespace(tqdm=Tqdm)
        modules = {"tqdm": fake, "tqdm.auto": fake, "IPython": None}
        with mock.patch.dict(sys.modules, modules), contextlib.redirect_stderr(Terminal()):
            self.assertTrue(apr.validate(places.TINY_LLAMA)["valid"])
            self.assertTrue(Tqdm.made)
            Tqdm.made.clear()
            self.assertTrue(apr.diff(places.TINY_LLAMA, places.TINY_LLAMA)["same"])
            self.assertTrue(Tqdm.made)


if __name__ == "__main__":
    unittest.main()
