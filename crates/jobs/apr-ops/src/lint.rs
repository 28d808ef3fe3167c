//! Best practices and conventions: what is not wrong, but could be better.

use apr_arch::{FamilyModel, Mismatch};
use apr_core::{Convention, ExtentKind, counted};
use apr_quantize::Scheme;
use apr_registry::{CheckpointReader, Escaped, Format, Metadata, Result, TensorInfo, keys};
use apr_source::adapter::{AdapterProblem, adapter_of, is_adapter};
use apr_source::companions::learn_from;
use apr_view::nearest;
use serde::Serialize;

use crate::import::{COMPARED, expected_mels, filterbank_misfit, tokenizer_misfit};

/// Alignment that lets any kernel read a tensor in place, in bytes.
const ALIGNMENT: u64 = 64;
/// Uncompressed tensors above this many bytes are worth a word.
const LARGE: u64 = 1 << 20;
/// Bits of a stored form that encode its sparse layout (`docs/format/apr2.md`, "Index").
const SPARSE: u32 = 0xf00;
/// Bytes of padding read at a time.
const READ_LEN: usize = 1 << 16;

/// Severity of a remark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Severity {
    /// Users of the model will miss it.
    Warn,
    /// A possible improvement.
    Info,
}

/// Topic of a remark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum Topic {
    /// Licence, model card, provenance.
    Metadata,
    /// Names against the canonical ones.
    #[serde(rename = "Tensor Naming")]
    Naming,
    /// Alignment of the tensors.
    Efficiency,
    /// Stored size of the tensors.
    Compression,
    /// Oddities of the file itself.
    Structure,
}

impl Topic {
    /// Returns the heading of the topic in the report.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Metadata => "Metadata",
            Self::Naming => "Tensor Naming",
            Self::Efficiency => "Efficiency",
            Self::Compression => "Compression",
            Self::Structure => "Structure",
        }
    }
}

/// Remark about a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// Severity of the remark.
    pub severity: Severity,
    /// Topic of the remark.
    pub topic: Topic,
    /// Text of the remark.
    pub message: String,
    /// Name of the tensor, if the remark is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
}

/// The report of `apr lint`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LintReport {
    /// Path or location of the opened model.
    pub path: String,
    /// Format of the model.
    pub format: &'static Format,
    /// The remarks, warnings first.
    pub remarks: Vec<Remark>,
}

impl LintReport {
    /// Remarks of a severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.remarks.iter().filter(|remark| remark.severity == severity).count()
    }
}

/// Checks names, metadata and layout without reading tensors.
///
/// # Errors
/// E002 and E007 when padding can't be read.
pub(crate) fn lint(
    reader: &dyn CheckpointReader,
    file: &str,
    model: Option<&FamilyModel<'_>>,
) -> Result<LintReport> {
    let mut remarks = Remarks::default();

    // What the files beside the weights say is part of the model, as an import takes it.
    let learnt: Metadata =
        learn_from(reader)?.metadata.into_iter().collect::<serde_json::Map<_, _>>().into();
    if reader.format().convention == Convention::LlamaCpp {
        gguf(reader, &mut remarks);
    } else {
        metadata(reader, &learnt, &mut remarks);
    }

    revision(reader, file, &mut remarks);
    match model {
        Some(model) => naming_of_family(reader, model, &mut remarks),
        None if is_adapter(reader.tensors()) => of_adapter(reader, &mut remarks)?,
        None if has_conventions(reader) => {}
        None => naming_of_no_family(reader, &mut remarks),
    }

    if !has_conventions(reader) {
        alignment(reader, &mut remarks);
    }

    filterbank(reader, &learnt, &mut remarks);
    if let Some(rows) = model.and_then(|model| model.dimension("vocab"))
        && let Some(misfit) = tokenizer_misfit(reader, rows)
    {
        remarks.add(Severity::Warn, Topic::Structure, misfit.message);
    }
    compression(reader, &mut remarks);
    structure(reader, &mut remarks)?;
    let mut remarks = remarks.0;
    remarks.sort_by_key(|remark| remark.severity);
    Ok(LintReport { path: file.to_owned(), format: reader.format(), remarks })
}

#[derive(Default)]
struct Remarks(Vec<Remark>);

impl Remarks {
    fn add(&mut self, severity: Severity, topic: Topic, message: impl Into<String>) {
        self.0.push(Remark { severity, topic, message: message.into(), tensor: None });
    }

    /// Adds one about a tensor.
    fn add_of(&mut self, severity: Severity, topic: Topic, tensor: &str, message: String) {
        self.0.push(Remark { severity, topic, message, tensor: Some(tensor.to_owned()) });
    }
}

fn metadata(reader: &dyn CheckpointReader, learnt: &Metadata, remarks: &mut Remarks) {
    // An import writes down under `source` where the model comes from. Of a model as its author
    // left it, the card tells.
    let provenance: &[&str] = if is_of_a_framework(reader) {
        &["provenance", "model_card"]
    } else {
        &["provenance", keys::SOURCE]
    };
    let wanted: [(&str, &[&str]); 3] =
        [("license", &["license"]), ("model_card", &["model_card"]), ("provenance", provenance)];
    let is_there = |key: &&str| {
        let value = reader.metadata().get(key).or_else(|| learnt.get(key));
        value.is_some_and(|value| !value.is_null())
    };
    for (name, keys) in wanted {
        if !keys.iter().any(is_there) {
            let field = if name == "license" { " field" } else { "" };
            remarks.add(Severity::Warn, Topic::Metadata, format!("Missing '{name}'{field}"));
        }
    }
}

/// Adds a remark if the revision of a hub location is not pinned to a commit.
///
/// A branch can point to another model later, while a commit never changes.
fn revision(reader: &dyn CheckpointReader, file: &str, remarks: &mut Remarks) {
    const HUB: &str = "hf://";

    let is_commit =
        |text: &str| text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let pinned = |location: &str| {
        location
            .split_once('@')
            .is_some_and(|(_, rest)| is_commit(rest.split('/').next().unwrap_or_default()))
    };
    let advice = "its revision is not pinned; hf://ORG/REPO@COMMIT names one state of it";
    if file.starts_with(HUB) && !pinned(file) {
        remarks.add(
            Severity::Warn,
            Topic::Metadata,
            format!("{file} is what its branch is today: {advice}"),
        );
    }

    let Some(source) = reader.metadata().object(keys::SOURCE) else { return };
    let text = |key: &str| source.get(key).and_then(serde_json::Value::as_str);
    let Some(url) = text("url").filter(|url| url.starts_with(HUB)) else { return };
    if !pinned(url) && !text("revision").is_some_and(is_commit) {
        remarks.add(
            Severity::Warn,
            Topic::Metadata,
            format!("the model's source is {url}, and {advice}"),
        );
    }
}

/// Returns `true` if the format's readers expect their own names and alignment.
fn has_conventions(reader: &dyn CheckpointReader) -> bool {
    matches!(reader.format().convention, Convention::LlamaCpp | Convention::Ggml)
}

/// Returns `true` if the names are the training framework's own, which its programs expect.
fn is_of_a_framework(reader: &dyn CheckpointReader) -> bool {
    reader.format().convention == Convention::Framework
}

/// Returns `true` if names that are not canonical are correct.
fn keeps_names(reader: &dyn CheckpointReader) -> bool {
    has_conventions(reader) || is_of_a_framework(reader)
}

/// Checks that a GGUF file describes itself fully.
fn gguf(reader: &dyn CheckpointReader, remarks: &mut Remarks) {
    let metadata = reader.metadata();
    let pairs = apr_gguf::key_values(metadata).ok().flatten();
    // An importance matrix is a measurement: it has neither a name nor a licence of its own.
    let kind = pairs.as_ref().and_then(|pairs| pairs.text("general.type"));
    if kind == Some("imatrix") {
        return;
    }
    for (name, key) in [("general.name", "model_name"), ("general.license", "license")] {
        if metadata.get(key).is_none_or(serde_json::Value::is_null) {
            remarks.add(Severity::Warn, Topic::Metadata, format!("Missing '{name}'"));
        }
    }

    let Some(pairs) = pairs else { return };
    let value = |key: &str| pairs.get(key);
    let embeds = reader.tensors().iter().any(|info| info.name == "token_embd.weight");
    if embeds && value("tokenizer.ggml.model").is_none() {
        remarks.add(
            Severity::Warn,
            Topic::Metadata,
            "Missing a tokenizer ('tokenizer.ggml.model')",
        );
    }

    let Some(number) = value("general.file_type").and_then(|number| number.as_u64()) else {
        return;
    };
    let stated = Scheme::ALL
        .iter()
        .find(|scheme| scheme.file_type().is_some_and(|it| u64::from(it) == number));
    let Some(stated) = stated.filter(|_| !reader.tensors().is_empty()) else { return };
    if reader.tensors().iter().all(|info| info.dtype != stated.dtype()) {
        let (name, dtype) = (stated.name(), stated.dtype());
        let message = format!(
            "'general.file_type' is {number}, which means {name}, but no tensor is {dtype}"
        );
        remarks.add(Severity::Warn, Topic::Metadata, message);
    }
}

fn naming_of_family(reader: &dyn CheckpointReader, model: &FamilyModel<'_>, remarks: &mut Remarks) {
    let missing = missing_names(reader, model);
    if model.is_guessed() {
        let title = model.family().title();
        let message =
            format!("the family {title} is guessed from tensor names: no metadata names it");
        remarks.add(Severity::Info, Topic::Metadata, message);
    }

    let keeps_names = keeps_names(reader);
    let mut unknown = 0;
    for (position, info) in reader.tensors().iter().enumerate() {
        match model.canonical(position) {
            Some(canonical) if keeps_names || canonical == info.name => {}
            Some(canonical) => {
                let message = format!("'{}' should be '{canonical}'", info.name);
                remarks.add_of(Severity::Info, Topic::Naming, &info.name, message);
            }
            None if reader.metadata().auxiliary_tensor() == Some(&info.name) => {}
            None => {
                unknown += 1;
                // Where there are more, none of them was renamed.
                let compared =
                    if unknown <= COMPARED { &missing[..missing.len().min(COMPARED)] } else { &[] };
                remarks.add_of(
                    Severity::Warn,
                    Topic::Naming,
                    &info.name,
                    not_of_family(&info.name, model, compared),
                );
            }
        }
    }
}

/// Names of the tensors that the family has and the checkpoint lacks.
fn missing_names(reader: &dyn CheckpointReader, model: &FamilyModel<'_>) -> Vec<String> {
    let mismatches = model.mismatches(reader.tensors()).into_iter();
    mismatches
        .filter_map(
            |mismatch| if let Mismatch::Missing { name } = mismatch { Some(name) } else { None },
        )
        .collect()
}

/// Returns the remark about a tensor that is not in the family.
///
/// It mentions a missing tensor of a similar name.
fn not_of_family(name: &str, model: &FamilyModel<'_>, missing: &[String]) -> String {
    let similar = nearest(name, missing.iter().map(String::as_str), 1);
    let hint = similar.first().map_or(String::new(), |name| format!("; '{name}' is missing"));
    format!("'{name}' is not a tensor of the {} family{hint}", model.family().title())
}

/// Checks the information that users of an adapter need.
fn of_adapter(reader: &dyn CheckpointReader, remarks: &mut Remarks) -> Result<()> {
    let Some(adapter) = adapter_of(reader)? else { return Ok(()) };
    if adapter.base.is_none() {
        let message = "missing base model of the adapter (base_model_name_or_path in \
                       adapter_config.json)";
        remarks.add(Severity::Warn, Topic::Metadata, message);
    }

    if adapter.alpha.is_none() {
        remarks.add(Severity::Warn, Topic::Metadata, "missing alpha of the adapter (lora_alpha)");
    }

    for AdapterProblem { tensor, message } in adapter.problems {
        let message = format!("'{tensor}': {message}");
        remarks.add_of(Severity::Warn, Topic::Structure, &tensor, message);
    }

    Ok(())
}

fn naming_of_no_family(reader: &dyn CheckpointReader, remarks: &mut Remarks) {
    remarks.add(
        Severity::Info,
        Topic::Naming,
        "unknown family: names are checked by general rules only",
    );
    for info in reader.tensors() {
        if let Some(better) = by_general_rules(&info.name, is_of_a_framework(reader)) {
            let message = format!("'{}' should be '{better}' for auto-mapping", info.name);
            remarks.add_of(Severity::Info, Topic::Naming, &info.name, message);
        }
    }
}

/// The rules of canonical names that hold for every family: no `model.` in front, `weight` and
/// `bias` in full. Frameworks put `model.` in front, and expect it there.
fn by_general_rules(name: &str, of_a_framework: bool) -> Option<String> {
    let stem = if of_a_framework { name } else { name.strip_prefix("model.").unwrap_or(name) };
    let better = match stem.rsplit_once('.') {
        Some((module, "w" | "W" | "gamma" | "kernel")) => format!("{module}.weight"),
        Some((module, "b" | "B" | "beta")) => format!("{module}.bias"),
        _ => stem.to_owned(),
    };
    (better != name).then_some(better)
}

/// A filterbank that the network can't take (QA 48).
fn filterbank(reader: &dyn CheckpointReader, learnt: &Metadata, remarks: &mut Remarks) {
    let metadata = reader.metadata();
    if expected_mels(metadata).is_none() {
        return;
    }
    let get = |key: &str| metadata.get(key).or_else(|| learnt.get(key));
    if let Some(misfit) = filterbank_misfit(metadata, reader.tensors(), get) {
        remarks.add(Severity::Warn, Topic::Structure, misfit.message);
    }
}

fn alignment(reader: &dyn CheckpointReader, remarks: &mut Remarks) {
    let offsets = || {
        (0..reader.tensors().len())
            .map(|tensor| reader.stored(tensor).range)
            .filter(|stored| stored.len > 0)
    };
    let unaligned = offsets().filter(|stored| stored.offset % ALIGNMENT != 0).count();

    // The alignment that all of them have: the lowest bit that any offset sets.
    let together = offsets().fold(ALIGNMENT, |bits, stored| bits | stored.offset);
    let current = 1_u64 << together.trailing_zeros();
    if unaligned > 0 {
        let tensors = counted(unaligned as u64, "tensor");
        let message =
            format!("{tensors} could be aligned to {ALIGNMENT} bytes (currently {current})");
        remarks.add(Severity::Info, Topic::Efficiency, message);
    }
}

fn compression(reader: &dyn CheckpointReader, remarks: &mut Remarks) {
    if !reader.format().target.is_some_and(|target| target.seals) {
        return;
    }

    let large = |(position, info): (usize, &TensorInfo)| {
        let len = info.byte_len().unwrap_or_default();
        (len > LARGE && reader.stored(position).range.len == len).then_some(len)
    };
    let large: Vec<u64> = reader.tensors().iter().enumerate().filter_map(large).collect();
    if !large.is_empty() {
        let total: u64 = large.iter().sum();
        let tensors = counted(large.len() as u64, "uncompressed tensor");
        let message = format!("{tensors} over 1 MB ({:.1} MB together)", total as f64 / 1e6);
        remarks.add(Severity::Info, Topic::Compression, message);
    }

    for (position, info) in reader.tensors().iter().enumerate() {
        let Some(form) = reader.stored(position).form().filter(|form| form.flags & SPARSE != 0)
        else {
            continue;
        };
        if info.byte_len().is_ok_and(|dense| form.raw_len >= dense) {
            let name = Escaped::short(&info.name);
            let message = match form.is_factors() {
                true => format!(
                    "tensor '{name}' is stored as factors of a high rank: a dense layout would be \
                     smaller"
                ),
                false => format!(
                    "tensor '{name}' is stored as sparse, but is dense: a dense layout would be \
                     smaller"
                ),
            };
            remarks.add_of(Severity::Warn, Topic::Compression, &info.name, message);
        }
    }
}

fn structure(reader: &dyn CheckpointReader, remarks: &mut Remarks) -> Result<()> {
    let passed = reader
        .metadata()
        .get(keys::VIOLATIONS)
        .and_then(serde_json::Value::as_array)
        .map_or(0, Vec::len);
    if passed > 0 {
        let violations = counted(passed as u64, "violation");
        remarks.add(
            Severity::Warn,
            Topic::Structure,
            format!("imported with {violations}; `validate` lists them"),
        );
    }

    for warning in reader.warnings() {
        remarks.add(Severity::Warn, Topic::Structure, warning.clone());
    }

    let Some(checksum) = reader.container().checksum() else { return Ok(()) };
    let mut bytes = vec![0; READ_LEN];
    let padding = checksum.extents.iter().filter(|extent| extent.kind == ExtentKind::Padding);
    for extent in padding {
        let mut done = 0;
        while done < extent.len {
            let piece =
                usize::try_from(extent.len - done).map_or(READ_LEN, |left| left.min(READ_LEN));
            reader.container().read_raw(extent.offset + done, &mut bytes[..piece])?;
            if let Some(odd) = bytes[..piece].iter().position(|&byte| byte != 0) {
                let offset = extent.offset + done + odd as u64;
                remarks.add(
                    Severity::Warn,
                    Topic::Structure,
                    format!("the padding is not zero (at byte {offset})"),
                );
                break;
            }
            done += piece as u64;
        }
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn general_rules_spell_names_out() {
        assert_eq!(by_general_rules("encoder.w", true).as_deref(), Some("encoder.weight"));
        assert_eq!(by_general_rules("model.encoder.b", false).as_deref(), Some("encoder.bias"));
        assert_eq!(
            by_general_rules("model.encoder.weight", false).as_deref(),
            Some("encoder.weight")
        );
        assert_eq!(by_general_rules("model.encoder.weight", true), None);
        assert_eq!(by_general_rules("encoder.weight", false), None);
        assert_eq!(by_general_rules("w", false), None, "a name of one word may mean anything");
    }
}
