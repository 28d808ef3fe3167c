//! The commands that README.md and the pages of `docs/` show. Those of `console` blocks are run, in
//! the order of their page, each page in its own folder; the lines below a command are parts of
//! what it prints, and `...` stands for others. Commands of `sh` blocks are not run: they need a
//! network, another program or models that are not in this repository. A test of the arguments
//! parses them, and those in the tables of `docs/coming-from`.
//!
//! The programs in `docs/start/program.md` and README.md are run by the tests of `examples/library`
//! and of the Python package.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use apr_testkit::locate::workspace;

use crate::support::{Sandbox, f32s, safetensors};

/// A command of a `console` block, and the lines that the page shows as its output.
struct Shown {
    command: String,
    output: Vec<String>,
}

fn shown(page: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut is_console = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) {
            all.push(Shown { command: command.to_owned(), output: Vec::new() });
        } else if let Some(last) = all.last_mut().filter(|_| is_console) {
            last.output.push(line.to_owned());
        }
    }
    all
}

/// Runs a page's commands in a folder with the repository's fixtures; returns their number.
fn try_page(path: &Path) -> usize {
    let commands = shown(&fs::read_to_string(path).expect("a page"));
    let sandbox = Sandbox::new();
    symlink(workspace().join("fixtures"), sandbox.path("fixtures")).expect("a link");

    for Shown { command, output } in &commands {
        // The README builds apr for its first command.
        let command = command.replace("cargo apr", "apr");
        let run = sandbox.shell(&format!(r#"PATH="$(dirname "$APR"):$PATH"; {command}"#));
        assert_eq!(run.code, Some(0), "{}: {command}\n{run}", path.display());
        let shown = output.iter().map(String::as_str).filter(|line| *line != "...");
        run.says(&shown.collect::<Vec<_>>());
    }
    commands.len()
}

/// Runs the pages of a folder, of which each one has a command.
fn try_folder(folder: &str) -> usize {
    let pages = pages_of(folder);
    assert!(!pages.is_empty(), "{folder}");
    let tried = pages.iter().map(|page| {
        let tried = try_page(page);
        assert!(tried > 0, "{} has no command that is run", page.display());
        tried
    });
    tried.sum()
}

#[test]
fn commands_of_the_readme_run_and_print_what_it_shows() {
    assert!(try_page(&workspace().join("README.md")) > 0);
}

#[test]
fn commands_of_the_documentation_run_and_print_what_it_shows() {
    let pages = ["docs", "docs/commands", "docs/format"].into_iter().flat_map(pages_of);
    let tried: usize = pages.map(|page| try_page(&page)).sum();
    assert!(tried > 80, "{tried} commands");
}

#[test]
fn commands_of_the_pages_to_start_with_run_and_print_what_they_show() {
    let tried = try_folder("docs/start");
    assert!(tried > 50, "{tried} commands");
}

#[test]
fn commands_of_the_pages_about_other_tools_run_and_print_what_they_show() {
    let tried = try_folder("docs/coming-from");
    assert!(tried > 15, "{tried} commands");
}

#[test]
fn the_summary_of_the_site_has_every_page() {
    let summary = fs::read_to_string(workspace().join("docs/SUMMARY.md")).expect("a summary");
    for page in pages().iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        let link = page.strip_prefix(workspace().join("docs")).expect("in docs");
        let is_there = summary.contains(&format!("]({})", link.display()));
        assert!(is_there, "docs/SUMMARY.md does not have {}", link.display());
    }
}

/// The blocks of a page that are TOML.
fn toml_of(page: &str) -> Vec<String> {
    let text = fs::read_to_string(workspace().join(page)).expect("a page");
    let blocks = text.split("```toml\n").skip(1);
    blocks.map(|block| block.split("```").next().expect("an end").to_owned()).collect()
}

#[test]
fn the_configuration_of_the_documentation_is_one() {
    let sandbox = Sandbox::new().with("config.toml", &toml_of("docs/configuration.md")[0]);
    sandbox.with_env(&[("APR_CONFIG", "config.toml")], "cache info").ok();
    sandbox.write("config.toml", "[defaults]\nother = 1\n");
    sandbox.with_env(&[("APR_CONFIG", "config.toml")], "cache info").fails(2, &["other"]);
}

/// The page's graph is of a family that has more tensors.
#[test]
fn the_family_of_the_documentation_is_imported_and_exported() {
    let blocks = toml_of("docs/families.md");
    let [family, _graph, gguf] = &blocks[..] else { panic!("{} blocks", blocks.len()) };
    let weights = safetensors(&[
        ("net.blocks.0.ln.weight", "F32", &[2], f32s(&[1.0, 0.9])),
        ("net.phonemes.weight", "F32", &[3, 2], f32s(&[0.1, -0.2, 0.05, 0.3, -0.1, 0.2])),
    ]);
    let config = r#"{"model_type": "voices", "d_model": 2, "n_layers": 1, "n_phonemes": 3}"#;
    let sandbox = Sandbox::new()
        .with("voices.toml", format!("{family}\n{gguf}"))
        .with("voices/model.safetensors", weights)
        .with("voices/config.json", config);
    sandbox
        .apr("import voices -o voices.apr --arch-file voices.toml")
        .ok()
        .says(&["Voices family, 2 tensors renamed", "2 tensors valid"]);
    sandbox.apr("tensors voices.apr").ok().says(&["token_embedding", "layers.0.norm.weight"]);
    sandbox.apr("export voices.apr -o again").ok();
    sandbox.apr("tensors again").ok().says(&["net.phonemes.weight", "net.blocks.0.ln.weight"]);
}

#[test]
fn links_between_pages_lead_to_a_file_and_a_heading() {
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "fixtures/README.md"];
    let mut broken = Vec::new();
    for page in pages().into_iter().chain(others.map(|name| workspace().join(name))) {
        let text = fs::read_to_string(&page).expect("a page");
        for link in links(&text).filter(|link| !leads_somewhere(&page, link)) {
            broken.push(format!("{}: {link}", page.display()));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

fn pages() -> Vec<PathBuf> {
    let folders = ["docs", "docs/coming-from", "docs/commands", "docs/format", "docs/start"];
    folders.into_iter().flat_map(pages_of).collect()
}

fn pages_of(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace().join(folder)).expect("a folder");
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// Returns the links to files of this repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.split("](").skip(1);
    ends.filter_map(|end| end.split_once(')')).map(|(link, _)| link).filter(|link| {
        !link.contains(char::is_whitespace) && !link.contains("://") && !link.starts_with("mailto:")
    })
}

fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { page.with_file_name(file) };
    if heading.is_empty() {
        return target.exists();
    }
    let text = fs::read_to_string(target).unwrap_or_default();
    text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading)
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
