"""Says as JSON what torch makes of a checkpoint.

    python3 load.py load FILE      names, dtypes, shapes and bytes, and which tensors share their bytes
    python3 load.py compare FILE   entries that torch.save would write differently
"""

import io
import json
import sys
import zipfile

import torch

NAMES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.uint8: "u8",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.bool: "bool",
    torch.complex64: "c64",
}


def data(tensor):
    flat = tensor.detach().contiguous().reshape(-1)
    return (flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat).numpy().tobytes()


def load(path):
    state = torch.load(path, weights_only=True)
    tensors = [[name, NAMES[t.dtype], list(t.shape), data(t).hex()] for name, t in state.items()]
    places = {}
    for name, tensor in state.items():
        if tensor.numel():
            places.setdefault(tensor.data_ptr(), []).append(name)
    return {"tensors": tensors, "shared": [names for names in places.values() if len(names) > 1]}


def entries(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        found = {}
        with open(path, "rb") as file:
            for info in archive.infolist():
                file.seek(info.header_offset)
                header = file.read(30)
                name_len, extra_len = header[26] + 256 * header[27], header[28] + 256 * header[29]
                start = info.header_offset + 30 + name_len + extra_len
                # Without the places, which differ by the entry that torch 1.13 does not write.
                found[info.filename] = [header[:28].hex(), start % 64, info.flag_bits, archive.read(info).hex()]
        return found


def compare(path):
    state = torch.load(path, weights_only=True)
    ours = entries(path)
    torch.save(state, path)
    theirs = entries(path)
    ignored = {"model/byteorder", "model/.data/serialization_id", "model/.format_version", "model/.storage_alignment"}
    names = (set(ours) | set(theirs)) - ignored
    return {"different": sorted(name for name in names if ours.get(name) != theirs.get(name))}


if __name__ == "__main__":
    print(json.dumps({"load": load, "compare": compare}[sys.argv[1]](sys.argv[2])))
