//! The crates as they are published: what each says of itself, and whether it builds from what is
//! in its archive alone.
//!
//! A crate is published unless its manifest says `publish = false`. The readme of each is made of
//! the documentation of its library: the first paragraph, and the first example.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{cargo, crates, output, program, run as run_program, say};
use crate::steps::{Outcome, Steps, Stop};

/// Environment variable that updates readmes.
const RENEW: &str = "UPDATE_GOLDEN";

/// Manifest section that makes docs.rs build a crate with all its features.
const ALL_FEATURES: &str = "[package.metadata.docs.rs]\nall-features = true\n";

/// Files with the example of crates whose front page has none.
const EXAMPLES: [(&str, &str); 17] = [
    ("apr-arch", "families.rs"),
    ("apr-blocks", "task.rs"),
    ("apr-cli", "reference.rs"),
    ("apr-crypto", "signature.rs"),
    ("apr-distill", "student.rs"),
    ("apr-format", "apr2/mod.rs"),
    ("apr-gguf", "plan.rs"),
    ("apr-hub", "location.rs"),
    ("apr-infer", "tensor.rs"),
    ("apr-io", "typed.rs"),
    ("apr-lora", "adapted.rs"),
    ("apr-merge", "merged.rs"),
    ("apr-onnx", "write/mod.rs"),
    ("apr-ops", "convert/mod.rs"),
    ("apr-quality", "canary/mod.rs"),
    ("apr-scan", "layers/mod.rs"),
    ("apr-tui", "wording.rs"),
];

/// Checks the crates, and packs and builds them in the order in which they are published.
pub(crate) fn run(steps: &mut Steps) {
    steps.run("manifests and readmes of published crates", check);
    steps.run("the minimum version of Rust", minimum);
    steps.run("cargo package: each crate builds from its own archive", package);
}

/// Checks the manifests and readmes.
pub(crate) fn check() -> Outcome {
    let mut wrong = Vec::new();
    for folder in published()? {
        let manifest = read(&folder.join("Cargo.toml"))?;
        let name = name(&folder);
        if manifest.contains("\n[features]\n") && !manifest.contains(ALL_FEATURES) {
            wrong.push(format!("{name} has features, and docs.rs builds its defaults"));
        }
        for line in unpublished_versions(&manifest) {
            wrong.push(format!("{name} would be published after its tests' crates: {line}"));
        }
        let readme = match readme(&folder) {
            Ok(readme) => readme,
            Err(Stop::Failed(why)) => {
                wrong.push(why);
                continue;
            }
            Err(stop) => return Err(stop),
        };
        let path = folder.join("README.md");
        if std::env::var_os(RENEW).is_some() {
            fs::write(path, readme).map_err(Stop::failed)?;
        } else if fs::read_to_string(path).ok() != Some(readme) {
            wrong.push(format!("the readme of {name} is old; {RENEW}=1 renews it"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Stop::failed(wrong.join("; "))) }
}

/// Crates of the workspace among the `[dev-dependencies]` that have a version. Cargo leaves out
/// those that have a path alone; the others have to be published first, and go around in circles.
fn unpublished_versions(manifest: &str) -> Vec<&str> {
    let section = manifest.split_once("\n[dev-dependencies]\n").map_or("", |(_, rest)| rest);
    let section = section.split("\n[").next().unwrap_or("");
    let own = section.lines().filter(|line| line.starts_with("apr"));
    own.filter(|line| line.contains("workspace = true") || line.contains("version")).collect()
}

/// The folders of the crates that are published.
fn published() -> Outcome<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for folder in crates().map_err(Stop::failed)? {
        if !read(&folder.join("Cargo.toml"))?.contains("\npublish = false\n") {
            folders.push(folder);
        }
    }
    Ok(folders)
}

fn name(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| Stop::failed(format!("{}: {error}", path.display())))
}

/// The first paragraph of a library's documentation, and an example of it.
fn readme(folder: &Path) -> Outcome<String> {
    let name = name(folder);
    let library = read(&folder.join("src/lib.rs"))?;
    let paragraph: Vec<String> =
        documentation(&library).take_while(|line| !line.is_empty()).map(without_links).collect();
    let file = EXAMPLES.iter().find(|(crate_name, _)| *crate_name == name);
    let file = read(&folder.join("src").join(file.map_or("lib.rs", |(_, file)| file)))?;
    let example = example(documentation(&file))
        .ok_or_else(|| Stop::failed(format!("{name} has no example")))?
        .join("\n");
    Ok(format!(
        "# {name}\n\n{}\n\n```rust\n{example}\n```\n\n\
         A crate of [`apr`](https://docs.rs/apr), which opens, checks, converts and runs model \
         files. Its\ndocumentation is at [docs.rs](https://docs.rs/{name}).\n\n\
         Licence: MIT or Apache-2.0, at your option.\n",
        paragraph.join("\n")
    ))
}

/// The lines of the documentation of a file and its items.
fn documentation(file: &str) -> impl Iterator<Item = &str> {
    file.lines().filter_map(|line| {
        let line = line.trim_start();
        let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
        Some(text.strip_prefix(' ').unwrap_or(text))
    })
}

/// The lines of the first example that are shown.
fn example<'d>(mut lines: impl Iterator<Item = &'d str>) -> Option<Vec<&'d str>> {
    while let Some(fence) = lines.find(|line| line.starts_with("```")) {
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if ["```", "```no_run"].contains(&fence) {
            let is_shown = |line: &&str| *line != "#" && !line.starts_with("# ");
            return Some(block.into_iter().filter(is_shown).collect());
        }
    }
    None
}

/// A line whose links to items are their names.
fn without_links(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((item, after)) = after.split_once("`]") else { break };
        text += &format!("{before}`{item}`");
        rest =
            after.strip_prefix('(').and_then(|link| link.split_once(')')).map_or(after, |it| it.1);
    }
    text + rest
}

/// Checks that the minimum Rust version of the manifests compiles everything.
///
/// If another version runs, the minimum is run through rustup, if it is installed.
fn minimum() -> Outcome {
    let stated = env!("CARGO_PKG_RUST_VERSION");
    let runs = output(program("rustc").arg("--version")).unwrap_or_default();
    if runs.starts_with(&format!("rustc {stated}.")) {
        say(format_args!("    {runs}, which runs all tests"));
        return Ok(());
    }
    let has = output(program("rustup").args(["run", stated, "rustc", "--version"])).is_some();
    if !has {
        let advice = format!("run `rustup toolchain install {stated} --profile minimal`");
        return Err(Stop::skipped(format!("Rust {stated} is not installed"), advice));
    }
    let check = ["run", stated, "cargo", "check", "--workspace", "--locked", "--all-features"];
    run_program(program("rustup").args(check))
}

/// Packages all crates. Cargo determines the order: it verifies each crate after its dependencies.
fn package() -> Outcome {
    let mut command = cargo("package", ["--allow-dirty"]);
    for folder in published()? {
        command.args(["--package", &name(&folder)]);
    }
    run_program(&mut command)
}
