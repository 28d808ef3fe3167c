//! Which numbers in names are those of layers and experts, and what the placeholders are called.

use std::collections::{BTreeMap, BTreeSet};

use apr_core::TensorInfo;
use serde_json::Value as Json;

use crate::dimensions::Config;
use crate::family::HUGGING_FACE;
use crate::model::FamilyModel;

use super::required::is_name;

/// Numbers from 0 on that are an index wherever they stand.
const FEWEST: u64 = 4;

/// Numbers of names, by what stands before them.
pub(super) struct Numbering {
    /// Placeholders by the path before them, with `*` for numbers within.
    indices: BTreeMap<String, String>,
    /// Number of values of each placeholder that the base does not have.
    counts: BTreeMap<String, u64>,
    prefix: String,
}

impl Numbering {
    /// Returns the placeholders for the names of a checkpoint. Those that the base has at a path
    /// keep their names.
    pub(super) fn of(
        tensors: &[TensorInfo],
        config: Option<&Config>,
        model: Option<&FamilyModel<'_>>,
    ) -> Self {
        let (wrapper, prefix) = model.map_or(("", ""), |model| {
            let naming = model.naming();
            (naming.wrapper.as_str(), naming.prefix.as_str())
        });
        let mut values: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for info in tensors {
            let name = info.name.strip_prefix(wrapper).unwrap_or(&info.name);
            let name = name.strip_prefix(prefix).unwrap_or(name);
            let mut path = String::new();
            for part in name.split('.') {
                if let Some(number) = number(part) {
                    values.entry(path.clone()).or_default().insert(number);
                }
                extend(&mut path, part);
            }
        }

        let known = model.map(paths).unwrap_or_default();
        let base = |index: &str| model.and_then(|model| model.index_count(index));
        let (mut indices, mut counts) = (BTreeMap::new(), BTreeMap::new());
        for (path, numbers) in values {
            let count = numbers.last().map_or(0, |last| last.saturating_add(1));
            let before = path.rsplit('.').next().unwrap_or_default();
            let one = singular(before);
            if let Some(index) = known.get(&path) {
                indices.insert(path, index.clone());
                continue;
            }
            if base(&one) == Some(count) {
                indices.insert(path, one);
                continue;
            }
            let is_counted = numbers.len() as u64 == count && count >= 2;
            let is_of_layers = is_counted && one == before && counts_layers(config, count);
            let one = if is_of_layers { "layer".to_owned() } else { one };
            let is_index = is_counted && (one != before || count >= FEWEST);
            if !is_index || !is_name(&one) {
                continue;
            }
            // What stands before tells two indices of one name apart.
            let words: Vec<&str> = path.split('.').filter(|part| is_name(part)).collect();
            let longer = (1..words.len()).map(|more| {
                let from = words.len() - 1 - more;
                format!("{}_{one}", words[from..words.len() - 1].join("_"))
            });
            let is_free = |name: &String| base(name).is_none() && !counts.contains_key(name);
            let Some(name) = std::iter::once(one.clone()).chain(longer).find(is_free) else {
                continue;
            };
            counts.insert(name.clone(), count);
            indices.insert(path, name);
        }
        Self { indices, counts, prefix: prefix.to_owned() }
    }

    /// Returns the pattern of a name, and the numbers of its placeholders. Returns `None` for a
    /// name that no pattern can stand for.
    pub(super) fn pattern(&self, name: &str) -> Option<(String, Vec<(String, u64)>)> {
        let body = name.strip_prefix(self.prefix.as_str());
        let (prefix, body) = body.map_or(("", name), |body| (self.prefix.as_str(), body));
        if body.is_empty() || name.contains(['{', '}', '~']) {
            return None;
        }
        let (mut path, mut parts) = (String::new(), Vec::new());
        let mut numbers: Vec<(String, u64)> = Vec::new();
        for part in body.split('.') {
            let index = number(part).and_then(|number| Some((self.indices.get(&path)?, number)));
            match index {
                Some((index, number)) if numbers.iter().all(|(other, _)| other != index) => {
                    parts.push(format!("{{{index}}}"));
                    numbers.push((index.clone(), number));
                }
                _ => parts.push(part.to_owned()),
            }
            extend(&mut path, part);
        }
        Some((format!("{prefix}{}", parts.join(".")), numbers))
    }

    /// Returns the number of values of those placeholders among `used` that the base does not have.
    pub(super) fn new_counts<'n>(
        &self,
        used: impl Iterator<Item = &'n (String, u64)>,
    ) -> BTreeMap<String, u64> {
        let used: BTreeSet<&String> = used.map(|(index, _)| index).collect();
        let counts = self.counts.iter().filter(|(index, _)| used.contains(index));
        counts.map(|(index, count)| (index.clone(), *count)).collect()
    }
}

/// Returns `true` if the configuration has as many layers.
fn counts_layers(config: Option<&Config>, count: u64) -> bool {
    let words = ["layer", "block", "depth"];
    let is_it = |(key, entry): (&String, &Json)| {
        words.iter().any(|word| key.contains(word)) && entry.as_u64() == Some(count)
    };
    config.into_iter().flatten().any(is_it)
}

/// The placeholders of the base, by the path before them.
fn paths(model: &FamilyModel<'_>) -> BTreeMap<String, String> {
    let convention = &model.naming().convention;
    let mut paths = BTreeMap::new();
    for entry in &model.family.file.tensors {
        let own = entry.conventions.get(convention).map(|names| names.iter().collect());
        let same = || (convention == HUGGING_FACE).then(|| vec![entry.name.as_str()]);
        let names: Vec<&str> = own.or_else(same).unwrap_or_default();
        for name in names {
            let mut path = String::new();
            for part in name.trim_start_matches('~').split('.') {
                let index = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
                if let Some(index) = index {
                    paths.insert(path.clone(), index.to_owned());
                }
                extend(&mut path, if index.is_some() { "0" } else { part });
            }
        }
    }
    paths
}

/// Adds a part to a path, numbers as `*`.
fn extend(path: &mut String, part: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(if number(part).is_some() { "*" } else { part });
}

/// A decimal number as names have it.
fn number(part: &str) -> Option<u64> {
    let is_plain =
        part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
    if is_plain { part.parse().ok() } else { None }
}

/// The word for one of several.
fn singular(word: &str) -> String {
    match word {
        "h" | "blk" => "layer".to_owned(),
        _ => word.strip_suffix('s').filter(|one| one.len() > 1).unwrap_or(word).to_owned(),
    }
}
