//! Whether all shards of a model are there, which is known before the large ones are fetched.

use std::fs;
use std::path::Path;

use apr_core::{Error, IoCause, Limits, Result, ShardIndex};
use serde::de::IgnoredAny;

use super::ResolvedLocation;
use crate::lock::disk;
use crate::lookup::LocationKind;

impl ResolvedLocation {
    /// The indexes among some files.
    pub(super) fn indexes<'a>(&self, names: &'a [String]) -> Vec<&'a String> {
        names.iter().filter(|name| name.ends_with(".index.json")).collect()
    }

    /// # Errors
    /// E007 where an index of the chosen model names an absent shard; what is wrong with
    /// another one is noted.
    pub(super) fn check_index(&self, name: &str, path: &Path) -> Result<()> {
        match self.shards_are_there(name, path) {
            Err(error) if !self.chosen.weights.iter().any(|chosen| chosen == name) => {
                self.hub.notes.add(format!("{}: {}", self.location, error.message()));
                Ok(())
            }
            checked => checked,
        }
    }

    fn shards_are_there(&self, name: &str, path: &Path) -> Result<()> {
        if matches!(self.kind, LocationKind::Url(_)) {
            // Which files are beside it is not known.
            return Ok(());
        }
        let json = fs::read(path).map_err(|error| disk(&error, path))?;
        let index = ShardIndex::<IgnoredAny>::parse(&json, name, &Limits::default())
            .map_err(|error| error.in_file(self.name_of(name)))?;
        let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
        let names = index.shards().iter().map(|shard| match folder {
            "" => shard.clone(),
            folder => format!("{folder}/{shard}"),
        });
        let absent: Vec<String> = names.filter(|shard| !self.has(shard)).collect();
        self.refuse_absent(&absent, &format!("{name} names"))
    }

    /// # Errors
    /// E007 where the names of shards say that there are more of them.
    pub(super) fn check_numbers(&self, names: &[String]) -> Result<()> {
        let chosen = names.iter().filter(|name| self.chosen.weights.contains(*name));
        for (stem, count, end) in chosen.filter_map(|name| numbered(name)) {
            let width = count.len();
            let total: u64 = count.parse().unwrap_or_default();
            // More than the files that are there: the first absent one is enough to know.
            let numbers = (1..=total).take(self.files.len() + 1);
            let all = numbers.map(|number| format!("{stem}-{number:0width$}-of-{count}{end}"));
            let absent: Vec<String> = all.filter(|name| !self.has(name)).collect();
            // Some programs count from zero.
            if absent.len() == 1 && self.has(&format!("{stem}-{:0width$}-of-{count}{end}", 0)) {
                continue;
            }
            self.refuse_absent(&absent, &format!("there are {total} shards by their names, with"))?;
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.name == name)
    }

    fn refuse_absent(&self, absent: &[String], why: &str) -> Result<()> {
        let Some(first) = absent.first() else { return Ok(()) };
        let more = match absent.len() {
            1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        let message = format!("{why} '{first}'{more}, and no such file exists here");
        Err(Error::io(IoCause::NotFound, message).in_file(&self.location))
    }
}

/// Splits `model-00001-of-00003.gguf` into the text before the number, the count, and the text
/// after it.
fn numbered(name: &str) -> Option<(&str, &str, &str)> {
    let is_number = |text: &str| text.len() >= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let (start, rest) = name.rsplit_once("-of-")?;
    let (count, _) = rest.split_once('.')?;
    let (stem, number) = start.rsplit_once('-')?;
    (is_number(count) && number.len() == count.len() && is_number(number)).then_some((
        stem,
        count,
        &rest[count.len()..],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_numbered_in_their_names() {
        let found = numbered("a/m-Q8_0-00001-of-00002.gguf");
        assert_eq!(found, Some(("a/m-Q8_0", "00002", ".gguf")));
        for name in ["model.safetensors", "a-of-b.gguf", "m-1-of-00002.gguf", "m-00001-of-00002"] {
            assert_eq!(numbered(name), None, "{name}");
        }
    }
}
