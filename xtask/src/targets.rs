//! Builds for targets without an operating system.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{cargo, find_program, output, program, run, say, target_dir, workspace};
use crate::steps::{Outcome, Steps, Stop};
use crate::system::install_packages;

/// Layers 0 to 2, which build for wasm32 and use no files, threads, clocks or processes.
pub(crate) const PORTABLE: [&str; 22] = [
    "apr-core",
    "apr-tensor",
    "apr-archive",
    "apr-format",
    "apr-graph",
    "apr-infer",
    "apr-inputs",
    "apr-gguf",
    "apr-numpy",
    "apr-onnx",
    "apr-pytorch",
    "apr-safetensors",
    "apr-registry",
    "apr-arch",
    "apr-blocks",
    "apr-view",
    "apr-tokenizer",
    "apr-source",
    "apr-quantize",
    "apr-llama",
    "apr-watermark",
    "apr-ops",
];

/// The part of them that needs no standard library.
pub(crate) const NO_STD: [&str; 3] = ["apr-core", "apr-tensor", "apr-format"];

/// Calls the portable crates from JavaScript.
const SMOKE: &str = "apr-wasm-smoke";

/// Embeds a model in a program, which a browser may run too.
const SINGLE_BINARY: &str = "single-binary";

/// What apr-format is built with, from nothing to everything: each must build for wasm32. The
/// second is what the example in one program asks for.
const FEATURES: [&str; 4] = [
    "",
    "compression,typed",
    "encryption,signing",
    "std,compression,zstd-encoder,encryption,signing,typed",
];

/// The profile of the workspace for what is shipped to a browser, whose size counts.
const PROFILE: &str = "small";

const WASM: Target = Target { triple: "wasm32-unknown-unknown", std: "std,panic_abort" };
const BARE: Target = Target { triple: "thumbv7em-none-eabihf", std: "core,alloc" };

struct Target {
    triple: &'static str,
    /// The parts of the standard library to build where rustup has none for the target.
    std: &'static str,
}

/// Debian's current compiler: it comes with the standard library's source, and from where the
/// machine gets its packages anyway.
const COMPILER: &str = "/usr/bin/rustc";

/// Installs what the targets need and the machine has not, so that later steps find it.
pub(crate) fn set_up(steps: &mut Steps) {
    steps.run(&format!("a compiler for {} and {}, and Node", BARE.triple, WASM.triple), || {
        [&BARE, &WASM].into_iter().try_for_each(find_or_install_std)?;
        find_or_install_node()
    });
}

/// What the gate builds for targets without an operating system.
pub(crate) fn without_a_system(steps: &mut Steps) {
    steps.run(&format!("no_std: {} for {}", NO_STD.join(", "), BARE.triple), || {
        check(&BARE, &NO_STD)
    });
    portable(steps);
    module(steps);
    steps.run(&format!("features of apr-format for {}", WASM.triple), || {
        FEATURES.iter().try_for_each(|features| {
            let mut command = cross("check", &WASM)?;
            run(command.args([
                "--package",
                "apr-format",
                "--lib",
                "--no-default-features",
                "--features",
                features,
            ]))
        })
    });
}

/// Everything for the web, the example too as it is shipped.
pub(crate) fn wasm(steps: &mut Steps) {
    portable(steps);
    module(steps);
    steps.run(&format!("wasm: {SINGLE_BINARY} as it is shipped"), || build(&WASM, SINGLE_BINARY));
}

fn portable(steps: &mut Steps) {
    steps.run(&format!("wasm: {} for {}", PORTABLE.join(", "), WASM.triple), || {
        check(&WASM, &PORTABLE)
    });
}

fn module(steps: &mut Steps) {
    let built = steps.run(&format!("wasm: {SMOKE} as it is shipped"), || build(&WASM, SMOKE));
    if built.is_some() {
        steps.run(
            "wasm: model files opened, converted, packed, encrypted and signed under Node; size",
            smoke,
        );
    }
}

/// Checks that the crates build without warnings whatever is left out of them.
pub(crate) fn features(steps: &mut Steps) {
    steps.run("clippy: crates with few of their features", || {
        [
            (&NO_STD[..], ""),
            (&["apr-view", "apr-quantize", "apr-watermark"], ""),
            (&["apr-quantize"], "std"),
            (&["apr"], "std"),
            (&["apr-ops"], "std"),
            (&["apr-ops"], "std,quantize"),
        ]
        .iter()
        .try_for_each(|(names, features)| {
            let mut command = cargo("clippy", ["--quiet", "--no-deps", "--lib"]);
            command.args(names.iter().flat_map(|name| ["--package", name]));
            run(command.args([
                "--no-default-features",
                "--features",
                features,
                "--",
                "-D",
                "warnings",
            ]))
        })
    });
}

/// Checks libraries without generating code, which is what takes time.
fn check(target: &Target, crates: &[&str]) -> Outcome {
    let mut command = cross("check", target)?;
    command.arg("--lib").args(crates.iter().flat_map(|name| ["--package", name]));
    run(&mut command)
}

fn build(target: &Target, name: &str) -> Outcome {
    // The module alone: a library beside it would have the standard library built a second time.
    let mut command = cross("rustc", target)?;
    run(command.args(["--lib", "--crate-type", "cdylib", "--package", name]))
}

/// A cargo command for a target. Warnings are errors, except in dependencies. All use one profile,
/// so that the standard library is built once for a target.
fn cross(subcommand: &str, target: &Target) -> Outcome<Command> {
    let mut command = cargo(subcommand, ["--target", target.triple, "--profile", PROFILE]);
    let flags =
        format!("CARGO_TARGET_{}_RUSTFLAGS", target.triple.to_uppercase().replace('-', "_"));
    command.env(flags, "-Dwarnings");
    if !has_std(target) {
        find_or_install_std(target)?;
        // `-Z` is for nightly compilers; this makes a stable one take it.
        command
            .env("RUSTC", COMPILER)
            .env("RUSTC_BOOTSTRAP", "1")
            .arg(format!("-Zbuild-std={}", target.std));
        // Without what prints a trace of calls, which these targets have not.
        command.arg("-Zbuild-std-features=");
        if let Some(linker) = find_program(is_linker) {
            command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
        }
    }
    // Apart from the rest: where the compiler is another one, each would throw away what the other
    // built.
    command.arg("--target-dir").arg(cross_target_dir());
    Ok(command)
}

fn cross_target_dir() -> PathBuf {
    target_dir().join("cross")
}

fn has_std(target: &Target) -> bool {
    let libraries =
        output(program("rustc").args(["--print", "target-libdir", "--target", target.triple]));
    libraries.is_some_and(|folder| Path::new(&folder).is_dir())
}

/// Finds a standard library for the target or what can build one, and installs the latter where
/// neither is there.
fn find_or_install_std(target: &Target) -> Outcome {
    let is_ready =
        || is_recent(COMPILER) && has_source(COMPILER) && find_program(is_linker).is_some();
    if has_std(target) || is_ready() {
        return Ok(());
    }
    let advice = format!("run `rustup target add {}`", target.triple);
    say(format_args!(
        "    the toolchain has no standard library for {}, so it is built",
        target.triple
    ));
    install_packages(&["rustc-web", "rust-web-src", "lld-19"], &advice)?;
    if is_ready() {
        return Ok(());
    }
    Err(Stop::skipped("the installed packages can't build the standard library", advice))
}

fn is_linker(name: &str) -> bool {
    name == "wasm-ld" || name.starts_with("wasm-ld-")
}

fn has_source(compiler: &str) -> bool {
    let sysroot = output(program(compiler).args(["--print", "sysroot"]));
    sysroot.is_some_and(|sysroot| {
        Path::new(&sysroot).join("lib/rustlib/src/rust/library/Cargo.toml").exists()
    })
}

/// Whether the compiler is new enough for this workspace.
fn is_recent(compiler: &str) -> bool {
    let minor = |version: &str| version.split('.').nth(1)?.parse::<u32>().ok();
    let Some(text) = output(program(compiler).arg("--version")) else { return false };
    let found = text.split(' ').nth(1).and_then(minor);
    found.is_some() && found >= minor(env!("CARGO_PKG_RUST_VERSION"))
}

fn find_or_install_node() -> Outcome {
    match find_program(|name| name == "node") {
        Some(_) => Ok(()),
        None => install_packages(&["nodejs"], "install Node 18 or later"),
    }
}

fn smoke() -> Outcome {
    find_or_install_node()?;
    let module =
        cross_target_dir().join(WASM.triple).join(PROFILE).join(SMOKE.replace('-', "_") + ".wasm");
    let script = workspace().join("crates").join(SMOKE).join("smoke.mjs");
    let mut node = program("node");
    node.arg(script)
        .arg(module)
        .args(["fixtures/tiny-llama/model.safetensors", "fixtures/valid/aprn"]);
    run(&mut node)
}
