"""Packs built binaries with what belongs to them: `package.py APR APR-QA --target T --out FOLDER --epoch SECONDS`.

The archive `apr-VERSION-TARGET.tar.gz`, or `.zip` for Windows, has the binaries, the documents of FOLDER/pages (manual
pages and completions), the licences of all crates in them, and a bill of materials in CycloneDX 1.6. Beside it are the
bill, and a line for it in SHA256SUMS. Nothing depends on when or where it is packed: two builds of the same bits make
the same archive.
"""

import argparse
import gzip
import hashlib
import io
import json
import re
import struct
import subprocess
import tarfile
import time
import uuid
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"]
#: The type of a section of symbols, SHT_SYMTAB.
SYMBOLS = 2
LICENCE = re.compile(r"(licen[cs]e|copying|notice|unlicense|copyright)", re.IGNORECASE)


def has_symbols(binary):
    """Whether an ELF file or a program for Windows has a table of symbols, a tenth of its size that nothing uses."""
    if binary.startswith(b"MZ"):
        (header,) = struct.unpack_from("<I", binary, 0x3C)
        _, count = struct.unpack_from("<II", binary, header + 12)
        return count > 0
    # Of 64 bits, little-endian: where its section headers are, how long each is, and how many there are.
    (at,), (length, count) = struct.unpack_from("<Q", binary, 0x28), struct.unpack_from("<HH", binary, 0x3A)
    kinds = (struct.unpack_from("<I", binary, at + length * section + 4) for section in range(count))
    return any(kind == SYMBOLS for (kind,) in kinds)


def metadata(target):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def crates_of(found):
    """The crates that the binaries consist of, and what each depends on: not what only builds or tests use."""
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    packages = {package["id"]: package for package in found["packages"]}
    by_name = {package["name"]: package["id"] for package in found["packages"] if package["source"] is None}
    root = by_name["apr-cli"]
    edges, rest = {}, [root, by_name["apr-qa"]]
    while rest:
        current = rest.pop()
        if current in edges:
            continue
        normal = [edge["pkg"] for edge in nodes[current]["deps"] if any(kind["kind"] is None for kind in edge["dep_kinds"])]
        edges[current] = normal
        rest.extend(normal)
    return root, packages, edges


def checksums():
    """SHA-256 of each crate's archive, by name and version."""
    found, name, version = {}, None, None
    for line in (ROOT / "Cargo.lock").read_text().splitlines():
        key, _, value = line.partition(" = ")
        if key == "name":
            name = value.strip('"')
        elif key == "version":
            version = value.strip('"')
        elif key == "checksum":
            found[name, version] = value.strip('"')
    return found


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def bill(root, packages, edges, epoch):
    sums = checksums()

    def component(package):
        entry = dict(type="library", name=package["name"], version=package["version"], purl=purl(package))
        entry["bom-ref"] = purl(package)
        if package["license"]:
            # Old manifests have a slash for "or".
            entry["licenses"] = [dict(expression=re.sub(r"\s*/\s*", " OR ", package["license"]))]
        if digest := sums.get((package["name"], package["version"])):
            entry["hashes"] = [dict(alg="SHA-256", content=digest)]
        if package["repository"]:
            entry["externalReferences"] = [dict(type="vcs", url=package["repository"])]
        return entry

    own = component(packages[root]) | dict(type="application", name="apr")
    others = sorted((packages[key] for key in edges if key != root), key=purl)
    dependencies = [
        dict(ref=purl(packages[key]), dependsOn=sorted({purl(packages[other]) for other in on})) for key, on in edges.items()
    ]
    document = dict(
        bomFormat="CycloneDX", specVersion="1.6", version=1,
        metadata=dict(timestamp=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)), component=own),
        components=[component(package) for package in others],
        dependencies=sorted(dependencies, key=lambda entry: entry["ref"]),
    )
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return document | dict(serialNumber=f"urn:uuid:{serial}")


def licences(root, packages, edges):
    """The texts of the licences, each once, with the crates that it is for."""
    texts, without = {}, []
    for key in edges:
        package = packages[key]
        if package["source"] is None:
            continue
        title = f"{package['name']} {package['version']} ({package['license']})"
        folder = Path(package["manifest_path"]).parent
        files = sorted(file for file in folder.iterdir() if file.is_file() and LICENCE.match(file.name))
        if not files:
            without.append(title)
        for file in files:
            text = file.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").strip()
            texts.setdefault(text, set()).add(title)
    parts = ["apr is made of the crates below, each under its licence."]
    if without:
        parts.append("Without a text of their own, under the licences that they name:\n\n" + "\n".join(sorted(without)))
    for text, titles in sorted(texts.items(), key=lambda entry: sorted(entry[1])):
        parts.append("\n".join(sorted(titles)) + "\n\n" + text)
    return ("\n\n" + "=" * 80 + "\n\n").join(parts) + "\n"


def pack(path, folder, files, epoch):
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=epoch) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name, content, mode in sorted(files):
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(content), mode, epoch
                archive.addfile(entry, io.BytesIO(content))


def pack_zip(path, folder, files, epoch):
    """For Windows, which opens such archives by itself."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content, mode in sorted(files):
            entry = zipfile.ZipInfo(f"{folder}/{name}", time.gmtime(epoch)[:6])
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, mode << 16
            archive.writestr(entry, content)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries", type=Path, nargs="+")
    parser.add_argument("--target", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    arguments = parser.parse_args()

    binaries = [(path.name, path.read_bytes(), 0o755) for path in arguments.binaries]
    for name, binary, _ in binaries:
        if has_symbols(binary):
            parser.error(f"{name} has symbols: it was not stripped")
    root, packages, edges = crates_of(metadata(arguments.target))
    name = f"apr-{packages[root]['version']}-{arguments.target}"
    document = json.dumps(bill(root, packages, edges, arguments.epoch), indent=1, sort_keys=True).encode() + b"\n"
    (arguments.out / f"{name}.cdx.json").write_bytes(document)
    files = [
        *binaries,
        ("apr.cdx.json", document, 0o644),
        ("THIRD-PARTY.txt", licences(root, packages, edges).encode(), 0o644),
    ]
    files += [(title, (ROOT / title).read_bytes(), 0o644) for title in DOCUMENTS]
    is_windows = "windows" in arguments.target
    if not is_windows:
        files.append(("Containerfile", (Path(__file__).parent / "Containerfile").read_bytes(), 0o644))
    pages = arguments.out / "pages"
    files += [
        (str(file.relative_to(pages)), file.read_bytes(), 0o644) for file in pages.rglob("*") if file.is_file()
    ]
    path = arguments.out / f"{name}.{'zip' if is_windows else 'tar.gz'}"
    (pack_zip if is_windows else pack)(path, name, files, arguments.epoch)

    made = sorted(file for end in ("tar.gz", "zip", "cdx.json") for file in arguments.out.glob(f"*.{end}"))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in made]
    (arguments.out / "SHA256SUMS").write_text("".join(lines))
    sizes = ", ".join(f"{name} {len(binary) / 1e6:.1f} MB" for name, binary, _ in binaries)
    print(f"{path.name}: {len(edges)} crates, {sizes}, archive {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
