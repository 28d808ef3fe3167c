"""Lets apr2_reference.py, which knows only `docs/format`, read what apr compresses, encrypts, signs and licenses.

    python apr2_reference_check.py APR MODEL.safetensors
"""

import contextlib
import hashlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from blake3 import blake3
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from safetensors import deserialize

REFERENCE = Path(__file__).with_name("apr2_reference.py")


def check(condition, message):
    if not condition:
        raise SystemExit(f"failed: {message}")


def apr(*arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("APR_")}
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True)
    check(done.returncode == 0, f"apr {' '.join(map(str, arguments))}: {done.stderr}")


def reference(*arguments):
    """What the reference prints; nothing when it refuses, with a message and not with a crash."""
    printed, sys.argv = io.StringIO(), [str(REFERENCE), *arguments]
    try:
        # Not a process of its own, which would take ten times as long to start as to read a file.
        with contextlib.redirect_stdout(printed):
            runpy.run_path(REFERENCE)
    except SystemExit as refusal:
        check("not as specified" in str(refusal), f"{arguments}: {refusal}")
        return None
    return json.loads(printed.getvalue())


def write(name, content):
    Path(name).write_text(content)
    return name


def content(file, *keys):
    """SHA-256 of each tensor by name; nothing when the file does not open."""
    tensors = reference("decrypt", file, *keys)
    return tensors and {tensor["name"]: tensor["sha256"] for tensor in tensors}


def check_sealed(sealed, originals):
    """Either lock opens the file, no other does, and the tensors are the original ones."""
    for opened_by in (("--password-file", "password"), ("--key", "reader")):
        found = content(sealed, *opened_by)
        check(found is not None, f"{sealed} does not open with {opened_by}")
        differing = [name for name, sha256 in originals.items() if found.get(name) != sha256]
        check(not differing, f"{sealed}: tensors differ: {differing}")
    for wrong in (("--password-file", "wrong"), ("--key", "stranger"), ()):
        check(content(sealed, *wrong) is None, f"{sealed} opens with {wrong or 'nothing'}")


def check_signed(signed, licensee_terms):
    """The signature and the licence are the trusted key's; a changed byte is noticed."""
    report = reference("verify", signed, "--trusted", "signer.pub")
    check(report is not None and report["signers"][0]["trusted"], f"{signed} does not verify: {report}")
    check(report["licence"] and report["licence"]["terms"] == licensee_terms, f"the licence is {report['licence']}")
    check(reference("verify", signed, "--trusted", "other.pub") is None, f"{signed} verifies with another key")
    changed = bytearray(Path(signed).read_bytes())
    changed[len(changed) // 2] ^= 1
    Path("changed.apr").write_bytes(changed)
    check(reference("verify", "changed.apr", "--trusted", "signer.pub") is None, "a changed file verifies")


def check_manifest(manifest, public):
    """The manifest's signature is of what stands before it, which is the digest of every shard."""
    before, _, signatures = Path(manifest).read_bytes().rpartition(b',\n  "signatures": "')
    block = bytes.fromhex(signatures.decode().removesuffix('"\n}\n'))
    key = load_pem_public_key(Path(public).read_bytes())
    check(block[32:64] == key.public_bytes_raw(), f"{manifest} is signed by another key")
    key.verify(block[64:128], b"apr2-sign-v1\0" + blake3(before + b"\n}\n").digest())
    for shard in json.loads(Path(manifest).read_bytes())["shards"]:
        report = reference("verify", shard["file"], "--trusted", public)
        check(report and report["digest"] == shard["signed_digest"], f"{shard['file']} is another shard")


program, model = (Path(path).resolve() for path in sys.argv[1:])
expected = Counter(hashlib.sha256(tensor["data"]).hexdigest() for _, tensor in deserialize(model.read_bytes()))
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    write("password", "correct horse\n")
    write("wrong", "correct house\n")
    for name in ("reader", "stranger"):
        apr("keygen", "--for", "encryption", "--output", name)
    for name in ("signer", "other"):
        apr("keygen", "--output", name)
    locks = ("--password", "--password-file", "password", "--recipient", "reader.pub")
    apr("convert", model, "--output", "plain.apr", "--compress", "none")
    # An import gives names of its own; the bytes stay.
    originals = content("plain.apr")
    check(expected <= Counter(originals.values()), "plain.apr has not all tensors of the original")
    for choice in ("auto", "lz4", "zstd", "best"):
        for precision in ((), ("--precision", "fp32"), ("--precision", "fp16")):
            apr("convert", "plain.apr", "--output", "cast.apr", "--compress", "none", "-f", *precision)
            apr("convert", "cast.apr", "--output", "packed.apr", f"--compress={choice}", "-f")
            check(content("packed.apr") == content("cast.apr"), f"tensors differ with --compress={choice} {precision}")
    for precision in ("fp32", "fp16", "bf16"):
        apr("factorize", "plain.apr", "--output", "factors.apr", "--rank", "16", "--precision", precision, "-f")
        apr("convert", "factors.apr", "--output", "packed.apr", "--compress", "-f")
        apr("convert", "factors.apr", "--output", "dense.apr", "--dense", "-f")
        for file in ("factors.apr", "packed.apr"):
            check(content(file) == content("dense.apr"), f"products differ in {file}, {precision}")
    apr("convert", "plain.apr", "--output", "packed.apr", "--compress", "-f")
    apr("encrypt", "packed.apr", "--output", "both.apr", *locks)
    check_sealed("both.apr", originals)
    apr("encrypt", "plain.apr", "--output", "sealed.apr", *locks)
    apr("encrypt", "plain.apr", "--output", "hidden.apr", "--encrypt-metadata", *locks)
    for sealed in ("sealed.apr", "hidden.apr"):
        check_sealed(sealed, originals)
    for name in ("plain.apr", "sealed.apr"):
        apr("license", "issue", name, "--licensee", "Example Ltd", "--terms", "internal use", "--key", "signer")
        apr("sign", name, "--key", "signer")
        check_signed(name, "internal use")
    check_sealed("sealed.apr", originals)
    apr("convert", "plain.apr", "--output", "parts.apr", "--shard-size", str(model.stat().st_size // 3), "--sign", "signer")
    check_manifest("parts.apr", "signer.pub")
print(f"{expected.total()} tensors: the reference verifies, decrypts and decompresses what apr wrote")
