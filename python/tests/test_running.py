"""Models that generate text, read audio and give vectors."""

import base64
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import warnings
from pathlib import Path

import numpy as np

import apr

import places


class Running(places.Folder):
    def test_a_text_is_written_piece_by_piece(self):
        model = apr.open(places.TINY_LLAMA)
        generation = model.generate("12+34=", logprobs=2)
        pieces = list(generation)
        self.assertEqual("".join(pieces), "46\n")
        completion = generation.completion
        self.assertEqual((completion.text, completion.ended), ("46\n", "end"))
        self.assertEqual(len(completion.tokens), len(completion.report["logprobs"]))
        with self.assertRaises(StopIteration):
            next(generation)

    def test_samplers_of_llama_cpp(self):
        model = apr.open(places.TINY_LLAMA)

        def text(**sampling):
            return "".join(model.generate("12+34=", **sampling))

        self.assertEqual(text(), "46\n")
        banned = text(logit_bias={"4": -math.inf, 10: -5.0})
        self.assertNotIn("4", banned)
        self.assertEqual(text(temperature=1.0, mirostat=2, mirostat_tau=0.01), "46\n")
        self.assertEqual(text(dry_multiplier=0.8, dry_sequence_breakers=["+"]), "46\n")
        self.assertNotEqual(text(frequency_penalty=40.0, repeat_last_n=64), "46\n")
        longer = model.generate("12+34=", min_tokens=5, max_tokens=5).completion
        self.assertEqual(len(longer.report["added"]), 5)
        with self.assertRaises(ValueError):
            text(mirostat=3)
        with self.assertRaises(ValueError):
            text(dry_base=2.0)
        with self.assertRaises(TypeError):
            text(mirostad=2)

    def test_keys_and_values_are_kept_as_another_type(self):
        made = apr.open(places.TINY_LLAMA).generate("12+34=", cache_type="q8_0").completion
        self.assertEqual((made.text.strip(), made.report["cache_type"]), ("46", "q8_0"))
        with self.assertRaises(ValueError):
            apr.open(places.TINY_LLAMA).generate("12+34=", cache_type="q4_0")

    def test_texts_grow_side_by_side(self):
        model = apr.open(places.TINY_LLAMA)
        prompts = ["12+34=", "1+2=", "99+1="]
        made = model.generate_all(prompts, batch=2)
        self.assertEqual([one.text for one in made], ["46\n", "3\n", "100\n"])
        self.assertEqual(max(one.report.get("batch", 1) for one in made), 2)
        alone = model.generate_all(prompts, batch=1)
        self.assertEqual([one.tokens for one in made], [one.tokens for one in alone])
        self.assertNotIn("batch", alone[0].report)
        with self.assertRaises(ValueError):
            model.generate_all(prompts, batch=0)

    def test_beams_find_a_text(self):
        completion = apr.open(places.TINY_LLAMA).generate("12+34=", beams=3).completion
        self.assertEqual(completion.text, "46\n")
        self.assertEqual(len(completion.report["beams"]), 3)

    def test_a_conversation_keeps_what_was_said(self):
        for file in places.TINY_LLAMA.iterdir():
            shutil.copy(file, self.folder)
        template = (
            "{{ bos_token }}{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}"
        )
        template += "{{ eos_token }}{% endif %}{% endfor %}"
        (self.folder / "chat_template.jinja").write_text(template)
        model = apr.open(self.folder)
        chat = model.chat()
        self.assertEqual("".join(chat.say("12+34=")), "46\n")
        second = chat.say("20+22=").completion
        # The mark at the beginning, the sum and its answer were read before.
        self.assertEqual((len(second.report["given"]), second.report["reused"]), (17, 10))
        self.assertEqual(
            chat.messages[:3],
            [
                {"role": "user", "content": "12+34="},
                {"role": "assistant", "content": "46\n"},
                {"role": "user", "content": "20+22="},
            ],
        )
        again = model.chat(messages=chat.messages[:2]).say("20+22=").completion
        self.assertEqual(again.text, second.text)
        chat.reset()
        self.assertEqual((chat.messages, "".join(chat.say("12+34="))), ([], "46\n"))
        with self.assertRaises(apr.Error):
            list(apr.open(places.WEIGHTS).chat().say("no template"))

    def test_a_chat_of_messages_has_tools_and_an_answer_taken_apart(self):
        for file in places.TINY_LLAMA.glob("*.json"):
            shutil.copy(file, self.folder)
        shutil.copy(places.WEIGHTS, self.folder)
        template = "{{ bos_token }}{{ tools | tojson }}{{ documents[0].title }}{{ effort }}"
        template += "{{ messages[-1].content }}"
        (self.folder / "chat_template.jinja").write_text(template)
        model = apr.open(self.folder)
        messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "12+34="}]
        made = model.generate(
            messages=messages,
            tools=[{"name": "f"}],
            documents=[{"title": "T"}],
            template_args={"effort": "high"},
            max_tokens=3,
        ).completion
        self.assertEqual(made.report["prompt"], '<s>[{"name": "f"}]Thigh12+34=')
        self.assertEqual(made.answer["text"], made.text)
        with self.assertRaises(ValueError):
            model.generate("12+34=", messages=messages)
        with self.assertRaises(ValueError):
            model.generate(messages=messages, system="Add.")
        with self.assertRaises(apr.Error):
            list(model.generate(messages=[{"content": "no role"}]))

    def test_texts_keep_to_a_grammar(self):
        model = apr.open(places.TINY_LLAMA)
        made = model.generate("12+34=", regex="[x-z]{3}").completion
        self.assertRegex(made.text, "^[x-z]{3}$")
        self.assertEqual(made.ended, "grammar")
        self.assertEqual(made.report["grammar"], {"kind": "regex", "complete": True})
        schema = {"type": "array", "items": {"enum": [1, "a"]}, "minItems": 2, "maxItems": 3}
        schema["x-guidance"] = {"whitespace_flexible": False}
        for given in [schema, json.dumps(schema)]:
            made = model.generate("1+1=", json_schema=given, temperature=1.0, seed=3).completion
            values = json.loads(made.text)
            self.assertTrue(len(values) in (2, 3) and set(values) <= {1, "a"}, values)
        rules = 'start: "a" "b"+'
        for made in model.generate_all(["1+1=", "2+2="], grammar=rules, max_tokens=4):
            self.assertRegex(made.text, "^ab+$")
        with self.assertRaises(ValueError):
            model.generate("1", regex="a", grammar=rules)
        with self.assertRaises(apr.Error) as raised:
            list(model.generate("1", grammar="start: ("))
        self.assertEqual(raised.exception.code, "E001")

    def test_speech_becomes_subtitles(self):
        model = apr.open(places.FIXTURES / "run/tiny-whisper")
        heard = model.transcribe(
            places.FIXTURES / "sound/a.flac", language="en", timestamps=True, beams=2
        )
        self.assertEqual(heard["srt"].count(" --> "), heard["vtt"].count(" --> "))
        self.assertTrue(heard["vtt"].startswith("WEBVTT"))
        self.assertIn("avg_logprob", heard["segments"][0])

    def test_an_abandoned_text_ends(self):
        model = apr.open(places.TINY_LLAMA)
        generation = model.generate(tokens=[1, 5, 20], max_tokens=100_000)
        del generation
        self.assertEqual(model.generate("20+22=").completion.text, "42\n")

    def test_arrays_go_in_and_values_come_out(self):
        model = apr.open(places.TINY_LLAMA)
        ids = np.array([[1, 5, 20]])
        made = model.run({"input_ids": ids}, want=["logits", "layers.0/output"])
        self.assertEqual(made["logits"].shape, (1, 3, 259))
        self.assertEqual(made["layers.0/output"].dtype, np.float32)
        with self.assertRaises(apr.FormatError):
            model.run({"input_ids": ids}, want=["absent"])
        with self.assertRaises(apr.Error):
            model.run({"pixels": ids})

    @unittest.skipUnless(
        places.MINILM.exists() or "CI" in os.environ, f"all-MiniLM-L6-v2 is not at {places.MINILM}"
    )
    def test_texts_become_vectors(self):
        model = apr.open(places.MINILM)
        texts = ["A man is eating food.", "A man is eating a piece of bread.", "A plane lands."]
        vectors = model.embed(texts)
        self.assertEqual((vectors.shape, vectors.dtype), ((3, 384), np.float32))
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
        self.assertGreater(vectors[0] @ vectors[1], vectors[0] @ vectors[2])
        np.testing.assert_array_equal(model.embed(texts[0]), vectors[0])
        self.assertEqual(model.read_texts(texts[:1])[0]["task"], "embedding")

    def test_documents_are_ranked_as_cross_encoders_rank_them(self):
        with open(places.FIXTURES / "run/rerankers.json", encoding="utf-8") as file:
            cases = json.load(file)
        case = cases["models"]["bert_old"]
        with tempfile.TemporaryDirectory() as folder:
            for name, text in case["files"].items():
                path = Path(folder) / name
                if name.endswith(".json"):
                    path.write_text(text, encoding="utf-8")
                else:
                    path.write_bytes(base64.b64decode(text))
            model = apr.open(folder)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ranking = model.rank(cases["query"], cases["documents"], top=2)
        expected = sorted(range(5), key=lambda index: -case["scores"][index])[:2]
        self.assertEqual([found["index"] for found in ranking["documents"]], expected)
        self.assertAlmostEqual(
            ranking["documents"][0]["score"], case["scores"][expected[0]], places=5
        )

    def test_other_threads_run_meanwhile(self):
        program = """
            import sys, threading, time, apr
            model, ticks = apr.open(sys.argv[1]), []
            stop = threading.Event()
            def tick():
                while not stop.wait(0.001):
                    ticks.append(time.monotonic())
            thread = threading.Thread(target=tick)
            thread.start()
            model.validate()
            model.generate(tokens=[1, 5, 20], max_tokens=64, stop=[]).completion
            stop.set(); thread.join()
            print(len(ticks))
        """
        words = [sys.executable, "-c", textwrap.dedent(program), str(places.TINY_LLAMA)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        self.assertGreater(int(done.stdout), 3)


if __name__ == "__main__":
    unittest.main()
