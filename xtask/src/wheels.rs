//! The packages for Python: a wheel for each processor, of CPython 3.9 and later, that any Linux
//! since 2014 takes.
//!
//! Zig links against the glibc of that year, whatever this machine has, and for other processors.

use std::fs;
use std::path::{Path, PathBuf};

use crate::dist::{ZIG, commit, epoch, install_std, without_places};
use crate::process::{output, program, run as run_program, say, target_dir, workspace};
use crate::steps::{Outcome, Steps, Stop};

/// Build tools for wheels on PyPI: maturin, and the compiler and linker that it calls.
const TOOLS: [&str; 2] = ["maturin==1.16.0", ZIG];

const TRIPLES: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// glibc 2.17, of CentOS 7.
const COMPATIBILITY: &str = "manylinux2014";

/// Script that tests a wheel: the module, its dependency, and a model.
const TRIAL: &str = "\
import apr
model = apr.open('fixtures/tiny-llama')
assert len(model) == 21
assert model['model.norm.weight'].dequantize().shape == (128,)
assert ''.join(model.generate('12+34=')).strip() == '46'
print(apr.__version__)
";

/// Builds wheels into `target/packages`, for the given processors or for all.
pub(crate) fn run(steps: &mut Steps, names: &[&str]) -> Result<(), String> {
    let triples = match names.is_empty() {
        true => TRIPLES.to_vec(),
        false => names
            .iter()
            .map(|name| {
                let found = TRIPLES.into_iter().find(|triple| triple.starts_with(name));
                found.ok_or_else(|| format!("cargo xtask wheels: unknown processor {name}"))
            })
            .collect::<Result<Vec<_>, _>>()?,
    };
    let Some(tools) = steps.run("maturin and Zig", find_or_install_tools) else { return Ok(()) };
    for triple in triples {
        let wheel = steps.run(&format!("the wheel for {triple}"), || build(triple, &tools));
        if let Some(wheel) = wheel {
            steps.run(&format!("the wheel for {triple} is installed and used"), || {
                try_out(triple, &wheel)
            });
        }
    }
    Ok(())
}

/// The folder of programs of an environment that has both.
fn find_or_install_tools() -> Outcome<PathBuf> {
    let folder = target_dir().join("tools/wheels");
    let python = folder.join("bin/python");
    let are_there = output(program(&python).args(["-c", "import maturin, ziglang; print(1)"]));
    if are_there.is_none() {
        run_program(program("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let mut pip = program(&python);
        run_program(pip.args(["-m", "pip", "install", "--quiet"]).args(TOOLS))?;
    }
    Ok(folder.join("bin"))
}

fn build(triple: &str, tools: &Path) -> Outcome<PathBuf> {
    install_std(triple)?;
    let packages = target_dir().join("packages");
    fs::create_dir_all(&packages).map_err(Stop::failed)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        std::iter::once(tools.to_path_buf()).chain(std::env::split_paths(&path)),
    );
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", triple.to_uppercase().replace('-', "_"));
    let mut command = program(tools.join("maturin"));
    command
        .args(["build", "--locked", "--zig", "--profile", "dist", "--target", triple])
        .args(["--compatibility", COMPATIBILITY, "--manifest-path", "python/Cargo.toml"])
        .arg("--out")
        .arg(&packages)
        .arg("--target-dir")
        .arg(target_dir().join("dist-build"))
        .env("PATH", path.map_err(Stop::failed)?)
        .env(flags, without_places()?)
        .env("SOURCE_DATE_EPOCH", epoch()?);
    if let Some(commit) = commit() {
        command.env("APR_COMMIT", commit);
    }
    run_program(&mut command)?;

    let processor = triple.split('-').next().unwrap_or_default();
    let names = fs::read_dir(&packages).map_err(Stop::failed)?.flatten().map(|file| file.path());
    let ending = format!("_{processor}.whl");
    names
        .filter(|path| path.to_string_lossy().ends_with(&ending))
        .max_by_key(|path| fs::metadata(path).and_then(|file| file.modified()).ok())
        .ok_or_else(|| Stop::failed(format!("maturin wrote no wheel for {processor}")))
}

/// Installs the wheel into an environment of its own, and uses the module and the command.
fn try_out(triple: &str, wheel: &Path) -> Outcome {
    if !triple.starts_with(std::env::consts::ARCH) {
        return Err(Stop::skipped("no Python for that processor", "try it there"));
    }
    let folder = target_dir().join("tools/wheel-tried");
    run_program(program("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let python = folder.join("bin/python");
    run_program(program(&python).args(["-m", "pip", "install", "--quiet"]).arg(wheel))?;
    run_program(program(&python).args(["-c", TRIAL]))?;
    run_program(program(folder.join("bin/apr")).args(["validate", "fixtures/tiny-llama"]))?;
    say(format_args!("    {}", workspace().join(wheel).display()));
    Ok(())
}
