"""Decodes the blocks of a compressed tensor as `docs/format/codecs.md` describes them; slow and plain."""

import struct

import numpy as np
import zstandard

ROTATED = ("F16", "BF16", "F32")
WIDTHS = {"F16": 2, "BF16": 2, "I16": 2, "U16": 2, "F32": 4, "I32": 4, "U32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8}
LONGEST_CODE = 11


def check(condition, message):
    if not condition:
        raise SystemExit(f"not as specified: {message}")


def parts(data, count=None):
    """Raw marks and bodies of `u32 n` and n bytes each, and what follows them: `count` of them, or as many as there are."""
    found, at = [], 0
    while at < len(data) if count is None else len(found) < count:
        n = struct.unpack_from("<I", data, at)[0]
        body = data[at + 4:at + 4 + (n & 0x7FFFFFFF)]
        check(len(body) == n & 0x7FFFFFFF, "length of a block or plane")
        found.append((n >> 31, body))
        at += 4 + len(body)
    return found, data[at:]


def decode(stored, raw_size, codec, filter_, dtype):
    """The bytes before the codec."""
    block_len = 65536 if codec == 1 else 1 << 20
    blocks, _ = parts(stored)
    lengths = [min(block_len, raw_size - start) for start in range(0, raw_size, block_len)]
    check(len(blocks) == len(lengths), "number of blocks")
    return b"".join(decode_block(raw, body, n, codec, filter_, dtype) for (raw, body), n in zip(blocks, lengths))


def decode_block(raw, body, n, codec, filter_, dtype):
    if raw or filter_ == 0:
        return decode_part(raw, body, n, codec)
    width = WIDTHS.get(dtype, 1)
    planes, rest = parts(body, width)
    check(len(rest) == n % width, "length of a last element")
    planes = [np.frombuffer(decode_part(raw, plane, n // width, codec), np.uint8) for raw, plane in planes]
    elements = np.stack(planes, axis=1).tobytes()
    if dtype in ROTATED:
        words = np.frombuffer(elements, f"<u{width}")
        elements = (words >> 1 | words << (8 * width - 1)).astype(words.dtype).tobytes()
    return elements + rest


def decode_part(raw, body, n, codec):
    out = body if raw else {1: lz4, 2: zstd, 3: entropy}[codec](body, n)
    check(len(out) == n, f"{len(out)} bytes decoded instead of {n}")
    return out


def zstd(body, n):
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=n)


def lz4(body, n):
    """One block of the LZ4 block format."""
    out, at = bytearray(), 0

    def length(four_bits):
        nonlocal at
        total, more = four_bits, four_bits == 15
        while more:
            total, more, at = total + body[at], body[at] == 255, at + 1
        return total

    while at < len(body):
        token, at = body[at], at + 1
        literals = length(token >> 4)
        out += body[at:at + literals]
        at += literals
        if at == len(body):
            break
        distance, at = struct.unpack_from("<H", body, at)[0], at + 2
        for _ in range(4 + length(token & 15)):
            out.append(out[-distance])
    return bytes(out)


def entropy(body, n):
    if body[0] == 0:
        check(len(body) == 2, "length of a constant plane")
        return body[1:] * n
    check(body[0] == 1, "kind of an entropy-coded plane")
    first, last = body[1], body[2]
    count = last - first + 1
    packed = body[3:3 + (count + 1) // 2]
    lengths = [packed[i // 2] >> 4 * (i % 2) & 15 for i in range(count)]
    table = code_table(first, lengths)
    at = 3 + len(packed)
    sizes = struct.unpack_from("<7I", body, at)
    at, out = at + 28, b""
    for size in sizes:
        out += decode_stream(body[at:at + size], n // 8, table)
        at += size
    return out + decode_stream(body[at:], n - 7 * (n // 8), table)


def code_table(first, lengths):
    """For the next 11 bits of a stream: the symbol, and the length of its code."""
    check(sum(2 ** (LONGEST_CODE - n) for n in lengths if n) == 2 ** LONGEST_CODE, "completeness of the code")
    table, code, before = [None] * 2 ** LONGEST_CODE, 0, 0
    for n, symbol in sorted((n, first + i) for i, n in enumerate(lengths) if n):
        code <<= n - before
        before = n
        reversed_code = int(f"{code:0{n}b}"[::-1], 2)
        for high in range(2 ** (LONGEST_CODE - n)):
            table[high << n | reversed_code] = (symbol, n)
        code += 1
    return table


def decode_stream(stream, n, table):
    out, bits, held, at = bytearray(), 0, 0, 0
    for _ in range(n):
        if held < LONGEST_CODE:
            more = stream[at:at + 6]
            bits |= int.from_bytes(more, "little") << held
            held, at = held + 8 * len(more), at + len(more)
        symbol, used = table[bits & 2 ** LONGEST_CODE - 1]
        out.append(symbol)
        bits, held = bits >> used, held - used
    # One bit that is 1, and zeros to the end of its byte, which is the stream's last.
    check(bits == 1 and held <= 8 and at == len(stream), "end of a stream")
    return bytes(out)


def widened(data, dtype):
    """Numbers of single precision."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype("<f4")


def product(data, dtype, shape):
    """The dense bytes of a tensor that is stored as two factors."""
    check(dtype in ("F32", "F16", "BF16"), f"factors of {dtype}")
    rank, reserved = struct.unpack_from("<II", data)
    rows, columns = shape[0], int(np.prod(shape[1:], dtype="u8"))
    numbers = widened(data[8:], dtype)
    check(reserved == 0 and len(numbers) == rank * (rows + columns), "length of factors")
    left, right = numbers[:rows * rank].reshape(rows, rank), numbers[rows * rank:].reshape(rank, columns)
    total = np.zeros((rows, columns), "<f4")
    for k in range(rank):
        total = total + np.outer(left[:, k], right[k])
    if dtype == "BF16":
        bits = total.view("<u4")
        return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2").tobytes()
    return total.astype("<f4" if dtype == "F32" else "<f2").tobytes()
