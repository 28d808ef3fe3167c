//! Builds for the web, for a bare processor, without the standard library, and with few features.
//!
//! The gate runs one of them, the module for the web. The others break rarely and have most
//! dependencies compiled once more, so they are a task of their own, and part of `interop`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{
    cargo, find_program, output, program, run as run_program, say, target_dir, workspace,
};
use crate::steps::{Outcome, Steps, Stop};
use crate::system::install_packages;

/// Layers 0 to 2, which build for wasm32 and use no files, threads, clocks or processes.
pub(crate) const PORTABLE: [&str; 45] = [
    "apr-core",
    "apr-tensor",
    "apr-archive",
    "apr-crypto",
    "apr-format",
    "apr-graph",
    "apr-infer",
    "apr-inputs",
    "apr-gguf",
    "apr-flax",
    "apr-orbax",
    "apr-bin",
    "apr-keras",
    "apr-numpy",
    "apr-onnx",
    "apr-pytorch",
    "apr-tensorflow",
    "apr-coreml",
    "apr-skeleton",
    "apr-lower",
    "apr-runtimes",
    "apr-tflite",
    "apr-torchscript",
    "apr-safetensors",
    "apr-registry",
    "apr-arch",
    "apr-blocks",
    "apr-view",
    "apr-tokenizer",
    "apr-source",
    "apr-quantize",
    "apr-lora",
    "apr-lowrank",
    "apr-merge",
    "apr-llama",
    "apr-watermark",
    "apr-bind",
    "apr-scan",
    "apr-ops",
    "apr-run",
    "apr-trace",
    "apr-quality",
    "apr-importance",
    "apr-distill",
    "apr-prune",
];

/// The portable crates that do not require the standard library.
const NO_STD: [&str; 4] = ["apr-core", "apr-tensor", "apr-crypto", "apr-format"];

/// Calls the portable crates from JavaScript.
const SMOKE: &str = "apr-wasm-smoke";

/// Crate that embeds a model in a program, which can also run in a browser.
const SINGLE_BINARY: &str = "single-binary";

/// Feature sets of apr-format, from none to all. Each must build for wasm32.
const FEATURES: [&str; 4] = [
    "",
    "compression,typed",
    "encryption,signing",
    "std,compression,zstd-encoder,encryption,signing,typed",
];

/// Cargo profiles: the shipped browser build is small, and the gate's build is fast to compile.
const SHIPPED: &str = "small";
const PAGE: &str = "web";
const QUICK: &str = "quick";

const WASM: Target = Target { triple: "wasm32-unknown-unknown", std: "std,panic_abort" };
const BARE: Target = Target { triple: "thumbv7em-none-eabihf", std: "core,alloc" };

struct Target {
    triple: &'static str,
    /// Parts of the standard library to build if rustup has none for the target.
    std: &'static str,
}

/// Debian's current compiler.
///
/// Its package includes the source of the standard library, and is available wherever the machine
/// gets its packages.
const COMPILER: &str = "/usr/bin/rustc";

/// Installs what the web needs and the machine has not, so that later steps find it.
pub(crate) fn set_up(steps: &mut Steps) {
    steps.run(&format!("a compiler for {}, and Node", WASM.triple), || {
        find_or_install_std(&WASM)?;
        find_or_install_node()
    });
}

/// Builds the web module for the gate, with a fast profile.
pub(crate) fn web(steps: &mut Steps) {
    module(steps, QUICK);
}

/// Builds the portable crates in all supported configurations.
///
/// These have few features, no standard library, or no operating system, or are for the web.
///
/// The web build is the one that is shipped.
pub(crate) fn run(steps: &mut Steps) {
    set_up(steps);
    features(steps);
    no_std(steps);
    steps.run(&format!("no_std: {} for {}", NO_STD.join(", "), BARE.triple), || {
        check(&BARE, &NO_STD)
    });
    steps.run(&format!("wasm: {} for {}", PORTABLE.join(", "), WASM.triple), || {
        check(&WASM, &PORTABLE)
    });
    module(steps, SHIPPED);
    steps.run(&format!("wasm: {SINGLE_BINARY} as it is shipped"), || {
        build(&WASM, SINGLE_BINARY, SHIPPED)
    });
    steps.run(&format!("features of apr-format for {}", WASM.triple), || {
        FEATURES.iter().try_for_each(|features| check_format(features))
    });
}

fn module(steps: &mut Steps, profile: &str) {
    let built =
        steps.run(&format!("wasm: {SMOKE}, profile {profile}"), || build(&WASM, SMOKE, profile));
    if built.is_some() {
        steps.run(
            "wasm: model files opened, converted, packed, encrypted and signed under Node",
            || smoke(profile),
        );
    }
}

/// Checks that crates build without warnings with only core and alloc.
///
/// It uses their default features, and fewer.
fn no_std(steps: &mut Steps) {
    steps.run(&format!("no_std: {} without std", NO_STD.join(", ")), || {
        let (host, sysroot) = sysroot_without_std()?;
        let command = |names: &[&str], features: &[&str]| {
            let mut command = few_features(names);
            // It is for the target alone: programs that run while building do use std.
            command.args(["--target", &host]).args(features);
            command.env("CARGO_ENCODED_RUSTFLAGS", format!("--sysroot\x1f{}", sysroot.display()));
            command.args(["--", "-D", "warnings"]);
            command
        };
        if output(&mut command(&["apr-core"], &["--features", "std"])).is_some() {
            return Err(Stop::failed("a crate that asks for std builds, so nothing is shown"));
        }

        let clippy = |names: &[&str], features: &[&str]| run_program(&mut command(names, features));
        clippy(&NO_STD, &[])?;
        clippy(&NO_STD, &["--no-default-features"])?;
        ["compression", "encryption", "signing"].into_iter().try_for_each(|feature| {
            clippy(&["apr-format"], &["--no-default-features", "--features", feature])
        })
    });
}

/// Copies the compiler's libraries for this machine, without std and the libraries that need it.
///
/// A crate or dependency that uses std then fails to build.
fn sysroot_without_std() -> Outcome<(String, PathBuf)> {
    let unknown = || Stop::failed("rustc does not say what it compiles for");
    let about = output(program("rustc").arg("-vV")).ok_or_else(unknown)?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).ok_or_else(unknown)?;
    let libraries =
        output(program("rustc").args(["--print", "target-libdir"])).ok_or_else(unknown)?;
    let sysroot = cross_target_dir().join("without-std");
    let copies = sysroot.join("lib/rustlib").join(host).join("lib");

    // Libraries of an earlier compiler would be taken too.
    if copies.exists() {
        fs::remove_dir_all(&copies).map_err(Stop::failed)?;
    }

    fs::create_dir_all(&copies).map_err(Stop::failed)?;
    for entry in fs::read_dir(libraries).map_err(Stop::failed)? {
        let path = entry.map_err(Stop::failed)?.path();
        let Some(name) = path.file_name() else { continue };
        let is_wanted = ["libcore-", "liballoc-", "libcompiler_builtins-"]
            .iter()
            .any(|start| name.to_string_lossy().starts_with(start));
        if is_wanted {
            fs::copy(&path, copies.join(name)).map_err(Stop::failed)?;
        }
    }

    Ok((host.to_string(), sysroot))
}

/// Checks that the crates build without warnings whatever is left out of them.
fn features(steps: &mut Steps) {
    steps.run("clippy: crates with few of their features", || {
        [
            (&["apr-view", "apr-quantize", "apr-merge", "apr-watermark"][..], ""),
            (&["apr-quantize"], "std"),
            (&["apr-registry"], "std"),
            (&["apr-registry"], "std,gguf"),
            (&["apr-registry"], "std,onnx"),
            (
                &["apr-registry"],
                "std,bin,coreml,flax,keras,numpy,openvino,orbax,ort,pytorch,tensorflow,tflite,\
                 trees",
            ),
            (&["apr"], "std"),
            (&["apr"], "native"),
            (&["apr"], "native,compression,ndarray"),
            (&["apr"], "native,encryption,signing"),
            (&["apr"], "native,formats,typed"),
            (&["apr"], "native,ops"),
            (&["apr"], "hub"),
            (&["apr-ops"], "std"),
            (&["apr-ops"], "std,quantize"),
            (&["apr-run"], "std"),
            (&["apr-trace"], "std"),
            (&["apr-quality"], "std"),
            (&["apr-importance"], "std"),
            (&["apr-distill"], "std"),
            (&["apr-prune"], "std"),
            (&["apr-lora"], ""),
            (&["apr-lowrank"], "std"),
            (&["apr-cli"], ""),
            (&["apr-cli"], "infer,hub"),
        ]
        .iter()
        .try_for_each(|(names, features)| {
            let mut command = few_features(names);
            command.args(["--no-default-features", "--features", features]);
            run_program(command.args(["--", "-D", "warnings"]))
        })
    });
}

fn few_features(names: &[&str]) -> Command {
    let mut command = cargo("clippy", ["--quiet", "--no-deps", "--lib"]);
    command.args(names.iter().flat_map(|name| ["--package", name]));
    command
}

/// Checks libraries without generating code, which is what takes time.
fn check(target: &Target, crates: &[&str]) -> Outcome {
    let mut command = cross("check", target, SHIPPED)?;
    command.arg("--lib").args(crates.iter().flat_map(|name| ["--package", name]));
    run_program(&mut command)
}

fn check_format(features: &str) -> Outcome {
    let mut command = cross("check", &WASM, SHIPPED)?;
    command.args(["--package", "apr-format", "--lib", "--no-default-features"]);
    run_program(command.args(["--features", features]))
}

fn build(target: &Target, name: &str, profile: &str) -> Outcome {
    // The module alone: a library beside it would have the standard library built a second time.
    let mut command = cross("rustc", target, profile)?;
    run_program(command.args(["--lib", "--crate-type", "cdylib", "--package", name]))
}

/// Builds a library as the module of a page, with these of its features and no others, and returns
/// where it is.
pub(crate) fn web_module(name: &str, features: &str) -> Outcome<PathBuf> {
    let mut command = cross("rustc", &WASM, PAGE)?;
    // Every browser of the last years has vectors, and a source of random numbers.
    let flags = "-Dwarnings -Ctarget-feature=+simd128 --cfg getrandom_backend=\"wasm_js\"";
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", flags);
    command.args(["--lib", "--crate-type", "cdylib", "--package", name]);
    run_program(command.args(["--no-default-features", "--features", features]))?;
    Ok(cross_target_dir().join(WASM.triple).join(PAGE).join(name.replace('-', "_") + ".wasm"))
}

/// A cargo command for a target. Warnings are errors, except in dependencies. Commands of one
/// profile share the standard library that is built.
fn cross(subcommand: &str, target: &Target, profile: &str) -> Outcome<Command> {
    let mut command = cargo(subcommand, ["--target", target.triple, "--profile", profile]);
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

/// Finds a standard library for the target, or a compiler that can build one.
///
/// Installs that compiler if neither is present.
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

/// Returns `true` if the compiler is recent enough for this workspace.
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

/// Has Node call the module; the size of one that is shipped has a limit.
fn smoke(profile: &str) -> Outcome {
    find_or_install_node()?;
    let module =
        cross_target_dir().join(WASM.triple).join(profile).join(SMOKE.replace('-', "_") + ".wasm");
    let script = workspace().join("crates/development").join(SMOKE).join("smoke.mjs");
    let mut node = program("node");
    node.arg(script)
        .arg(module)
        .args(["fixtures/tiny-llama/model.safetensors", "fixtures/valid/aprn"]);
    if profile == SHIPPED {
        node.arg("--as-shipped");
    }
    run_program(&mut node)
}
