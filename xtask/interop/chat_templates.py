"""Compares the chats that templates write in apr and in transformers, byte for byte.

Usage: python chat_templates.py APR MODEL FOLDER...

APR is the program, MODEL a folder of a small language model with a tokenizer, such as
fixtures/tiny-llama, and each FOLDER has templates (*.jinja) in it or below, such as models/templates of llama.cpp.
Each template writes chats without and with tools, thinking, parts and documents. Where transformers
refuses a chat, apr must refuse it too. For a template that can't read parts, their texts are joined by
spaces, as the server of transformers does. Needs transformers and jinja2.
"""

import copy
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from transformers.utils.chat_template_utils import render_jinja_template

CITY = {"type": "string", "description": "City, é"}
NESTED = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}
PROPERTIES = {
    "city": CITY,
    "days": {"type": "integer", "default": 3, "minimum": 1.0},
    "unit": {"type": "string", "enum": ["c", "f"]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "nested": NESTED,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a city, "now" & <later>.',
            "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]},
        },
    },
    {
        "type": "function",
        "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
    },
]
SYSTEM = {"role": "system", "content": "Be brief. 日本"}
USER = {"role": "user", "content": "  Hi 'there' \"you\"\n"}
ARGUMENTS = {"city": "Köln", "days": 2, "none": None, "ok": True, "part": 1.5, "list": ["a", 1]}
RESULT = {"role": "tool", "tool_call_id": "call_12345", "name": "get_weather", "content": '{"t": 7}'}


def call(arguments, identifier="call_12345"):
    function = {"name": "get_weather", "arguments": arguments}
    calls = [{"id": identifier, "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


WHY = {"role": "user", "content": "Why?"}
TWO = call(ARGUMENTS)["tool_calls"] + call({}, "call_67890")["tool_calls"]
ON = {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
OFF = {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}
PARTS = [{"type": "text", "text": "Is "}, {"type": "text", "text": "this?"}]
CASES = {
    "plain": ([USER], None, {}, None),
    "system": ([SYSTEM, USER], None, {}, None),
    "turns": ([SYSTEM, USER, said("Hello <b>"), WHY], None, {}, None),
    "tools": ([SYSTEM, USER], TOOLS, {}, None),
    "call": ([USER, call(ARGUMENTS), RESULT, said("It is 7."), WHY], TOOLS, {}, None),
    "call without text": ([USER, {**call(ARGUMENTS), "content": None}, RESULT], TOOLS, {}, None),
    "call as text": ([USER, call(json.dumps(ARGUMENTS, ensure_ascii=False)), RESULT], TOOLS, {}, None),
    "two calls": ([USER, said("Both.", tool_calls=TWO), RESULT, RESULT], TOOLS, {}, None),
    "thinking": ([SYSTEM, USER, said("Yes", reasoning_content="Let me see.\n"), WHY], None, ON, None),
    "no thinking": ([USER], None, OFF, None),
    "thinking in text": ([USER, said("<think>\nhm\n</think>\n\nYes"), WHY], TOOLS, ON, None),
    "thinking and call": ([USER, {**call(ARGUMENTS), "reasoning_content": "Tool."}, RESULT], TOOLS, ON, None),
    "parts": ([{"role": "user", "content": PARTS}], None, {}, None),
    "documents": ([USER], None, {}, [{"title": "T", "text": "Body."}]),
}


def expected(template, tokens, messages, tools, arguments, documents):
    """What transformers writes, or None where it refuses."""
    messages = [{k: v for k, v in message.items() if v is not None} for message in copy.deepcopy(messages)]
    try:
        (text,), _ = render_jinja_template(
            [messages],
            tools=tools,
            documents=documents,
            chat_template=template,
            add_generation_prompt=True,
            **tokens,
            **arguments,
        )
    except Exception:
        return None
    return text


def joined(messages):
    """The messages with the texts of their parts joined."""
    texts = [" ".join(part["text"] for part in message["content"]) for message in messages]
    return [{**message, "content": text} for message, text in zip(messages, texts, strict=True)]


def written(apr, model, messages, tools, arguments, documents):
    """What apr writes, or None where it refuses, and the error."""
    chat = {"messages": messages, "tools": tools, "documents": documents}
    path = model / "chat.json"
    path.write_text(json.dumps(chat, ensure_ascii=False), encoding="utf-8")
    line = [apr, "run", str(model), "--messages", str(path), "--max-tokens", "1", "--truncate", "--json"]
    for name, value in arguments.items():
        line += ["--template-arg", f"{name}={json.dumps(value)}"]
    made = subprocess.run(line, capture_output=True, text=True, check=False)
    return (json.loads(made.stdout)["prompt"], "") if made.returncode == 0 else (None, made.stderr)


def main():
    apr, source, *folders = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        model = pathlib.Path(scratch) / "model"
        shutil.copytree(source, model)
        settings = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
        tokens = {}
        for role in ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"):
            token = settings.get(role)
            if token is not None:
                tokens[role] = token["content"] if isinstance(token, dict) else token
        equal = refused = templates = 0
        wrong = []
        for path in sorted(path for folder in folders for path in pathlib.Path(folder).rglob("*.jinja")):
            with open(path, encoding="utf-8", newline="") as file:
                template = file.read()
            (model / "chat_template.jinja").write_bytes(template.encode("utf-8"))
            templates += 1
            for name, case in CASES.items():
                messages, tools, arguments, documents = case
                reference = expected(template, tokens, messages, tools, arguments, documents)
                if name == "parts" and (reference is None or "this?" not in reference or "'type'" in reference):
                    reference = expected(template, tokens, joined(messages), tools, arguments, documents)
                ours, error = written(apr, model, messages, tools, arguments, documents)
                if ours != reference:
                    wrong.append(f"{path.name}, {name}: {reference!r:.200} and {ours!r:.200} {error:.200}")
                elif ours is None:
                    refused += 1
                else:
                    equal += 1
    print("\n".join(wrong))
    print(f"{templates} templates: {equal} chats equal, {refused} refused by both, {len(wrong)} different")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
