//! Links of pages that move, and links of a site that lead nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The files of the book: their paths in the repository, and in the book.
#[derive(Debug)]
pub(super) struct Pages(BTreeMap<String, String>);

impl Pages {
    /// Files of `docs` keep their places; pages outside of it that the summary names are below
    /// `project`. mdBook makes `index.html` of a `README.md` and leaves links to it as they are, so
    /// it is called `index.md`.
    pub(super) fn new(files: BTreeSet<String>, summary: &str) -> Self {
        let mut places = BTreeMap::new();
        for path in files {
            let place = with_index(path.strip_prefix("docs/").unwrap_or(&path));
            places.insert(path, place);
        }
        for end in summary.split("](../").skip(1) {
            let path = end.split(')').next().unwrap_or_default();
            places.insert(path.to_owned(), with_index(&format!("project/{path}")));
        }
        Self(places)
    }

    /// Paths in the repository, and in the book.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, place)| (path.as_str(), place.as_str()))
    }

    /// A page whose links lead to the places in the book. One to a file that is not in the book
    /// becomes the file's path.
    pub(super) fn moved(&self, page: &str, text: &str) -> String {
        let mut moved = String::with_capacity(text.len());
        let mut is_block = false;
        let mut is_code = false;
        for line in text.split_inclusive('\n') {
            if line.starts_with("```") {
                is_block = !is_block;
            }
            if line.trim().is_empty() {
                is_code = false;
            }
            if is_block {
                moved.push_str(line);
                continue;
            }
            let mut rest = line;
            while let Some(at) = rest.find(['`', ']']) {
                let (before, found) = rest.split_at(at);
                moved.push_str(before);
                let link = found.strip_prefix("](").filter(|_| !is_code);
                if let Some((target, end)) = link.and_then(|link| link.split_once(')')) {
                    self.move_link(page, target, &mut moved);
                    rest = end;
                } else {
                    is_code ^= found.starts_with('`');
                    moved.push_str(&found[..1]);
                    rest = &found[1..];
                }
            }
            moved.push_str(rest);
        }
        moved
    }

    /// Ends a link, of which the text was written.
    fn move_link(&self, page: &str, target: &str, moved: &mut String) {
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
            moved.push_str(&format!("]({target})"));
            return;
        }
        let path = joined(page, file);
        let place_of_page = self.0.get(page).map_or(page, String::as_str);
        if let Some(place) = self.0.get(&path) {
            let heading = if heading.is_empty() { String::new() } else { format!("#{heading}") };
            moved.push_str(&format!("]({}{heading})", relative(place_of_page, place)));
            return;
        }

        let start = opening(moved);
        let text = moved.split_off(start);
        let text = text.strip_prefix('[').unwrap_or(&text);
        moved.push_str(text);
        if !text.contains(path.trim_end_matches('/')) {
            moved.push_str(&format!(" (`{path}`)"));
        }
    }
}

fn with_index(place: &str) -> String {
    match place.strip_suffix("README.md") {
        Some(folder) if folder.is_empty() || folder.ends_with('/') => format!("{folder}index.md"),
        _ => place.to_owned(),
    }
}

/// Returns the offset of the opening bracket of a link whose text ends here.
fn opening(text: &str) -> usize {
    let mut depth = 1_u32;
    for (at, character) in text.char_indices().rev() {
        match character {
            ']' => depth += 1,
            '[' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The path that a link of a page means.
fn joined(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Returns the relative path from a page to another file.
fn relative(page: &str, file: &str) -> String {
    let folder: Vec<&str> = page.split('/').collect();
    let folder = &folder[..folder.len() - 1];
    let parts: Vec<&str> = file.split('/').collect();
    let common = folder.iter().zip(&parts).take_while(|(a, b)| a == b).count();
    let up = folder.len() - common;
    [vec![".."; up], parts[common..].to_vec()].concat().join("/")
}

/// Returns the number of links between the files of a site, and the broken ones.
///
/// A link is broken if its file or heading does not exist.
pub(super) fn broken(site: &Path) -> io::Result<(usize, Vec<String>)> {
    let mut pages = BTreeMap::new();
    read_pages(site, &mut pages)?;
    let mut number = 0;
    let mut broken = Vec::new();
    for (page, text) in &pages {
        // Its links begin with the address of the site.
        if page.ends_with("404.html") {
            continue;
        }
        for link in ["href=\"", "src=\""].iter().flat_map(|attribute| text.split(attribute).skip(1))
        {
            let link = link.split('"').next().unwrap_or_default();
            let is_other = ["://", "data:", "mailto:"].iter().any(|other| link.contains(other));
            if is_other || link.is_empty() {
                continue;
            }
            number += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { resolved(page, file) };
            let is_there = match pages.get(&target) {
                Some(text) => heading.is_empty() || text.contains(&format!("id=\"{heading}\"")),
                None => target.is_file(),
            };
            if !is_there {
                let page = page.strip_prefix(site).unwrap_or(page);
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok((number, broken))
}

fn read_pages(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_pages(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text = fs::read_to_string(&path)?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

fn resolved(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(page).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Pages {
        let files = ["docs/a.md", "docs/commands/b.md", "docs/x.svg"].map(str::to_owned);
        Pages::new(files.into(), "- [Readme](../README.md)\n- [A](a.md)\n")
    }

    #[test]
    fn links_lead_to_the_places_in_the_book() {
        let text =
            "[r](../README.md#use) [b](commands/b.md) ![x](x.svg) [w](https://a.b/c) [h](#h)";
        let moved = "[r](project/index.md#use) [b](commands/b.md) ![x](x.svg) [w](https://a.b/c) \
                     [h](#h)";
        assert_eq!(pages().moved("docs/a.md", text), moved);
        let moved = pages().moved("README.md", "[b](docs/commands/b.md), ![x](docs/x.svg)");
        assert_eq!(moved, "[b](../commands/b.md), ![x](../x.svg)");
    }

    #[test]
    fn a_link_to_a_file_outside_of_the_book_becomes_its_path() {
        let moved = pages().moved("docs/commands/b.md", "see [the `[a]`](../../crates/c.rs).");
        assert_eq!(moved, "see the `[a]` (`crates/c.rs`).");
        let moved = pages().moved("docs/a.md", "[`crates/c.rs`](../crates/c.rs)");
        assert_eq!(moved, "`crates/c.rs`");
    }

    #[test]
    fn links_in_code_are_not_changed() {
        let text = "`[a](../c.rs)`\n\n```sh\n[a](../c.rs)\n```\n";
        assert_eq!(pages().moved("docs/a.md", text), text);
    }
}
