"""Builds llama.cpp's programs: `llama_programs.py FOLDER`, with the Python that runs it.

Its Python bindings, of which `xtask/requirements-llama.txt` says the version, carry the source. The programs are in
FOLDER/bin afterwards; those that are there already are kept. `llama_programs.py FOLDER --source` leaves the source
alone there, which has the converter.
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


def fetch_source(folder):
    """The source, in a folder below this one."""
    found = list(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    if found:
        return found[0]
    lines = (ROOT / "xtask/requirements-llama.txt").read_text(encoding="utf-8").splitlines()
    package = next(line for line in lines if line.startswith("llama-cpp-python=="))
    folder.mkdir(parents=True, exist_ok=True)
    pip("install", "cmake", "ninja", "scikit-build-core")
    pip("download", "--no-deps", "--no-build-isolation", "--no-binary", "llama-cpp-python", "--dest", str(folder), package)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))


def main():
    folder = Path(sys.argv[1])
    # pip asks the package for its requirements, and the package asks for CMake.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if "--source" in sys.argv[2:]:
        fetch_source(folder)
        return
    if all((folder / "bin" / name).exists() for name in PROGRAMS):
        return
    source = fetch_source(folder)
    cmake = ["cmake", "-G", "Ninja", "-S", source, "-B", folder, *OPTIONS]
    # llama.cpp puts its programs into bin/ of the folder that it is built in, whatever else is asked for.
    subprocess.run(cmake, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder, *PROGRAMS], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
