//! Which files of a repository are one model.
//!
//! 1. `--file` names the weights; those of its shards that it has come too.
//! 2. Otherwise the weights lie in the folder that is named, not in one below it: `original/` and
//!    `onnx/` hold the same model for other programs.
//! 3. Of several formats, the first of these: safetensors, APR, GGUF, PyTorch, ONNX. A `.bin` file
//!    beside an `.xml` file of its name is OpenVINO's and not PyTorch's.
//! 4. Of several models in a format: `model`, without a variant (`model.fp16`); of quantized ones
//!    Q4_K_M, then the others in a fixed order.
//! 5. Configuration, tokenizer, card and licence come with them.

use std::collections::HashSet;

use apr_core::{Companion, Error, IoCause, Result};
use apr_view::{NameChoice, nearest_files};

use crate::hub::{RemoteFile, did_you_mean};

/// The user's selection of files.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// The file of the weights, or one of its shards.
    pub file: Option<String>,
    /// The names that are wanted: weights that are not included and files that are excluded are not
    /// used.
    pub names: NameChoice,
}

/// The files of one model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chosen {
    /// Files of weights, with the index of their shards.
    pub weights: Vec<String>,
    /// Configuration, tokenizer, card, licence.
    pub companions: Vec<String>,
    /// Weights that are not of this model, or are the same for other programs.
    pub others: Vec<String>,
    /// The model that was chosen, and the reason, if there was a choice.
    pub why: Option<String>,
}

/// Formats by the extensions of their files, the preferred first.
const FORMATS: [&[&str]; 13] = [
    &["safetensors"],
    &["apr"],
    &["gguf"],
    &["bin", "pt", "pth", "ckpt"],
    &["onnx"],
    &["ort"],
    &[GRAPH],
    &["tflite"],
    &["keras"],
    &["msgpack"],
    &["nemo"],
    &["h5", "hdf5"],
    &["mlmodel"],
];

/// Extension of OpenVINO's graphs. Such a file is a model if its weights lie beside it.
const GRAPH: &str = "xml";

/// Extensions of weights that are not read, or are meant for other programs.
const FOREIGN: [&str; 7] = ["ot", "npz", "pb", "safetensors_old", "pkl", "distcp", "llamafile"];

/// Types of quantized weights, the preferred first.
const TYPES: [&str; 9] =
    ["q4_k_m", "q5_k_m", "q4_k_s", "q6_k", "q8_0", "q4_0", "bf16", "f16", "f32"];

/// Words in the names of weights that are not separate models.
const AUXILIARY: [&str; 6] = [
    "mmproj",
    "imatrix",
    "training_args",
    "optimizer",
    "openvino_tokenizer",
    "openvino_detokenizer",
];

/// Others shown in the explanation.
const SHOWN: usize = 4;

/// Chooses the files of one model.
///
/// # Errors
/// E007 for a file that does not exist.
pub(crate) fn choose(files: &[RemoteFile], choice: &Choice) -> Result<Chosen> {
    let names: Vec<&str> = files
        .iter()
        .map(|file| file.name.as_str())
        .filter(|name| !choice.names.is_excluded(name))
        .collect();
    let is_asked = |name: &&str| choice.names.is_included(name);
    let graphs = Graphs::of(&names);
    let groups = models(&names, &graphs, choice, is_asked)?;
    let candidates = groups.len();
    let (kept, rule) = preferred(groups);
    let is_index = |name: &str| name.ends_with(".index.json");

    // Where nothing is preferred, whoever opens the folder says what is wrong with it.
    let is_kept = |name: &str| {
        let group = graphs.group_of(name);
        kept.is_empty() && is_asked(&name) || kept.contains(&group)
    };
    let mut chosen = Chosen { companions: companions(&names), ..Chosen::default() };
    for name in names.iter().copied().filter(|name| graphs.has_weights(name) || is_index(name)) {
        let list = if is_kept(name) { &mut chosen.weights } else { &mut chosen.others };
        list.push(name.to_owned());
    }

    if candidates > 1 && !kept.is_empty() {
        chosen.why = Some(explanation(&chosen, candidates, rule));
    }

    Ok(chosen)
}

/// Returns the models to choose from: the models of the folder itself, or the model of the named
/// file.
fn models(
    names: &[&str],
    graphs: &Graphs<'_>,
    choice: &Choice,
    is_asked: impl Fn(&&str) -> bool,
) -> Result<Vec<String>> {
    if let Some(file) = &choice.file {
        check_there(file, names)?;
        return Ok(vec![graphs.group_of(file)]);
    }
    if names.contains(&"adapter_config.json") {
        return Ok(Vec::new());
    }
    let is_here = |name: &&str| graphs.has_weights(name) && !name.contains('/');
    Ok(graphs.groups(names.iter().copied().filter(is_here).filter(is_asked)))
}

fn explanation(chosen: &Chosen, candidates: usize, rule: &str) -> String {
    let listed = |names: &[String]| {
        let more = if names.len() > SHOWN {
            format!(" and {} more", names.len() - SHOWN)
        } else {
            String::new()
        };
        format!("{}{more}", names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", "))
    };
    let (taken, others) = (listed(&chosen.weights), listed(&chosen.others));
    format!(
        "{candidates} models found; selected {taken} ({rule}), not {others}; `file` selects \
         another"
    )
}

fn check_there(file: &str, names: &[&str]) -> Result<()> {
    if names.contains(&file) {
        return Ok(());
    }
    let near = nearest_files(file, names.iter().copied(), 5);
    let message = format!("no file '{file}'{}", did_you_mean(&near));
    Err(Error::io(IoCause::NotFound, message))
}

fn extension(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// Returns `true` if a file contains weights, in any format.
pub(crate) fn is_weights(name: &str) -> bool {
    let extension = extension(without_data(name));
    is_format(extension) && extension != GRAPH || FOREIGN.contains(&extension)
}

fn is_format(extension: &str) -> bool {
    FORMATS.iter().any(|format| format.contains(&extension))
}

/// OpenVINO's models: names of graphs that have their weights beside them, without extensions.
struct Graphs<'n>(HashSet<&'n str>);

/// Returns the ONNX file that a file of external data belongs to, by their usual names. Returns
/// other names unchanged.
fn without_data(name: &str) -> &str {
    let owner = [".data", "_data"].iter().find_map(|end| name.strip_suffix(end));
    owner.filter(|owner| owner.ends_with(".onnx")).unwrap_or(name)
}

impl<'n> Graphs<'n> {
    fn of(names: &[&'n str]) -> Self {
        let stems = |wanted: &'static str| {
            let of_file = move |name: &&'n str| name.rsplit_once('.').filter(|it| it.1 == wanted);
            names.iter().filter_map(of_file).map(|(stem, _)| stem)
        };
        let weights: HashSet<&str> = stems("bin").collect();
        Self(stems(GRAPH).filter(|stem| weights.contains(stem)).collect())
    }

    /// Returns `true` if a file contains weights, or is the graph beside them.
    fn has_weights(&self, name: &str) -> bool {
        is_weights(name) || self.has(name)
    }

    /// Returns `true` if a file is one of the two of a model.
    fn has(&self, name: &str) -> bool {
        let parts = name.rsplit_once('.').filter(|(_, end)| [GRAPH, "bin"].contains(end));
        parts.is_some_and(|(stem, _)| self.0.contains(stem))
    }

    /// Returns the common part of the names of a model's files: the name without the number of a
    /// shard, and the extension.
    fn group_of(&self, name: &str) -> String {
        let name = without_data(name.strip_suffix(".index.json").unwrap_or(name));
        let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
        if self.has(name) {
            return format!("{stem}.{GRAPH}");
        }
        let is_number =
            |text: &str| text.len() >= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let unnumbered = stem.rsplit_once("-of-").filter(|(_, count)| is_number(count));
        let unnumbered = unnumbered
            .and_then(|(rest, _)| rest.rsplit_once('-').filter(|(_, number)| is_number(number)));
        format!("{}.{extension}", unnumbered.map_or(stem, |(stem, _)| stem))
    }

    /// Groups weights into models, by the common part of their file names.
    fn groups<'a>(&self, weights: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut groups: Vec<String> = Vec::new();
        for name in weights.filter(|name| is_format(extension(without_data(name)))) {
            let group = self.group_of(name);
            let lower = group.to_lowercase();
            if !groups.contains(&group) && !AUXILIARY.iter().any(|word| lower.contains(word)) {
                groups.push(group);
            }
        }
        groups
    }
}

/// Returns the preferred model and the rule that selects it, or no model if no rule applies.
fn preferred(mut groups: Vec<String>) -> (Vec<String>, &'static str) {
    if groups.len() <= 1 {
        return (groups, "the only one");
    }

    let Some(format) =
        FORMATS.iter().find(|format| groups.iter().any(|group| format.contains(&extension(group))))
    else {
        return (Vec::new(), "");
    };
    groups.retain(|group| format.contains(&extension(group)));
    if let [_] = groups[..] {
        return (groups, "safetensors, APR, GGUF, PyTorch and ONNX are preferred in this order");
    }

    let usual = |group: &&String| {
        let stem = group.rsplit_once('.').map_or("", |(stem, _)| stem);
        ["model", "pytorch_model", "diffusion_pytorch_model", "openvino_model"].contains(&stem)
    };
    if let Some(group) = groups.iter().find(usual) {
        return (vec![group.clone()], "the usual name");
    }

    let of_type =
        |wanted: &&str| groups.iter().find(|group| group.to_lowercase().contains(*wanted));
    match TYPES.iter().find_map(of_type).filter(|group| extension(group) == "gguf") {
        Some(group) => (
            vec![group.clone()],
            "of quantized models Q4_K_M is preferred, then Q5_K_M, Q4_K_S, Q6_K, Q8_0",
        ),
        None => (Vec::new(), ""),
    }
}

/// Returns configuration, tokenizer, chat template, model card and licence, by the names that the
/// hub uses.
fn companions(names: &[&str]) -> Vec<String> {
    let all = names
        .iter()
        .copied()
        .filter(|name| !name.ends_with(".index.json") && !name.starts_with('.'));
    all.filter(|name| Companion::is_name(name)).map(str::to_owned).collect()
}

/// Returns the kind of a file in a repository, as one word.
pub(crate) fn kind_of(name: &str, chosen: &Chosen) -> &'static str {
    let is_in = |list: &[String]| list.iter().any(|other| other == name);
    if is_in(&chosen.weights) {
        return if name.ends_with(".index.json") { "index" } else { "weights" };
    }
    if is_in(&chosen.companions) {
        return "companion";
    }
    if is_in(&chosen.others) || is_weights(name) { "other weights" } else { "other" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], choice: &Choice) -> Chosen {
        let file = |name: &&str| RemoteFile { name: (*name).to_owned(), len: None, etag: None };
        choose(&names.iter().map(file).collect::<Vec<_>>(), choice).expect("a choice")
    }

    fn weights(names: &[&str]) -> Vec<String> {
        chosen(names, &Choice::default()).weights
    }

    #[test]
    fn one_model_is_chosen_by_the_rules() {
        let openvino = [
            "openvino_detokenizer.bin",
            "openvino_detokenizer.xml",
            "openvino_model.bin",
            "openvino_model.xml",
            "openvino_tokenizer.bin",
            "openvino_tokenizer.xml",
            "sitemap.xml",
        ];
        let cases: [(&[&str], &[&str]); 12] = [
            (&openvino, &["openvino_model.bin", "openvino_model.xml"]),
            (&["model.onnx", "openvino_model.bin", "openvino_model.xml"], &["model.onnx"]),
            (
                &["openvino_model.bin", "openvino_model.xml", "pytorch_model.bin"],
                &["pytorch_model.bin"],
            ),
            (
                &["model.onnx", "model.onnx_data", "model_fp16.onnx"],
                &["model.onnx", "model.onnx_data"],
            ),
            (&["model.safetensors", "pytorch_model.bin", "tf_model.h5"], &["model.safetensors"]),
            (&["model.fp16.safetensors", "model.safetensors"], &["model.safetensors"]),
            (
                &[
                    "consolidated.safetensors",
                    "model-00001-of-00002.safetensors",
                    "model-00002-of-00002.safetensors",
                    "model.safetensors.index.json",
                    "original/consolidated.00.pth",
                ],
                &[
                    "model-00001-of-00002.safetensors",
                    "model-00002-of-00002.safetensors",
                    "model.safetensors.index.json",
                ],
            ),
            (
                &["m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-f16.gguf"],
                &["m-Q4_K_M.gguf"],
            ),
            (
                &["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "m-IQ1_S.gguf"],
                &["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"],
            ),
            (
                &[
                    "pytorch_model-00001-of-00002.bin",
                    "pytorch_model-00002-of-00002.bin",
                    "pytorch_model.bin.index.json",
                    "training_args.bin",
                ],
                &[
                    "pytorch_model-00001-of-00002.bin",
                    "pytorch_model-00002-of-00002.bin",
                    "pytorch_model.bin.index.json",
                ],
            ),
            (&["onnx/model.onnx", "model.safetensors"], &["model.safetensors"]),
            // No rule says: whoever opens it asks.
            (&["a.safetensors", "b.safetensors"], &["a.safetensors", "b.safetensors"]),
        ];
        for (names, expected) in cases {
            assert_eq!(weights(names), expected, "{names:?}");
        }
    }

    #[test]
    fn the_choice_of_the_user_has_precedence() {
        let names = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "config.json", "README.md"];
        let choice = |file: Option<&str>, include: &[&str], exclude: &[&str]| Choice {
            file: file.map(str::to_owned),
            names: NameChoice::parse(include, exclude).expect("patterns"),
        };
        assert_eq!(chosen(&names, &choice(Some("m-Q8_0.gguf"), &[], &[])).weights, ["m-Q8_0.gguf"]);
        assert_eq!(chosen(&names, &choice(None, &["*Q8*"], &[])).weights, ["m-Q8_0.gguf"]);
        let without = chosen(&names, &choice(None, &[], &["*Q4*", "*.md"]));
        assert_eq!(
            (without.weights, without.companions),
            (vec!["m-Q8_0.gguf".to_owned()], vec!["config.json".to_owned()])
        );
    }

    #[test]
    fn a_choice_is_explained_where_there_was_one() {
        let why =
            chosen(&["m-Q4_K_M.gguf", "m-Q8_0.gguf"], &Choice::default()).why.expect("a choice");
        assert!(why.contains("selected m-Q4_K_M.gguf") && why.contains("not m-Q8_0.gguf"), "{why}");
        assert_eq!(chosen(&["model.safetensors"], &Choice::default()).why, None);
    }
}
