//! What configurations mean by omitting a key, against what transformers takes them for
//! (`fixtures/families/defaults`).

use apr_arch::{Families, GgufValue};
use apr_blocks::{GraphOptions, Graphs};
use apr_testkit::locate::fixture;
use serde_json::{Map, Value as Json};

use crate::cases::Case;

/// Configuration of a case as transformers reads it.
struct Understood {
    /// Configuration with all keys.
    full: Map<String, Json>,
    /// Differences if a key is omitted, by that key.
    without: Map<String, Json>,
    /// Pairs of changed settings of rotary positions and the resulting differences; null removes an
    /// entry.
    rotary: Vec<[Map<String, Json>; 2]>,
}

impl Understood {
    fn all() -> Vec<(Case, Self)> {
        let files =
            std::fs::read_dir(fixture("families/defaults")).expect("the fixtures are there");
        let mut paths: Vec<_> = files.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            let json: Map<String, Json> =
                serde_json::from_slice(&std::fs::read(path).expect("readable")).expect("JSON");
            let object = |key: &str| json[key].as_object().expect("an object").clone();
            let name = path.file_stem().expect("a name").to_string_lossy();
            let rotary = json.get("rotary").cloned().map(serde_json::from_value);
            let rotary = rotary.transpose().expect("pairs").unwrap_or_default();
            let (full, without) = (object("full"), object("without"));
            (Case::named(&name), Self { full, without, rotary })
        };
        paths.iter().map(read).collect()
    }

    /// The configuration that transformers sees without this key.
    fn whole(&self, key: &str) -> Map<String, Json> {
        self.differing(self.without[key].as_object().expect("changes"))
    }

    /// The configuration that transformers sees, with these changes.
    fn differing(&self, changes: &Map<String, Json>) -> Map<String, Json> {
        let mut whole = self.full.clone();
        for (path, value) in changes {
            set(&mut whole, path, Some(value.clone()));
        }
        whole
    }
}

/// Sets an entry by its dotted path, or removes it.
fn set(config: &mut Map<String, Json>, path: &str, value: Option<Json>) {
    match (path.split_once('.'), value) {
        (Some((object, rest)), value) => {
            let object = config.entry(object).or_insert_with(|| Map::new().into());
            set(object.as_object_mut().expect("an object"), rest, value);
        }
        (None, Some(value)) => {
            config.insert(path.to_owned(), value);
        }
        (None, None) => {
            config.remove(path);
        }
    }
}

fn made(case: &Case, config: Map<String, Json>) -> Result<Graphs, String> {
    let mut config = config;
    // Transformers does not write the task down.
    config.insert("architectures".to_owned(), case.config["architectures"].clone());
    let case = Case { config, ..case.clone() };
    case.graphs(&GraphOptions::default()).map_err(|error| error.to_string())
}

#[test]
fn a_key_that_is_omitted_means_what_transformers_takes() {
    let mut wrong = Vec::new();
    for (case, understood) in Understood::all() {
        let full = made(&case, understood.full.clone());
        if full.is_ok() && made(&case, case.config.clone()) != full {
            wrong.push(format!("{}, as it is", case.name));
        }
        for key in understood.without.keys() {
            let mut omitting = case.config.clone();
            set(&mut omitting, key, None);
            let whole = understood.whole(key);
            let expected = match whole == understood.full {
                true => full.clone(),
                false => made(&case, whole),
            };

            // What transformers would take may have no graph.
            let Ok(expected) = expected else { continue };
            match made(&case, omitting) {
                Ok(found) if found == expected => {}
                Ok(_) => wrong.push(format!("{} without {key}: another graph", case.name)),
                Err(error) => wrong.push(format!("{} without {key}: {error}", case.name)),
            }
        }
    }

    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Compares defaults only: transformers writes the values that it fills in, and its classes read
/// them again.
///
/// Stated values are compared with transformers by `graphs.py`.
#[test]
fn omitted_settings_of_rotary_positions_have_the_defaults_of_transformers() {
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for (case, understood) in Understood::all() {
        for [changes, differing] in &understood.rotary {
            let mut changed = case.config.clone();
            for (key, value) in changes {
                set(&mut changed, key, (!value.is_null()).then(|| value.clone()));
            }
            let Ok(expected) = made(&case, understood.differing(differing)) else { continue };
            compared += 1;
            let changes = Json::from(changes.clone());
            match made(&case, changed) {
                Ok(found) if found == expected => {}
                Ok(_) => wrong.push(format!("{} with {changes}: another graph", case.name)),
                Err(error) => wrong.push(format!("{} with {changes}: {error}", case.name)),
            }
        }
    }

    assert!(compared > 300, "{compared} have graphs");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The keys of a GGUF file, with entries of this configuration.
fn keys(case: &Case, config: &Map<String, Json>) -> Result<Vec<(String, GgufValue)>, String> {
    let case = Case { config: config.clone(), ..case.clone() };
    let (families, metadata) = (Families::builtin(), case.metadata());
    let model = families.identify(&case.tensors, &metadata).expect("of a known family");
    let entry = |path: &str| {
        let mut parts = path.split('.');
        let first = config.get(parts.next()?)?;
        let found = parts.try_fold(first, |json, part| json.get(part))?;
        (!found.is_null()).then(|| found.clone())
    };
    model.gguf_keys(&entry).map_err(|error| error.to_string())
}

#[test]
fn a_key_that_is_omitted_is_the_default_in_gguf_files_too() {
    let mut wrong = Vec::new();
    for (case, understood) in Understood::all() {
        for key in understood.without.keys() {
            // Keys that transformers calls otherwise now are no entries that can be written out.
            let whole = understood.whole(key);
            let Some(default) = entry(&whole, key) else { continue };
            // What the class computes by itself is llama.cpp's default, too.
            if key == "head_dim" && !has_own_head_dim(&case) {
                continue;
            }
            let (mut omitting, mut stating) = (case.config.clone(), case.config.clone());
            set(&mut omitting, key, None);
            set(&mut stating, key, Some(default.clone()));
            let (omitting, stating) = (keys(&case, &omitting), keys(&case, &stating));
            if stating.is_ok() && omitting != stating {
                wrong.push(format!("{} without {key}: {omitting:?}\n  {stating:?}", case.name));
            }
        }
    }

    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns `true` if `head_dim` is not the hidden size divided by the number of heads.
fn has_own_head_dim(case: &Case) -> bool {
    let number = |key: &str| case.config.get(key).and_then(Json::as_u64);
    let sizes = [number("hidden_size"), number("num_attention_heads"), number("head_dim")];
    !matches!(sizes, [Some(hidden), Some(heads), Some(dim)] if hidden == heads * dim)
}

fn entry<'c>(config: &'c Map<String, Json>, path: &str) -> Option<&'c Json> {
    let mut parts = path.split('.');
    let first = config.get(parts.next()?)?;
    parts.try_fold(first, |json, part| json.get(part))
}
