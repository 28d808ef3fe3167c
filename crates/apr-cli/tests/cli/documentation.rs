//! The commands that README.md and the pages of `docs/` show. Those of `console` blocks are run, in
//! the order of their page; those of `sh` blocks need models that are not in this repository, and a
//! test of the arguments parses them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use apr_testkit::locate::workspace;

use crate::support::Sandbox;

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
        let command = command.replace("cargo run -p apr-cli --", "apr");
        let run = sandbox.shell(&format!(r#"PATH="$(dirname "$APR"):$PATH"; {command}"#));
        assert_eq!(run.code, Some(0), "{}: {command}\n{run}", path.display());
        run.says(&output.iter().map(String::as_str).collect::<Vec<_>>());
    }
    commands.len()
}

#[test]
fn commands_of_the_readme_run_and_print_what_it_shows() {
    assert!(try_page(&workspace().join("README.md")) > 0);
}

#[test]
fn commands_of_the_documentation_run_and_print_what_it_shows() {
    let tried: usize = pages().iter().map(|page| try_page(page)).sum();
    assert!(tried > 80, "{tried} commands");
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
    let mut pages = Vec::new();
    for folder in ["docs", "docs/commands", "docs/format"] {
        let entries = fs::read_dir(workspace().join(folder)).expect("a folder");
        pages.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// Those to files of this repository.
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
