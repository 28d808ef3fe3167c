"""Prints what a binary consists of: sections, and crates by the bytes of their symbols.

    CARGO_PROFILE_DIST_STRIP=none cargo build --profile dist -p apr-cli
    python xtask/bench/binary.py target/dist/apr

What is generic is counted with the crate that defines it: code of `core` and `alloc` is that of
their sorts, maps and iterators for types of all crates. Takes the programs `nm` and `size`.
"""

import re
import subprocess
import sys
from collections import Counter

#: What has less is summed up.
SHOWN = 100_000

#: Crates that are parts of one.
PARTS = {
    "standard library": r"core|alloc|std|hashbrown|compiler_builtins|gimli|addr2line",
    "TLS and HTTP": r"graviola|rustls\w*|webpki|ureq\w*|httparse|pki_types",
    "command line": r"apr_cli|clap\w*|anstyle\w*|anstream|indicatif|console",
    "JSON, TOML, YAML": r"serde\w*|toml\w*|winnow|granit_parser|ryu|itoa",
    "tokenizers, regular expressions": r"tokenizers|regex\w*|aho_corasick|apr_tokenizer|bstr",
    "pictures and sounds": r"image\w*|zune\w*|png|symphonia\w*|fdeflate|apr_inputs",
    "chat templates": r"minijinja",
    "line editor and screens": r"rustyline|apr_tui|ratatui\w*|crossterm\w*",
    "compression": r"structured_zstd|miniz_oxide|lz4_flex|zlib_rs|flate2|snap|adler2",
    "linear algebra": r"faer\w*|gemm\w*|nano_gemm\w*|pulp",
    "apr: engine": r"apr_infer|apr_run",
    "apr: dtypes, blocks, quantization": r"apr_tensor|apr_quantize|apr_core",
    "apr: graphs and families": r"apr_graph|apr_arch|apr_blocks|apr_lower|apr_skeleton|apr_trace",
    "apr: jobs": r"apr_ops|apr_merge|apr_lora|apr_lowrank|apr_prune|apr_distill|apr_importance"
    r"|apr_quality|apr_scan|apr_bind|apr_source",
    "apr: hub": r"apr_hub",
    "apr: formats": r"apr_\w+",
}


def owner(symbol):
    """The crate whose name comes first in a demangled symbol."""
    found = re.search(r"[a-z_][a-z0-9_]*(?=::)", symbol)
    return found.group() if found else "data and C"


def part(crate):
    return next((name for name, crates in PARTS.items() if re.fullmatch(crates, crate)), crate)


def main():
    binary = sys.argv[1]
    listed = subprocess.run(["size", "-A", binary], check=True, capture_output=True, text=True)
    sections = [line.split() for line in listed.stdout.splitlines() if line.startswith(".")]
    sections = [(int(size), name) for name, size, *_ in sections if not name.startswith(".debug")]
    print("| section | MB |\n|---|---|")
    for size, name in sorted(sections, reverse=True):
        if size >= SHOWN:
            print(f"| `{name}` | {size / 1e6:.1f} |")

    command = ["nm", "--print-size", "--demangle", "--defined-only", binary]
    listed = subprocess.run(command, check=True, capture_output=True, text=True)
    sizes = Counter()
    for line in listed.stdout.splitlines():
        fields = line.split(" ", 3)
        if len(fields) == 4 and re.fullmatch("[0-9a-f]+", fields[1]):
            sizes[part(owner(fields[3]))] += int(fields[1], 16)
    if not sizes:
        sys.exit(f"{binary} has no symbols: build it with CARGO_PROFILE_DIST_STRIP=none")
    rest = sum(size for size in sizes.values() if size < SHOWN)
    print("\n| symbols of | MB |\n|---|---|")
    for name, size in sizes.most_common():
        if size >= SHOWN:
            print(f"| {name} | {size / 1e6:.1f} |")
    print(f"| {sum(1 for size in sizes.values() if size < SHOWN)} others | {rest / 1e6:.1f} |")


main()
