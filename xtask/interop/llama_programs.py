"""Builds llama.cpp's programs: `llama_programs.py FOLDER`, with the Python that runs it.

Its Python bindings, of which `xtask/requirements-llama.txt` says the version, carry the source. The programs are in
FOLDER/bin afterwards; those that are there already are kept.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ["llama-perplexity", "llama-imatrix"]
# Instruction sets of 2013: virtual machines announce more than they run.
OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF",
    "-DGGML_NATIVE=OFF", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON",
]


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def main():
    folder = Path(sys.argv[1])
    if all((folder / "bin" / name).exists() for name in PROGRAMS):
        return
    lines = (ROOT / "xtask/requirements-llama.txt").read_text(encoding="utf-8").splitlines()
    package = next(line for line in lines if line.startswith("llama-cpp-python=="))
    folder.mkdir(parents=True, exist_ok=True)
    pip("install", "cmake", "ninja", "scikit-build-core")
    pip("download", "--no-deps", "--no-build-isolation", "--no-binary", "llama-cpp-python", "--dest", str(folder), package)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    source = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    cmake = ["cmake", "-G", "Ninja", "-S", source, "-B", folder, *OPTIONS]
    # llama.cpp puts its programs into bin/ of the folder that it is built in, whatever else is asked for.
    subprocess.run(cmake, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder, *PROGRAMS], check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
