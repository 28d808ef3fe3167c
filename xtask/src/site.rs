//! The site of the documentation: the pages of `docs/`, those outside of it that its summary names,
//! and a reference of the commands, made into HTML with a search by mdBook.

mod links;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{cargo, output, program, run as run_program, say, target_dir, workspace};
use crate::steps::{Outcome, Steps, Stop};
use crate::tools::Tool;
use links::Pages;

/// Program that generates the site.
const MDBOOK: Tool = Tool::new("mdbook", "0.5.4");

/// Neither its server is needed nor what watches files.
const FEATURES: [&str; 3] = ["--no-default-features", "--features", "search"];

/// The line of the summary that the pages of the commands replace.
const MARK: &str = "<!-- `cargo xtask site` puts the pages of the commands here. -->";

/// Builds the site into `target/site`.
pub(crate) fn run(steps: &mut Steps) {
    let sources = target_dir().join("site-source");
    let site = target_dir().join("site");
    let mdbook = steps
        .run("mdBook", || MDBOOK.installed().map_or_else(|| MDBOOK.install_with(&FEATURES), Ok));
    let written = steps.run("the pages", || write_pages(&sources));
    let reference = steps.run("the reference of the commands", || write_reference(&sources));
    let (Some(mdbook), Some(()), Some(())) = (mdbook, written, reference) else { return };

    steps.run("the site: target/site", || {
        run_program(program(mdbook).arg("build").arg(&sources).arg("--dest-dir").arg(&site))
    });
    steps.run("links of the site lead somewhere", || {
        let (number, broken) = links::broken(&site).map_err(Stop::failed)?;
        say(format_args!("    {number} links"));
        if broken.is_empty() { Ok(()) } else { Err(Stop::failed(broken.join(", "))) }
    });
}

/// Copies `docs` and the other pages in the summary, with links adapted to their paths in the book.
fn write_pages(sources: &Path) -> Outcome {
    if sources.exists() {
        fs::remove_dir_all(sources).map_err(Stop::failed)?;
    }
    let summary = fs::read_to_string(workspace().join("docs/SUMMARY.md")).map_err(Stop::failed)?;
    let mut files = BTreeSet::new();
    list(Path::new("docs"), &mut files)?;
    let pages = Pages::new(files, &summary);
    for (path, place) in pages.all() {
        let (from, to) = (workspace().join(path), sources.join(place));
        let folder = to.parent().unwrap_or(sources);
        fs::create_dir_all(folder).map_err(Stop::failed)?;
        if path.ends_with(".md") {
            let text = fs::read_to_string(&from).map_err(Stop::failed)?;
            fs::write(&to, pages.moved(path, &text)).map_err(Stop::failed)?;
        } else {
            fs::copy(&from, &to).map_err(Stop::failed)?;
        }
    }
    Ok(())
}

/// Files below a folder of the workspace, by their paths from its root.
fn list(folder: &Path, files: &mut BTreeSet<String>) -> Outcome {
    for entry in fs::read_dir(workspace().join(folder)).map_err(Stop::failed)? {
        let entry = entry.map_err(Stop::failed)?;
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            list(&path, files)?;
        } else {
            files.insert(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Lets the parser of the command line write its pages, and puts them into the summary.
fn write_reference(sources: &Path) -> Outcome {
    let folder = sources.join("reference");
    let mut example = cargo("run", ["--quiet", "--package", "apr-cli", "--example", "reference"]);
    let chapters = output(example.arg("--").arg(&folder))
        .ok_or_else(|| Stop::failed("cargo run --package apr-cli --example reference"))?;
    let path = sources.join("SUMMARY.md");
    let summary = fs::read_to_string(&path).map_err(Stop::failed)?;
    if !summary.contains(MARK) {
        return Err(Stop::failed(format!("docs/SUMMARY.md does not have the line {MARK}")));
    }
    fs::write(path, summary.replace(MARK, &chapters)).map_err(Stop::failed)?;
    add_guides(&folder)
}

/// A page of a command ends with links to the pages of its tasks.
fn add_guides(folder: &Path) -> Outcome {
    let tasks = fs::read_to_string(workspace().join("docs/commands.md")).map_err(Stop::failed)?;
    let guides = guides(&tasks);
    for entry in fs::read_dir(folder).map_err(Stop::failed)? {
        let path: PathBuf = entry.map_err(Stop::failed)?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // `run-part` is a command, and `lora-extract` a page of `lora`.
        let is_of = |command: &str| name == command || name.starts_with(&format!("{command}-"));
        let command = guides.iter().map(|(command, _)| *command).filter(|name| is_of(name));
        let Some(command) = command.max_by_key(|name| name.len()) else { continue };
        let own = guides.iter().filter(|(of, _)| *of == command);
        let links: Vec<&str> = own.map(|(_, link)| link.as_str()).collect();
        let text = fs::read_to_string(&path).map_err(Stop::failed)?;
        fs::write(&path, format!("{text}\nGuide: {}.\n", links.join(", ")))
            .map_err(Stop::failed)?;
    }
    Ok(())
}

/// Commands and links to the pages of their tasks, by the table of tasks.
fn guides(tasks: &str) -> Vec<(&str, String)> {
    let mut guides = Vec::new();
    for row in tasks.lines().filter_map(|line| line.strip_prefix("| [")) {
        let Some((title, rest)) = row.split_once("](") else { continue };
        let Some((page, rest)) = rest.split_once(')') else { continue };
        let commands = rest.rsplit('|').nth(1).unwrap_or_default();
        for command in commands.split('`').skip(1).step_by(2) {
            let command = command.split(' ').next().unwrap_or_default();
            let guide = (command, format!("[{title}](../{page})"));
            if !guides.contains(&guide) {
                guides.push(guide);
            }
        }
    }
    guides
}

#[cfg(test)]
mod tests {
    use super::guides;

    #[test]
    fn tasks_are_found_by_their_commands() {
        let tasks = "| [Run](run.md), fast | `run`, `bench` |\n| [Trace](t.md) | `run --trace` |\n";
        let of_run = ["[Run](../run.md)", "[Trace](../t.md)"].map(|link| ("run", link.to_owned()));
        let found = guides(tasks);
        assert_eq!(
            found.iter().filter(|(of, _)| *of == "run").collect::<Vec<_>>(),
            [&of_run[0], &of_run[1]]
        );
        assert!(found.contains(&("bench", "[Run](../run.md)".to_owned())));
    }
}
