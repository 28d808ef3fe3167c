//! How files of a model's folder are called.

use std::collections::HashSet;

/// Names of a format's weights in a model folder. Entries start from [`InFolder::NONE`].
pub(crate) struct InFolder {
    /// Weights of the lowest rank are taken; several files of one rank are several models.
    pub(crate) rank: u8,
    /// File that describes all files with an extension; it takes precedence over any other weights.
    pub(crate) description: Option<(&'static str, &'static str)>,
    /// Name of weights that take precedence over everything except such a description.
    pub(crate) whole: Option<&'static str>,
    /// Names of an adapter's weights.
    pub(crate) adapters: &'static [&'static str],
    /// Names of weights, in order of precedence; if empty, an extension is enough.
    pub(crate) names: &'static [&'static str],
    /// Extensions that only weights have.
    pub(crate) extensions: &'static [&'static str],
    /// Extension of files that represent a model beside a file of the same name with the other
    /// extension.
    pub(crate) pair: Option<(&'static str, &'static str)>,
    /// File that represents a model in several files.
    pub(crate) shards: Shards,
}

/// File that represents a model in several files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shards {
    /// An index with this ending, `.safetensors.index.json`.
    Index(&'static str),
    /// A manifest: a file with the shards' stem and their extension.
    Manifest,
    /// The first of them.
    First,
}

impl InFolder {
    /// Weights that no name leads to.
    pub(crate) const NONE: Self = Self {
        rank: u8::MAX,
        description: None,
        whole: None,
        adapters: &[],
        names: &[],
        extensions: &[],
        pair: None,
        shards: Shards::First,
    };

    /// Returns `true` if a file has an extension that only weights of the format have.
    pub(crate) fn has_extension_of(&self, name: &str) -> bool {
        self.extensions.contains(&extension(name))
    }

    /// Returns `true` if a file represents a model by a file that is beside it, given the other
    /// files at the top of the folder.
    pub(crate) fn is_of_a_pair(&self, name: &str, top: &HashSet<&str>) -> bool {
        let Some((own, other)) = self.pair else { return false };
        let stem = name.rsplit_once('.').filter(|(_, extension)| *extension == own);
        stem.is_some_and(|(stem, _)| top.contains(format!("{stem}.{other}").as_str()))
    }
}

/// Returns `true` if a name is the name of one shard of several.
#[must_use]
pub fn is_shard_name(name: &str) -> bool {
    shard_number(name).is_some()
}

/// Returns the common start of a model's shard names: `model` for `model-00001-of-00003.apr`.
#[must_use]
pub fn shard_stem(name: &str) -> Option<&str> {
    shard_number(name)?;
    let (rest, _) = name.rsplit_once("-of-")?;
    rest.rsplit_once('-').map(|(stem, _)| stem)
}

/// Number and count of a shard, by its name: `model-00001-of-00003.safetensors`.
#[must_use]
pub fn shard_number(name: &str) -> Option<(u32, u32)> {
    let (stem, _) = name.rsplit_once('.')?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let (number, count) = (number.parse().ok()?, count.parse().ok()?);
    (count > 1).then_some((number, count))
}

/// End of the name of a shard index, after the name of the file that the shards are cut from.
pub(crate) const INDEX: &str = ".index.json";

/// Returns `true` if a name is the name of a shard index.
pub(crate) fn is_index(name: &str) -> bool {
    name.ends_with(INDEX)
}

/// Returns the text after the last dot of a name.
pub(crate) fn extension(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}
