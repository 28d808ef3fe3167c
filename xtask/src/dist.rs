//! What people download: static binaries for Linux, and for Windows, in archives with the page,
//! manual pages, completions, the licences of all that is in them, a bill of materials and sums.
//!
//! The standard library for musl and what links it come with the toolchain. BLAKE3's vectors and
//! musl's allocator are in C and assembly, which Zig compiles for any processor. For Windows,
//! mingw-w64 compiles and links, and Wine runs what was built. For macOS, Zig does both; as nothing
//! runs the binary elsewhere, it is built when it is named, and not packed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{
    cargo, find_program, output, program, run as run_program, say, target_dir, workspace,
};
use crate::steps::{Outcome, Steps, Stop};
use crate::web::{self, Wish};

/// A system that the binary is built for.
struct Platform {
    triple: &'static str,
    toolchain: Toolchain,
    /// Program that runs the binaries on other systems and processors, and its Debian package.
    emulator: Option<(&'static str, &'static str)>,
    /// The names of the binaries: the command, and the one that judges it.
    binaries: [&'static str; 2],
}

/// C compiler and linker.
enum Toolchain {
    /// Zig, by its name for the platform, and the linker of the toolchain.
    Static(&'static str),
    /// Zig, by its name for the platform.
    Zig(&'static str),
    /// mingw-w64, which cargo and the crate `cc` look for by themselves.
    MinGw,
}

const PLATFORMS: [Platform; 4] = [
    Platform {
        triple: "x86_64-unknown-linux-musl",
        toolchain: Toolchain::Static("x86_64-linux-musl"),
        emulator: Some(("qemu-x86_64-static", "qemu-user-static")),
        binaries: ["apr", "apr-qa"],
    },
    Platform {
        triple: "aarch64-unknown-linux-musl",
        toolchain: Toolchain::Static("aarch64-linux-musl"),
        emulator: Some(("qemu-aarch64-static", "qemu-user-static")),
        binaries: ["apr", "apr-qa"],
    },
    Platform {
        triple: "x86_64-pc-windows-gnu",
        toolchain: Toolchain::MinGw,
        emulator: Some(("wine", "wine")),
        binaries: ["apr.exe", "apr-qa.exe"],
    },
    Platform {
        triple: "aarch64-apple-darwin",
        toolchain: Toolchain::Zig("aarch64-macos"),
        emulator: None,
        binaries: ["apr", "apr-qa"],
    },
];

/// The compiler for C, on PyPI.
pub(crate) const ZIG: &str = "ziglang==0.15.2";

/// The compiler and linker for Windows.
const MINGW: &str = "x86_64-w64-mingw32-gcc";

/// The linker of the toolchain, which keeps one of functions that are the same, and relocations in
/// their short form.
const STATIC: &str = "-Clinker=rust-lld -Clink-self-contained=yes -Clink-arg=--icf=all \
                      -Clink-arg=--pack-dyn-relocs=relr";

/// Wrapper script for the C compiler. Zig has its own names of targets and rejects others.
const COMPILER: &str = "\
#!/bin/sh
for word do
  shift
  case $word in
    --target=*) ;;
    *) set -- \"$@\" \"$word\" ;;
  esac
done
exec 'PYTHON' -m ziglang cc -target TARGET \"$@\"
";

/// Shells that have completions, and the names of the files that they look for.
const SHELLS: [(&str, &str); 4] =
    [("bash", "apr"), ("zsh", "_apr"), ("fish", "apr.fish"), ("powershell", "apr.ps1")];

/// Builds archives into `target/packages`, for the given platforms or for all.
///
/// `--test` runs the command line tests with each binary. `--twice` builds each binary a second
/// time and compares both.
pub(crate) fn run(steps: &mut Steps, arguments: &[&str]) -> Result<(), String> {
    let (options, names): (Vec<&str>, Vec<&str>) =
        arguments.iter().partition(|word| word.starts_with("--"));
    if let Some(unknown) = options.iter().find(|option| !["--twice", "--test"].contains(option)) {
        return Err(format!("cargo xtask dist: unknown option {unknown}"));
    }
    let platforms = match names.is_empty() {
        true => PLATFORMS.iter().filter(|platform| platform.emulator.is_some()).collect(),
        false => names
            .iter()
            .map(|name| {
                let found = PLATFORMS.iter().find(|platform| platform.triple.starts_with(name));
                found.ok_or_else(|| format!("cargo xtask dist: unknown platform {name}"))
            })
            .collect::<Result<Vec<_>, _>>()?,
    };

    web::run(steps, Wish::Build);
    let packages = target_dir().join("packages");
    let needs_zig =
        platforms.iter().any(|platform| !matches!(platform.toolchain, Toolchain::MinGw));
    let zig = match needs_zig {
        true => steps.run("a compiler for C: Zig", find_or_install_zig),
        false => Some(PathBuf::new()),
    };
    let Some(zig) = zig else { return Ok(()) };
    for platform in platforms {
        let triple = platform.triple;
        let built = steps.run(&format!("apr and apr-qa for {triple}"), || {
            install_std(triple)?;
            build(platform, &zig, &target_dir().join("dist-build"))
        });
        let Some(binaries) = built else { continue };
        let binary = &binaries[0];
        if platform.emulator.is_none() {
            say(format_args!("    {}: linked; not run, and not packed", binary.display()));
            continue;
        }
        if matches!(platform.toolchain, Toolchain::MinGw) {
            steps.run("a library that old versions of Wine lack", || stand_in(binary));
        }
        steps.run(&format!("the binaries for {triple} run"), || try_out(platform, &binaries));
        steps.run(&format!("the archive for {triple}"), || package(platform, &binaries, &packages));
        if options.contains(&"--test") {
            steps.run(&format!("the tests of the command line, of {triple}"), || {
                test(platform, binary)
            });
        }
        if options.contains(&"--twice") {
            steps.run(&format!("a second build for {triple} has the same bits"), || {
                let folder = target_dir().join("dist-again");
                let again = build(platform, &zig, &folder)?;
                let read = |path: &Path| fs::read(path).map_err(Stop::failed);
                let mut differing = Vec::new();
                for (binary, again) in binaries.iter().zip(&again) {
                    if read(binary)? != read(again)? {
                        differing.push(binary.display().to_string());
                    }
                }
                fs::remove_dir_all(folder).map_err(Stop::failed)?;
                match differing.is_empty() {
                    true => Ok(()),
                    false => Err(Stop::failed(format!("differs: {}", differing.join(", ")))),
                }
            });
        }
    }
    Ok(())
}

/// The Python that has Zig.
fn find_or_install_zig() -> Outcome<PathBuf> {
    let folder = target_dir().join("tools/zig");
    let python = folder.join("bin/python");
    let is_there = output(program(&python).args(["-m", "ziglang", "version"])).is_some();
    if !is_there {
        run_program(program("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        run_program(program(&python).args(["-m", "pip", "install", "--quiet", ZIG]))?;
    }
    Ok(python)
}

/// Has the toolchain bring a standard library for the platform.
pub(crate) fn install_std(triple: &str) -> Outcome {
    let advice = format!("run `rustup target add {triple}`");
    let libraries = output(program("rustc").args(["--print", "target-libdir", "--target", triple]));
    if libraries.is_some_and(|folder| Path::new(&folder).is_dir()) {
        return Ok(());
    }
    run_program(program("rustup").args(["target", "add", triple]))
        .map_err(|_| Stop::skipped(format!("no standard library for {triple}"), advice))
}

/// Builds the binaries without build paths and times in them.
fn build(platform: &Platform, zig: &Path, folder: &Path) -> Outcome<[PathBuf; 2]> {
    let Platform { triple, .. } = platform;
    fs::create_dir_all(folder).map_err(Stop::failed)?;
    let (compiler, linking) = match platform.toolchain {
        Toolchain::Static(name) => (zig_as_compiler(name, zig, folder)?, STATIC.to_owned()),
        Toolchain::Zig(name) => {
            let compiler = zig_as_compiler(name, zig, folder)?;
            let libraries = workspace().join("xtask/dist/macos");
            let libraries = libraries.display();
            // Zig signs what it links, and a program that is changed later does not run. Its -s
            // leaves out what debuggers want, and keeps the names of functions.
            let linking = format!(
                "-Clinker={} -Clink-arg=-s -Clink-arg=-F{libraries} -Clink-arg=-L{libraries}",
                compiler.display()
            );
            (compiler, linking)
        }
        Toolchain::MinGw => (find_mingw()?, "-Clink-arg=-Wl,--no-insert-timestamp".to_owned()),
    };

    // Cargo forgets what a profile says of symbols where it has settings for the package.
    let strip = if matches!(platform.toolchain, Toolchain::Zig(_)) { "none" } else { "symbols" };
    let flags = format!("{linking} -Cstrip={strip} {}", without_places()?);
    let variable = triple.replace('-', "_");
    // One after the other: each with its own features of the libraries that both consist of.
    for (package, binary) in [("apr-cli", "apr"), ("apr-qa", "apr-qa")] {
        let mut command =
            cargo("build", ["--profile", "dist", "--package", package, "--bin", binary]);
        command
            .args(["--target", triple])
            .arg("--target-dir")
            .arg(folder)
            .env(format!("CARGO_TARGET_{}_RUSTFLAGS", variable.to_uppercase()), &flags)
            .env(format!("CC_{variable}"), &compiler)
            .env("SOURCE_DATE_EPOCH", epoch()?);
        if let Some(commit) = commit() {
            command.env("APR_COMMIT", commit);
        }
        run_program(&mut command)?;
    }
    let built = folder.join(triple).join("dist");
    Ok(platform.binaries.map(|binary| built.join(binary)))
}

/// Returns compiler flags that remove the paths of the sources from the binary.
pub(crate) fn without_places() -> Outcome<String> {
    let home = std::env::var("CARGO_HOME").ok().map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let home = home.ok_or_else(|| Stop::failed("neither CARGO_HOME nor HOME is set"))?;
    Ok(format!(
        "--remap-path-prefix={}=cargo --remap-path-prefix={}=apr",
        home.display(),
        workspace().display()
    ))
}

/// Zig under the name of a compiler for C.
fn zig_as_compiler(name: &str, zig: &Path, folder: &Path) -> Outcome<PathBuf> {
    let compiler = folder.join(format!("cc-{name}"));
    let script = COMPILER.replace("PYTHON", &zig.display().to_string()).replace("TARGET", name);
    fs::write(&compiler, script).map_err(Stop::failed)?;
    make_executable(&compiler).map_err(Stop::failed)?;
    Ok(compiler)
}

#[cfg(unix)]
fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// The script is for a shell, which takes any file.
#[cfg(not(unix))]
fn make_executable(_path: &Path) -> std::io::Result<()> {
    Ok(())
}

fn find_mingw() -> Outcome<PathBuf> {
    find_program(|name| name == MINGW)
        .ok_or_else(|| Stop::skipped(format!("there is no {MINGW}"), "install mingw-w64"))
}

/// Returns the commit that is built, with the suffix `, changed` if tracked files differ from it.
pub(crate) fn commit() -> Option<String> {
    let changes = output(program("git").args(["status", "--porcelain", "--untracked-files=no"]))?;
    let commit = output(program("git").args(["rev-parse", "--short=12", "HEAD"]))?;
    Some(if changes.is_empty() { commit } else { format!("{commit}, changed") })
}

/// Returns the time of the commit in seconds since 1970.
pub(crate) fn epoch() -> Outcome<String> {
    output(program("git").args(["log", "-1", "--format=%ct"]))
        .ok_or_else(|| Stop::failed("git does not say when the commit was made"))
}

/// The program that runs the binary: itself, or an emulator.
fn runner(platform: &Platform, binary: &Path) -> Outcome<std::process::Command> {
    let parts = [std::env::consts::ARCH, std::env::consts::OS];
    if parts.iter().all(|part| platform.triple.contains(part)) {
        return Ok(program(binary));
    }
    let (emulator, package) = platform.emulator.unwrap_or_default();
    let emulator = find_program(|name| name == emulator).ok_or_else(|| {
        Stop::skipped(format!("there is no {emulator}"), format!("install {package}"))
    })?;
    let mut command = program(emulator);
    command.arg(binary);
    Ok(command)
}

/// Puts a library beside the binary that Windows has, and Wine from version 9 on, for older ones.
fn stand_in(binary: &Path) -> Outcome {
    let compiler = find_mingw()?;
    let library = binary.with_file_name("bcryptprimitives.dll");
    let mut command = program(compiler);
    command.args(["-shared", "-O2", "xtask/dist/bcryptprimitives.c", "-ladvapi32", "-o"]);
    run_program(command.arg(library))
}

/// Lets the command look at a model, check it and convert it, and the other binary judge it.
fn try_out(platform: &Platform, [binary, judge]: &[PathBuf; 2]) -> Outcome {
    let copy = target_dir().join("packages/tried.apr");
    fs::create_dir_all(target_dir().join("packages")).map_err(Stop::failed)?;
    let copy = copy.to_string_lossy();
    for line in [
        &["version"][..],
        &["validate", "fixtures/tiny-llama"],
        &["convert", "fixtures/tiny-llama", "-o", &copy, "-f"],
        &["run", &copy, "--prompt", "12+34=", "--max-tokens", "4"],
    ] {
        run_program(runner(platform, binary)?.args(line))?;
    }
    run_program(runner(platform, judge)?.args(["verify", "--category", "physics", &copy]))?;
    fs::remove_file(&*copy).map_err(Stop::failed)
}

/// Runs the tests of the command line with the binary instead of one that is built for them.
fn test(platform: &Platform, binary: &Path) -> Outcome {
    if matches!(platform.toolchain, Toolchain::MinGw) {
        return Err(Stop::skipped(
            "the tests take a shell and paths of Linux",
            "see docs/windows.md",
        ));
    }
    let direct = runner(platform, binary)?;
    let words: Vec<_> = std::iter::once(direct.get_program()).chain(direct.get_args()).collect();
    // Tests of the documentation find the command by its name.
    let folder = binary.with_file_name("tested");
    fs::create_dir_all(&folder).map_err(Stop::failed)?;
    let script = folder.join("apr");
    let line = words.iter().map(|word| format!("'{}' ", word.to_string_lossy()));
    let line: String = line.collect();
    fs::write(&script, format!("#!/bin/sh\nexec {line}\"$@\"\n")).map_err(Stop::failed)?;
    make_executable(&script).map_err(Stop::failed)?;
    let mut command = cargo("test", ["--package", "apr-cli", "--all-features", "--test", "cli"]);
    run_program(command.env("APR_TEST_BINARY", script))
}

/// Packs the binaries into an archive with their companion files.
fn package(platform: &Platform, binaries: &[PathBuf; 2], packages: &Path) -> Outcome {
    let binary = &binaries[0];
    let pages = packages.join("pages");
    if pages.exists() {
        fs::remove_dir_all(&pages).map_err(Stop::failed)?;
    }
    fs::create_dir_all(pages.join("completions")).map_err(Stop::failed)?;
    run_program(runner(platform, binary)?.arg("man").arg(pages.join("man/man1")))?;
    for (shell, name) in SHELLS {
        let script = output(runner(platform, binary)?.args(["completions", shell]))
            .ok_or_else(|| Stop::failed(format!("no completions for {shell}")))?;
        fs::write(pages.join("completions").join(name), script + "\n").map_err(Stop::failed)?;
    }
    web::copy(&web::site(), &pages.join("page"))?;
    let mut pack = program("python3");
    pack.arg("xtask/dist/package.py").args(binaries).args(["--target", platform.triple]);
    run_program(pack.arg("--out").arg(packages).args(["--epoch", &epoch()?]))?;
    say(format_args!("    {}", packages.display()));
    Ok(())
}
