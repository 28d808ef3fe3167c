"""Reads APR2 as `docs/format` describes it, and from that text alone: a second opinion on the crate and on the pages.

    python apr2_reference.py verify  FILE [--trusted PUBLIC.pem]...            CRC, digests, signatures, licence
    python apr2_reference.py decrypt FILE [--key PRIVATE.pem] [--password-file TEXT]    SHA-256 of each tensor's bytes

Prints JSON; ends with status 1 and a message at the first thing that is not as it should be. Needs cryptography >= 44,
blake3, numpy and zstandard. Sparse layouts are not made dense: such a tensor's sha256 is null.
"""

import argparse
import contextlib
import hashlib
import hmac
import json
import struct
import zlib
from pathlib import Path

from blake3 import blake3
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from apr2_codecs import decode, product

ENCRYPTED, SIGNED, LICENSED = 16, 32, 256
DTYPES = dict(enumerate("F32 F16 BF16 I8 I16 I32 I64 U8 F64 BOOL U16 U32 U64 F8_E4M3 F8_E5M2 C64 Q8_0 Q4_0 Q4_1 Q5_0 "
                        "Q5_1 I8_ROW I4_ROW F8_E8M0 F6_E2M3 F6_E3M2 F4_E2M1 "
                        "F8_E4M3FNUZ F8_E5M2FNUZ".split()))


def check(condition, message):
    if not condition:
        raise SystemExit(f"not as specified: {message}")


def hkdf(secret, salt, info):
    return HKDF(hashes.SHA256(), 32, salt, info).derive(secret)


def read_block(file, at):
    kind, version, length = struct.unpack_from("<4sIQ", file, at)
    check(version == 1, f"version of {kind}")
    return kind, file[at + 16:at + 16 + length], file[at:at + -(-(16 + length) // 64) * 64]  # body; block with padding


def read_front(file):
    """Flags, the parts that are hashed, index entries, ENCR block if any, and where the tensors end."""
    check(file[:6] == b"APR2\x02\0", "magic or version")
    flags, meta_at, meta_len, index_at, index_len, data = struct.unpack_from("<6I", file, 8)
    metadata, index = file[meta_at:meta_at + meta_len], file[index_at:index_at + index_len]
    encr = read_block(file, data) if flags & ENCRYPTED else None
    entries, at, end = [], 8, data + len(encr[2]) if encr else data
    for _ in range(struct.unpack_from("<I", index)[0]):
        end_of_name = at + 2 + struct.unpack_from("<H", index, at)[0]
        name, at = index[at + 2:end_of_name].decode(), end_of_name
        code, dims = index[at], index[at + 1]
        shape, at = list(struct.unpack_from(f"<{dims}Q", index, at + 2)), at + 2 + 8 * dims
        offset, size, raw_size, bits = struct.unpack_from("<QQQI", index, at)
        at, end = at + 28, max(end, data + offset + size)
        entries.append({"name": name, "dtype": DTYPES.get(code, f"ggml {code - 64}"), "shape": shape, "flags": bits,
                        "raw_size": raw_size, "stored": file[data + offset:data + offset + size]})
    check(at == len(index), "length of the index")
    return flags, [file[:32], metadata, index], entries, encr, -(-end // 64) * 64


def is_signed(public, signature, message):
    with contextlib.suppress(InvalidSignature, ValueError):
        return Ed25519PublicKey.from_public_bytes(public).verify(signature, message) is None
    return False


def verify(file, trusted):
    (flags, front, entries, encr, at), blocks = read_front(file), {}
    while file[at + 4:at + 8] != b"2RPA":
        check(at + 16 <= len(file), "the footer is missing")
        kind, *blocks[kind] = read_block(file, at)
        at += len(blocks[kind][1])
    check(struct.unpack_from("<I4xQ", file, at) == (zlib.crc32(file[:at]), at + 16), "CRC-32 or file size")
    check(bool(flags & SIGNED) == (b"SIGN" in blocks) and bool(flags & LICENSED) == (b"LICN" in blocks), "header flags")
    check(blocks[b"DGST"][0] == b"\1" + bytes(7) + b"".join(blake3(one["stored"]).digest() for one in entries), "DGST")
    digest = blake3(b"".join(front) + (encr[2] if encr else b"") + blocks[b"DGST"][1]).digest()
    report = {"tensors": len(entries), "digest": digest.hex(), "signers": [], "licence": None}
    if b"SIGN" in blocks:
        body = blocks[b"SIGN"][0]
        check(len(body) == 8 + 104 * struct.unpack_from("<I", body)[0], "length of SIGN")
        for algorithm, public, signature in struct.iter_unpack("<Q32s64s", body[8:]):
            check(algorithm == 1 and is_signed(public, signature, b"apr2-sign-v1\0" + digest), "a signature")
            report["signers"].append({"public": public.hex(), "trusted": public in trusted})
    if b"LICN" in blocks:
        text, signature = blocks[b"LICN"][0][:-64], blocks[b"LICN"][0][-64:]
        message = b"apr2-licence-v1\0" + blake3(text).digest() + digest
        report["licence"] = json.loads(text)
        check(not trusted or any(is_signed(key, signature, message) for key in trusted), "licence")
    check(not trusted or any(signer["trusted"] for signer in report["signers"]), f"signers: {report}")
    return report


def unlock(body, key, password):
    """Salt, file key and MAC of an ENCR block."""
    count, chunk, salt = struct.unpack_from("<II16s", body)
    file_key, at = None, 24
    for _ in range(count):
        wrapping, kind = None, body[at]
        if kind == 1:  # password
            _, its_salt, m, t, p, nonce, wrapped = struct.unpack_from("<I16sIII12s48s", body, at)
            if password is not None:
                wrapping = Argon2id(salt=its_salt, length=32, iterations=t, lanes=p, memory_cost=m).derive(password)
        else:  # recipient
            _, ephemeral, tag, nonce, wrapped = struct.unpack_from("<I32s8s12s48s", body, at)
            if key and hashlib.sha256(key.public_key().public_bytes_raw()).digest()[:8] == tag:
                wrapping = hkdf(key.exchange(X25519PublicKey.from_public_bytes(ephemeral)), None, b"apr-v2-encrypt")
        with contextlib.suppress(InvalidTag):
            file_key = AESGCM(wrapping).decrypt(nonce, wrapped, None) if wrapping else file_key
        at += {1: 92, 2: 104}[kind]
    check(chunk == 65536 and at + 32 == len(body) and file_key, "ENCR block, or no key or password fits")
    return salt, file_key, body[at:]


def decrypt(file, key, password):
    flags, (header, metadata, index), entries, encr, _ = read_front(file)
    if encr:
        salt, file_key, mac = unlock(encr[1], key, password)
        front = header[:8] + struct.pack("<I", flags & ~(SIGNED | LICENSED)) + header[12:] + metadata + index
        check(hmac.compare_digest(hmac.digest(hkdf(file_key, salt, b"apr-v2-header"), front, "sha256"), mac), "HMAC")
    for entry in entries:
        bits, stored = entry.pop("flags"), entry.pop("stored")
        check(bool(bits & 1 << 12) == bool(encr), f"encryption flag of {entry['name']}")
        if encr:
            cipher = AESGCM(hkdf(file_key, salt, b"apr-v2-tensor\0" + entry["name"].encode()))
            pieces = [stored[at:at + 65552] for at in range(0, len(stored), 65552)]
            stored = b"".join(cipher.decrypt(struct.pack("<Q3xB", number, number + 1 == len(pieces)), piece, None)
                              for number, piece in enumerate(pieces))
        raw = decode(stored, entry.pop("raw_size"), bits & 0xF, bits >> 4 & 0xF, entry["dtype"]) if bits & 0xFF else stored
        if bits & 0xF00 == 0x300:
            raw, bits = product(raw, entry["dtype"], entry["shape"]), bits & ~0xF00
        entry["sha256"] = None if bits & 0xF00 else hashlib.sha256(raw).hexdigest()
    return entries


parser = argparse.ArgumentParser()
parser.add_argument("command", choices=("verify", "decrypt"))
for option in ("file", "--key", "--password-file"):
    parser.add_argument(option, type=lambda path: Path(path).read_bytes())
parser.add_argument("--trusted", type=lambda path: Path(path).read_bytes(), action="append", default=[])
args = parser.parse_args()
if args.command == "verify":
    report = verify(args.file, [serialization.load_pem_public_key(pem).public_bytes_raw() for pem in args.trusted])
else:
    key = args.key and serialization.load_pem_private_key(args.key, None)
    report = decrypt(args.file, key, args.password_file and args.password_file.rstrip(b"\r\n"))
print(json.dumps(report, indent=1))
