//! Which file of a model's folder holds the weights, by what the formats' entries say of names.

use std::collections::{HashMap, HashSet};

use apr_core::{Error, Format, Result};

use crate::formats::FORMATS;
use crate::in_folder::{InFolder, Shards, extension, is_index, shard_number, shard_stem};
use crate::unread;

/// Configurations, whose presence means that the weights in the folder are one model.
pub(crate) const CONFIGS: [&str; 2] = [CONFIG, ADAPTER_CONFIG];

/// The configuration of a model.
pub(crate) const CONFIG: &str = "config.json";

/// The configuration of an adapter.
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Weights of other frameworks and formats that folders carry beside the ones that were opened.
pub(crate) const WEIGHTS: [&str; 12] = [
    "safetensors",
    "bin",
    "pt",
    "pth",
    "ckpt",
    "gguf",
    "onnx",
    "h5",
    "msgpack",
    "tflite",
    "ot",
    "apr",
];

impl InFolder {
    /// Returns `true` if a file represents a model by its extension, given the other files at the
    /// top of the folder.
    fn stands_for_a_model(
        &self,
        name: &str,
        (top, first): (&HashSet<&str>, &HashMap<(&str, &str), u32>),
    ) -> bool {
        self.names.is_empty()
            && self.has_extension_of(name)
            && match (self.shards, shard_number(name)) {
                // An index stands for them; without one, opening a shard reports what is missing.
                (Shards::Index(_), _) | (_, None) => true,
                (Shards::Manifest, Some((number, _))) => number == 1 && !has_manifest(name, top),
                (Shards::First, Some(_)) => is_first(name, first),
            }
    }

    /// Returns the candidate files for the model: a known name, indexes, and files by their
    /// extension.
    fn candidates<'n>(&self, top: &[&'n str]) -> Candidates<'n> {
        let ending = if let Shards::Index(ending) = self.shards { Some(ending) } else { None };
        let names: HashSet<&str> = top.iter().copied().collect();
        let first = first_shards(&names);
        let is_index = |name: &&&str| ending.is_some_and(|ending| name.ends_with(ending));
        Candidates {
            named: top.iter().find(|name| self.names.contains(name)).copied(),
            indexes: if self.names.is_empty() {
                top.iter().filter(is_index).copied().collect()
            } else {
                Vec::new()
            },
            files: top
                .iter()
                .filter(|name| {
                    self.stands_for_a_model(name, (&names, &first))
                        || self.is_of_a_pair(name, &names)
                })
                .copied()
                .collect(),
        }
    }
}

/// Files of a folder that may be the model.
#[derive(Default)]
struct Candidates<'n> {
    named: Option<&'n str>,
    indexes: Vec<&'n str>,
    files: Vec<&'n str>,
}

impl<'n> Candidates<'n> {
    fn extend(&mut self, other: Self) {
        self.named = self.named.or(other.named);
        self.indexes.extend(other.indexes);
        self.files.extend(other.files);
    }

    /// Returns the file of the model, or `None` if there are no candidates.
    ///
    /// # Errors
    /// E001 if there are several.
    fn choose(&self) -> Result<Option<&'n str>> {
        match (self.named, &*self.indexes, &*self.files) {
            (Some(name), ..) | (None, &[name], _) | (None, &[], &[name]) => Ok(Some(name)),
            (None, &[], &[]) => Ok(None),
            (None, indexes, files) => {
                let many = [indexes, files].concat().join(", ");
                Err(Error::format(format!("the folder has several models; name one of {many}")))
            }
        }
    }
}

/// Returns the naming rules of the formats, in order of preference.
fn by_rank() -> Vec<&'static InFolder> {
    let mut all: Vec<_> = FORMATS.iter().map(|entry| &entry.in_folder).collect();
    all.sort_by_key(|in_folder| in_folder.rank);
    all
}

/// The file to open for the model in a folder with these files.
///
/// # Errors
/// E001 when there are no weights, or several.
pub(crate) fn find_weights(names: &[String]) -> Result<String> {
    let top: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !name.contains('/')).collect();
    let formats = by_rank();
    let descriptions = formats.iter().filter_map(|in_folder| in_folder.description);
    let is_there = |&(name, described): &(&str, &str)| {
        top.contains(&name) && top.iter().any(|other| extension(other) == described)
    };
    if let Some((name, _)) = descriptions.clone().find(is_there) {
        return Ok(name.to_owned());
    }

    // Of partitions alone, none is the model to name.
    check_one_model(&top).map_err(|error| match unread::deepspeed(names) {
        Some(what) => Error::format(what),
        None => error,
    })?;
    if let Some(name) =
        formats.iter().filter_map(|in_folder| in_folder.whole).find(|whole| top.contains(whole))
    {
        return Ok(name.to_owned());
    }

    // What was made of an adapter may lie beside it.
    let adapters = formats.iter().flat_map(|in_folder| in_folder.adapters);
    if let Some(name) =
        adapters.clone().find(|name| top.contains(&ADAPTER_CONFIG) && top.contains(name))
    {
        return Ok((*name).to_owned());
    }
    for of_one_rank in formats.chunk_by(|one, other| one.rank == other.rank) {
        let mut candidates = Candidates::default();
        of_one_rank.iter().for_each(|in_folder| candidates.extend(in_folder.candidates(&top)));
        if let Some(name) = candidates.choose()? {
            return Ok(name.to_owned());
        }
    }

    if let Some(what) = unread::folder(names) {
        return Err(Error::format(what));
    }
    let others: Vec<_> =
        top.iter().filter(|name| WEIGHTS.contains(&extension(name))).copied().collect();
    let found =
        if others.is_empty() { String::new() } else { format!("; it has {}", others.join(", ")) };
    Err(Error::format(format!("no supported weights file in the folder{found}")))
}

/// Rejects a folder of several weights files that are not one model.
///
/// Without a configuration, each weights file is a model. With a configuration, they are the same
/// model for several programs.
fn check_one_model(top: &[&str]) -> Result<()> {
    /// Names that an error lists.
    const SHOWN: usize = 20;

    if top.iter().any(|name| CONFIGS.contains(name) || is_index(name)) {
        return Ok(());
    }

    // Folders may have a hundred thousand files.
    let names: HashSet<&str> = top.iter().copied().collect();
    let first = first_shards(&names);
    let is_model = |name: &str| {
        FORMATS.iter().any(|entry| entry.in_folder.has_extension_of(name))
            && is_first(name, &first)
            // A manifest and its first shard are one.
            && !has_manifest(name, &names)
    };

    let models: Vec<&str> = top.iter().filter(|name| is_model(name)).copied().collect();
    if models.len() < 2 {
        return Ok(());
    }

    let more = if models.len() > SHOWN {
        format!(" and {} more", models.len() - SHOWN)
    } else {
        String::new()
    };
    let listed = models[..models.len().min(SHOWN)].join(", ");
    Err(Error::format(format!(
        "the folder has {} models; name one of {listed}{more}",
        models.len()
    )))
}

/// Returns the number of the first shard that is there of each model, by stem and extension.
///
/// If it is not shard 1, opening it reports the absent ones.
fn first_shards<'n>(top: &HashSet<&'n str>) -> HashMap<(&'n str, &'n str), u32> {
    let mut first = HashMap::new();
    for name in top {
        let Some((stem, (number, _))) = shard_stem(name).zip(shard_number(name)) else { continue };
        let known = first.entry((stem, extension(name))).or_insert(number);
        *known = number.min(*known);
    }
    first
}

/// Returns `true` if a name is that of a model's first shard in the folder, or of no shard.
fn is_first(name: &str, first: &HashMap<(&str, &str), u32>) -> bool {
    let first = |stem| first.get(&(stem, extension(name))).copied();
    shard_stem(name).is_none_or(|stem| first(stem) == shard_number(name).map(|(number, _)| number))
}

/// Returns `true` if the folder has the manifest of a shard.
fn has_manifest(name: &str, top: &HashSet<&str>) -> bool {
    let manifests = FORMATS.iter().filter(|entry| entry.in_folder.shards == Shards::Manifest);
    let mut extensions = manifests.flat_map(|entry| entry.in_folder.extensions);
    shard_stem(name).is_some_and(|stem| {
        extensions.any(|extension| top.contains(&*format!("{stem}.{extension}")))
    })
}

/// Returns `true` if shards of the format are found by an index.
///
/// Without the index, such a shard does not identify the others.
pub(crate) fn has_index(format: &Format) -> bool {
    FORMATS.iter().any(|entry| entry.format == format && entry.open_index.is_some())
}

/// Returns the kind of file that represents the model of a shard, by the shard's name.
///
/// Returns `None` if the first shard represents the model.
pub(crate) fn what_names_the_shards(name: &str) -> Option<&'static str> {
    let of_name = |in_folder: &&InFolder| in_folder.has_extension_of(name);
    match by_rank()
        .into_iter()
        .find(of_name)
        .map_or(Shards::Index(""), |in_folder| in_folder.shards)
    {
        Shards::Index(_) => Some("index"),
        Shards::Manifest => Some("manifest"),
        Shards::First => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the weights of a folder with a configuration, which is added unless `files` contain
    /// one.
    fn found(files: &[&str]) -> Result<String> {
        let names: Vec<String> =
            files.iter().chain(&[CONFIG]).map(|name| (*name).to_owned()).collect();
        find_weights(&names)
    }

    #[test]
    fn files_that_can_not_run_code_are_preferred_and_quantized_ones_are_last() {
        let all = [
            ".metadata",
            "__0_0.distcp",
            "model.safetensors",
            "model-q4.safetensors",
            "pytorch_model.bin",
            "pytorch_model.bin.index.json",
            "model.gguf",
        ];
        let order = [".metadata", "model.safetensors", "model-q4.safetensors", "pytorch_model.bin"];
        let gone = [&all[..2], &all[2..3], &all[3..4], &all[4..5]];
        let mut left = all.to_vec();
        for (expected, gone) in order.iter().zip(gone) {
            assert_eq!(found(&left).as_deref(), Ok(*expected), "{left:?}");
            left.retain(|name| !gone.contains(name));
        }
        assert_eq!(found(&left).as_deref(), Ok("pytorch_model.bin.index.json"));
        assert_eq!(found(&["model.gguf"]).as_deref(), Ok("model.gguf"));
    }

    #[test]
    fn a_description_without_shards_is_ignored() {
        assert_eq!(found(&[".metadata", "model.gguf"]).as_deref(), Ok("model.gguf"));
    }

    #[test]
    fn an_adapter_with_its_configuration_is_preferred_to_derived_files() {
        let files = ["adapter_model.safetensors", "adapter_model.bin", "merged.safetensors"];
        let with = [&files[..], &[ADAPTER_CONFIG]].concat();
        assert_eq!(found(&with).as_deref(), Ok("adapter_model.safetensors"));
        assert_eq!(found(&with[1..]).as_deref(), Ok("adapter_model.bin"));
        assert!(found(&files).is_err_and(|error| error.message().contains("several models")));
    }

    #[test]
    fn one_thing_stands_for_all_shards() {
        let shards = ["m-00001-of-00002", "m-00002-of-00002"];
        let with = |extension: &str| shards.map(|stem| format!("{stem}.{extension}"));
        for (extension, more, expected) in [
            ("safetensors", "m.safetensors.index.json", "m.safetensors.index.json"),
            ("apr", "m.apr", "m.apr"),
            ("apr", "README.md", "m-00001-of-00002.apr"),
            ("gguf", "README.md", "m-00001-of-00002.gguf"),
        ] {
            let [first, second] = with(extension);
            assert_eq!(found(&[&first, &second, more]).as_deref(), Ok(expected), "{extension}");
            // Without a configuration, they are still one model.
            let names = [first, second, more.to_owned()];
            assert_eq!(find_weights(&names).as_deref(), Ok(expected), "{extension}");
        }
        assert_eq!(what_names_the_shards("m-00001-of-00002.apr"), Some("manifest"));
        assert_eq!(what_names_the_shards("m-00001-of-00002.safetensors"), Some("index"));
        assert_eq!(what_names_the_shards("m-00001-of-00002.gguf"), None);
    }

    #[test]
    fn without_a_configuration_several_files_are_several_models() {
        let names: Vec<String> = (0..30).map(|number| format!("{number:02}.pt")).collect();
        let error = find_weights(&names).expect_err("thirty models");
        assert!(
            error.message().contains("30 models") && error.message().ends_with("19.pt and 10 more"),
            "{error}"
        );
        let error = find_weights(&names[..1]).expect_err("no name that a folder's weights have");
        assert!(error.message().ends_with("weights file in the folder; it has 00.pt"), "{error}");
        assert!(
            find_weights(&[])
                .is_err_and(|error| error.message().ends_with("weights file in the folder"))
        );
    }

    #[cfg(feature = "openvino")]
    #[test]
    fn a_graph_beside_weights_of_its_name_stands_for_a_model() {
        assert_eq!(found(&["labels.xml", "net.bin", "net.xml"]).as_deref(), Ok("net.xml"));
        let two = found(&["a.bin", "a.xml", "b.bin", "b.xml"]);
        assert!(two.is_err_and(|error| error.message().ends_with("name one of a.xml, b.xml")));
        let named = ["a.bin", "a.xml", "openvino_model.bin", "openvino_model.xml"];
        assert_eq!(found(&named).as_deref(), Ok("openvino_model.xml"));
        assert!(found(&["net.xml", "other.bin"]).is_err());
    }

    #[test]
    fn files_of_folders_within_are_not_the_weights() {
        assert!(found(&["onnx/model.safetensors", "original/consolidated.pth"]).is_err());
    }

    #[test]
    fn only_numbers_of_several_make_a_shard() {
        assert_eq!(shard_number("model-00001-of-00003.safetensors"), Some((1, 3)));
        for name in [
            "model.apr",
            "model-00001-of-00001.apr",
            "model-1-of-x.apr",
            "model-of-3.apr",
            "a-1-of-2",
        ] {
            assert_eq!(shard_number(name), None, "{name}");
        }
        assert_eq!(shard_stem("a-b-00001-of-00003.gguf"), Some("a-b"));
    }
}
