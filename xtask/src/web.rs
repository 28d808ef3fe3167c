//! The page: WebAssembly modules, TypeScript, what lies beside them; served, and tested in a
//! browser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::builds;
use crate::process::{
    cargo, find_program, output, program, run as run_program, say, target_dir, workspace,
};
use crate::steps::{Outcome, Steps, Stop};
use crate::system::install_packages;
use crate::tools::Tool;

/// Generator of the bindings. Its version matches the library in `Cargo.lock`.
const WASM_BINDGEN: Tool =
    Tool { package: "wasm-bindgen-cli", ..Tool::new("wasm-bindgen", "0.2.130") };

/// The modules: name, features, and maximum size in kB after gzip.
const MODULES: [(&str, &str, u64); 2] = [("explore", "", 3250), ("run", "run", 5000)];

/// Task for the page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Build,
    Serve,
    Test,
}

/// Builds the page into `target/web`, and the package into `target/npm`.
pub(crate) fn run(steps: &mut Steps, wish: Wish) {
    builds::set_up(steps);
    let bindgen = steps.run("wasm-bindgen", || WASM_BINDGEN.installed_or_install());
    let packages = steps.run("the packages of the page", || run_program(npm().arg("ci")));
    let (Some(bindgen), Some(())) = (bindgen, packages) else { return };
    for (name, features, most) in MODULES {
        steps.run(&format!("the module {name}"), || module(&bindgen, name, features, most));
    }
    steps.run("the page", page);
    steps.run("the package for Node and bundlers", package);
    match wish {
        Wish::Build => {}
        Wish::Serve => {
            steps.run("the page is served until Ctrl-C", || {
                run_program(program("node").arg(sources().join("tests/serve.mjs")).arg(site()))
            });
        }
        Wish::Test => {
            steps.run("Chromium", set_up_chromium);
            steps.run("the page in a browser", || run_program(&mut tests("page.mjs")));
            steps.run("the package in Node", || run_program(&mut tests("node.mjs")));
        }
    }
}

fn sources() -> PathBuf {
    workspace().join("crates/faces/apr-wasm/web")
}

/// The folder that a server gives.
pub(crate) fn site() -> PathBuf {
    target_dir().join("web")
}

fn npm() -> Command {
    let mut command = program("npm");
    command.current_dir(sources());
    command
}

fn tests(file: &str) -> Command {
    let mut node = program("node");
    node.arg(sources().join("tests").join(file)).args([site(), target_dir().join("debug/apr")]);
    node
}

fn set_up_chromium() -> Outcome {
    match find_program(|name| name == "chromium") {
        Some(_) => Ok(()),
        None => install_packages(&["chromium"], "install Chromium"),
    }
}

fn module(bindgen: &Path, name: &str, features: &str, most: u64) -> Outcome {
    let built = builds::web_module("apr-wasm", features)?;
    let folder = sources().join("src/wasm").join(name);
    run_program(program(bindgen).args(["--target", "web", "--out-dir"]).arg(&folder).arg(built))?;
    let bytes = folder.join("apr_wasm_bg.wasm");
    let packed =
        output(program("sh").arg("-c").arg(format!("gzip -9 -c '{}' | wc -c", bytes.display())));
    let kilobytes =
        packed.and_then(|text| text.trim().parse::<u64>().ok()).map_or(0, |len| len / 1000);
    say(format_args!("    {name}: {kilobytes} kB after gzip, of {most}"));
    if kilobytes > most {
        return Err(Stop::failed(format!(
            "{name} has {kilobytes} kB after gzip, more than {most}"
        )));
    }
    Ok(())
}

/// Compiles the TypeScript, and copies the static files.
fn page() -> Outcome {
    let site = site();
    if site.exists() {
        fs::remove_dir_all(&site).map_err(Stop::failed)?;
    }
    run_program(npm().args(["exec", "--", "tsc", "--outDir"]).arg(&site))?;
    as_script(&site.join("service-worker.js"))?;
    copy(&sources().join("static"), &site)?;
    copy(&sources().join("src/wasm"), &site.join("wasm"))?;
    preload(&site)?;
    run_program(&mut cargo("build", ["--package", "apr-cli"]))?;
    fs::create_dir_all(site.join("example")).map_err(Stop::failed)?;
    let mut import = program(target_dir().join("debug/apr"));
    import.args(["import", "fixtures/tiny-llama", "--force", "-o"]);
    run_program(import.arg(site.join("example/model.apr")))?;
    let mut files = Vec::new();
    list(&site, "", &mut files)?;
    // What the page needs without a network; the engine and the example are kept once they were
    // used.
    files.retain(|name| {
        let later = ["wasm/run/", "example/", "service-worker.js"];
        !name.ends_with(".d.ts") && !later.iter().any(|start| name.starts_with(start))
    });
    files.sort();
    let json = format!("[\"{}\"]\n", files.join("\",\n \""));
    fs::write(site.join("files.json"), json).map_err(Stop::failed)
}

/// Entry points of the page's and the worker's scripts.
const SCRIPTS: [&str; 2] = ["page/main.js", "api/worker.js"];

/// Makes the page load all scripts in parallel, instead of one import after another.
fn preload(site: &Path) -> Outcome {
    let mut found: Vec<String> = SCRIPTS.map(str::to_owned).to_vec();
    let mut at = 0;
    while let Some(name) = found.get(at).cloned() {
        let text = fs::read_to_string(site.join(&name)).map_err(Stop::failed)?;
        for (_, rest) in
            text.match_indices(" from \"").map(|(at, mark)| text.split_at(at + mark.len()))
        {
            let import = rest.split('"').next().unwrap_or_default();
            let imported = beside(&name, import);
            if import.starts_with('.') && !found.contains(&imported) {
                found.push(imported);
            }
        }
        at += 1;
    }
    let link = |name: &String| format!("<link rel=\"modulepreload\" href=\"{name}\" />\n    ");
    let links: String = found.iter().skip(SCRIPTS.len()).map(link).collect();
    let page = site.join("index.html");
    let text = fs::read_to_string(&page).map_err(Stop::failed)?;
    let script = "<script type=\"module\"";
    fs::write(page, text.replacen(script, &format!("{links}{script}"), 1)).map_err(Stop::failed)
}

/// Returns the path of a script's import, relative to the folder of the site.
fn beside(script: &str, import: &str) -> String {
    let mut parts: Vec<&str> = script.split('/').collect();
    parts.pop();
    for part in import.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Takes the mark of a module from a script: browsers register service workers as scripts, not all
/// of them as modules.
fn as_script(path: &Path) -> Outcome {
    let text = fs::read_to_string(path).map_err(Stop::failed)?;
    fs::write(path, text.replace("export {};\n", "")).map_err(Stop::failed)
}

/// Creates the package: the files that programs import, without the page.
fn package() -> Outcome {
    let folder = target_dir().join("npm");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Stop::failed)?;
    }
    for part in ["api", "wasm"] {
        copy(&site().join(part), &folder.join(part))?;
    }
    for file in ["package.json", "README.md"] {
        fs::copy(sources().join(file), folder.join(file)).map_err(Stop::failed)?;
    }
    let mut pack = program("npm");
    run_program(pack.current_dir(&folder).args(["pack", "--dry-run", "--silent"]))
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) -> Outcome {
    let mut files = Vec::new();
    list(from, "", &mut files)?;
    for name in files {
        let target = to.join(&name);
        let folder = target.parent().unwrap_or(to);
        fs::create_dir_all(folder).map_err(Stop::failed)?;
        fs::copy(from.join(&name), target).map_err(Stop::failed)?;
    }
    Ok(())
}

/// Names of all files below a folder.
fn list(folder: &Path, prefix: &str, into: &mut Vec<String>) -> Outcome {
    for entry in fs::read_dir(folder).map_err(Stop::failed)? {
        let entry = entry.map_err(Stop::failed)?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            list(&entry.path(), &format!("{name}/"), into)?;
        } else {
            into.push(name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_beside_their_scripts() {
        assert_eq!(beside("page/main.js", "./dom.js"), "page/dom.js");
        assert_eq!(beside("page/views/run.js", "../../api/index.js"), "api/index.js");
    }
}
