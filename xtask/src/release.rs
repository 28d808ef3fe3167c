//! A release: everything that people download, from the commit of a tag, in `target/packages`.

use std::fs;
use std::path::PathBuf;

use crate::process::{output, program, run as run_program, say, target_dir, workspace};
use crate::steps::{Outcome, Steps, Stop};
use crate::{dist, package, wheels};

/// Version of the release.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Suffix of the changelog's newest heading until its release.
const UNRELEASED: &str = ", unreleased";

/// Makes the artefacts of a tag: the notes, the archives with their sums, the packages for Python
/// and npm. Without a tag they are those of the commit that is checked out, as a rehearsal.
pub(crate) fn run(steps: &mut Steps, tag: Option<&str>) {
    let agreed = steps.run("tag, version and changelog agree", || {
        if let Some(tag) = tag {
            check(tag)?;
        }
        fs::create_dir_all(packages()).map_err(Stop::failed)?;
        let changelog =
            fs::read_to_string(workspace().join("CHANGELOG.md")).map_err(Stop::failed)?;
        let (heading, notes) = newest(&changelog)?;
        if tag.is_some() && heading.ends_with(UNRELEASED) {
            return Err(Stop::failed(format!("the changelog says '{heading}': give it a date")));
        }
        fs::write(packages().join("NOTES.md"), format!("# apr {heading}\n\n{notes}\n"))
            .map_err(Stop::failed)
    });
    // Nothing that follows is worth its time for a release of something else.
    if agreed.is_none() {
        return;
    }

    package::run(steps);
    // A release that can't be built again is not the one that its sums name.
    if let Err(why) = dist::run(steps, &["--twice"]) {
        say(why);
    }
    steps.run("the package for npm", || {
        let folder = target_dir().join("npm");
        let mut pack = program("npm");
        pack.arg("pack").arg(folder).arg("--pack-destination").arg(packages());
        run_program(&mut pack)
    });
    if let Err(why) = wheels::run(steps, &[]) {
        say(why);
    }
    steps.run("sums of all artefacts", sums);
}

fn packages() -> PathBuf {
    target_dir().join("packages")
}

/// # Errors
/// A tag that is not that of the version, or of what is checked out, or something changed since.
fn check(tag: &str) -> Outcome {
    if tag != format!("v{VERSION}") {
        return Err(Stop::failed(format!("the manifests say {VERSION}: the tag is v{VERSION}")));
    }
    let commit = |name: &str| output(program("git").args(["rev-parse", &format!("{name}^{{}}")]));
    if commit(tag).is_none_or(|tagged| Some(tagged) != commit("HEAD")) {
        return Err(Stop::failed(format!("{tag} is not checked out")));
    }
    let changes = output(program("git").args(["status", "--porcelain"])).unwrap_or_default();
    if changes.is_empty() { Ok(()) } else { Err(Stop::failed(format!("changed:\n{changes}"))) }
}

/// The heading and the text of the newest part of the changelog.
fn newest(changelog: &str) -> Outcome<(&str, &str)> {
    let part = changelog.split("\n## ").nth(1);
    let (heading, notes) = part
        .and_then(|part| part.split_once('\n'))
        .ok_or_else(|| Stop::failed("the changelog has no part"))?;
    if !heading.starts_with(&format!("{VERSION}, ")) {
        return Err(Stop::failed(format!("the changelog begins with '{heading}', not {VERSION}")));
    }
    Ok((heading, notes.trim()))
}

/// Writes the SHA-256 of every file, the archives' included, into one list.
fn sums() -> Outcome {
    let mut names = Vec::new();
    for entry in fs::read_dir(packages()).map_err(Stop::failed)? {
        let entry = entry.map_err(Stop::failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_file() && name != "SHA256SUMS" {
            names.push(name);
        }
    }
    names.sort();
    let listed = output(program("sha256sum").current_dir(packages()).args(&names))
        .ok_or_else(|| Stop::skipped("there is no sha256sum", "install coreutils"))?;
    fs::write(packages().join("SHA256SUMS"), listed + "\n").map_err(Stop::failed)?;
    names.iter().for_each(|name| say(format_args!("    {name}")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_the_newest_part_of_the_changelog() {
        let text = format!("# Changelog\n\n## {VERSION}, 2026-12-01\n\n- One.\n\n## 0.0.1, old\n");
        let (heading, notes) = newest(&text).expect("a part");
        assert_eq!((heading, notes), (&*format!("{VERSION}, 2026-12-01"), "- One."));
        assert!(newest("# Changelog\n\n## 9.9.9, 2026-12-01\n\n- One.\n").is_err());
        assert!(newest("# Changelog\n").is_err());
    }
}
