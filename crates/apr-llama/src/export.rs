//! A checkpoint as llama.cpp wants it: tensors under its names and in its layout, hyperparameters
//! under its keys.

use std::collections::{BTreeMap, HashSet};

use apr_arch::{CANONICAL, Families, FamilyModel, GGUF, GgufLayout, Kind, Naming};
use apr_core::counted;
use apr_gguf::{Array, KeyValue, Value as Typed};
use apr_quantize::{Scheme, recorded_scheme};
use apr_registry::{CheckpointReader, DType, Error, Loss, Metadata, Result, TensorInfo, keys};
use apr_source::Source;
use apr_source::adapter::is_adapter;
use apr_source::naming::NAMES;
use apr_view::{Change, Origin, View};
use serde_json::{Map, Value, json};

use super::hyperparameters::{Facts, Written, size_label};
use super::import::{Described, rows_of};
use super::rope;

/// The version of GGUF that is written.
const VERSION: u32 = 3;

/// Most rotary dimensions a head may have.
const MAX_HEAD: u64 = 1 << 16;

/// Canonical names of the tensors that llama.cpp reads rotary factors from.
const LLAMA3: &str = "rope_freqs.weight";
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

/// Ends of the names of four-bit floats and of their exponents.
const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";

/// The tensor with a row for each token.
const TOKENS: &str = "token_embd.weight";

/// What configurations call the activation function of the feed-forward networks; the first that is
/// there counts.
const ACTIVATIONS: [&str; 5] =
    ["hidden_activation", "hidden_act", "activation_function", "activation", "feed_forward_proj"];

/// What T5's configuration says in its `feed_forward_proj`, too.
const PARTS_OF_ACTIVATION: [&str; 2] = ["dense_act_fn", "is_gated_act"];

/// A checkpoint ready for a GGUF file.
pub struct GgufExport<'a> {
    /// The tensors; its metadata have the file's keys under `gguf`.
    pub view: View<'a>,
    /// Of each tensor, the dtype that llama.cpp needs it in; none where it takes any, quantized
    /// ones included.
    pub dtypes: Vec<Option<DType>>,
    /// What llama.cpp has no place for.
    pub losses: Vec<Loss>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Prepares a checkpoint for a GGUF file. `tokenizer` are the keys that start with `tokenizer.`.
///
/// A checkpoint that has its values in GGUF's layout already keeps them, and its keys, and gets its
/// names back.
///
/// # Errors
/// E001 when the family is not known, when llama.cpp has no such models, lacks a place for a tensor
/// of a layer, or needs a hyperparameter that is not there; when a tensor is stored so that its
/// layout can't be changed. E007 and E008 when a companion can't be read. E001, too, when a
/// hyperparameter is a number that llama.cpp can't compute with, or `rope_scaling` is malformed.
pub fn export<'a>(source: &Source<'a>, tokenizer: Vec<KeyValue>) -> Result<GgufExport<'a>> {
    let reader = source.reader();
    if is_adapter(reader.tensors()) {
        return Err(Error::format(
            "this is an adapter, and apr writes GGUF files of whole models only",
        ));
    }
    let model = source.family()?.ok_or_else(|| {
        match reader.tensors().iter().find(|info| is_of_vision(&info.name)) {
            Some(info) => Error::format(format!(
                "this model sees, and apr writes no mmproj file: {OF_VISION}"
            ))
            .for_tensor(&info.name),
            None => unknown_family(reader.metadata(), source.families()),
        }
    })?;
    if model.is_in_gguf_layout() && reader.metadata().get(keys::GGUF).is_some() {
        return Ok(as_it_is(reader, model));
    }
    if model.gguf_architecture().is_none() {
        let title = model.family().title();
        return Err(Error::format(format!(
            "llama.cpp has no models of the family {title}, so GGUF can't hold one"
        )));
    }
    let facts = Facts::of(source)?;
    // What the configuration lacks is told by its name, before a tensor's layout is found to depend
    // on it.
    let early = facts.keys(model, &Written::default())?;
    let scaling = rope::scaling(&facts.config)?;
    let mut plan =
        Plan { reader, model, tensors: Vec::new(), losses: Vec::new(), names: HashSet::new() };
    plan.add_computed(&facts, &early)?;
    plan.add_all()?;
    plan.cut_to_vocabulary(&tokenizer)?;
    let Plan { tensors, mut losses, .. } = plan;
    let dtypes: Vec<Option<DType>> = tensors.iter().map(|(info, _)| required_dtype(info)).collect();
    let stored =
        tensors.iter().zip(&dtypes).map(|((info, _), dtype)| (info, dtype.unwrap_or(info.dtype)));
    let classifier = tensors.iter().find(|(info, _)| info.name == "cls.output.weight");
    let written = Written {
        classes: classifier.and_then(|(info, _)| info.shape.dims().first().copied()),
        file_type: recorded_file_type(reader.metadata()).unwrap_or_else(|| file_type(stored)),
        size_label: size_label(
            tensors.iter().map(|(info, _)| (info.name.as_str(), info.shape.dims())),
        ),
    };
    let mut keys = facts.keys(model, &written)?;
    let known: HashSet<String> = keys.iter().map(|pair| pair.key.clone()).collect();
    keys.extend(tokenizer.into_iter().filter(|pair| !known.contains(&pair.key)));

    let mut view = View::of(reader, tensors);
    set_keys(view.metadata_mut(), &keys);
    let mut warnings: Vec<String> = missing_output(&view, model).into_iter().collect();
    if let Some(kind) = scaling.filter(|kind| !is_stretched(kind, &keys, &view)) {
        let why = format!(
            "GGUF can't say for this architecture that positions are stretched by '{kind}'"
        );
        losses.push(Loss { name: "rope_scaling".to_owned(), what: "left out".to_owned(), why });
        warnings.push(unstretched(&kind, &facts.config));
    }
    let held = Described::of(view.metadata(), view.tensors(), source.families())
        .map(|described| described.config(model.family()));
    let held = held.unwrap_or_default();
    let other = other_activation(&facts.config, &held);
    forget_what_is_held(view.metadata_mut(), &held, other.is_some());
    warnings.extend(other);
    let is_stranger = source.families().stranger(reader.metadata()).is_some();
    warnings.extend(beyond_family(view.metadata(), view.tensors(), is_stranger));
    Ok(GgufExport { view, dtypes, losses, warnings })
}

fn unknown_family(metadata: &Metadata, families: &Families) -> Error {
    match families.stranger(metadata) {
        Some(told) => Error::format(format!(
            "llama.cpp needs to know the family, and apr does not know '{told}'"
        )),
        None => Error::format(
            "llama.cpp needs to know the family, and neither metadata nor names say it",
        ),
    }
}

/// What the configuration has that llama.cpp will not compute with. Of a model that is taken for
/// another family, that is all that GGUF can't hold; of others, what scales values.
fn beyond_family(metadata: &Metadata, tensors: &[TensorInfo], is_stranger: bool) -> Option<String> {
    let config = metadata.object(keys::ARCHITECTURE)?;
    let pairs = metadata.key_values().ok().flatten()?;
    // Ids of tokens are the tokenizer's business, which has a warning of its own.
    let lost = apr_gguf::lost_hyperparameters(metadata, &pairs, tensors).into_iter();
    let lost = lost.filter(|name| !name.ends_with("_token_id"));
    let counts =
        |name: &&str| is_stranger || config.get(*name).is_some_and(|value| is_scale(name, value));
    let listed: Vec<String> = lost
        .filter(counts)
        .filter_map(|name| Some(format!("{name} = {}", config.get(name)?)))
        .collect();
    (!listed.is_empty()).then(|| {
        let listed = listed.join(", ");
        format!(
            "GGUF can't express for this architecture, and llama.cpp computes without: {listed}; \
             results will differ"
        )
    })
}

/// Whether an entry of a configuration multiplies values on their way through the network.
fn is_scale(name: &str, value: &Value) -> bool {
    let is_named_so = ["multiplier", "scaling", "scale"].iter().any(|end| name.ends_with(end))
        || name.starts_with("scale_");
    is_named_so && value.as_f64().is_some_and(|factor| factor != 1.0)
}

fn set_keys(metadata: &mut Metadata, keys: &[KeyValue]) {
    metadata.set(keys::GGUF, json!({ "version": VERSION }));
    metadata.set_key_values(keys.iter().collect());
    metadata.remove(NAMES);
    metadata.remove(keys::TIED);
}

/// The file type of the scheme that the checkpoint was quantized by, as its metadata record it.
fn recorded_file_type(metadata: &Metadata) -> Option<u32> {
    Scheme::parse(&recorded_scheme(metadata)?).ok()?.file_type()
}

/// Whether llama.cpp will stretch positions by this kind of `rope_scaling`.
fn is_stretched(kind: &str, keys: &[KeyValue], view: &View<'_>) -> bool {
    let has_key = keys.iter().any(|pair| pair.key.ends_with(".rope.scaling.type"));
    let has_tensor = |name: &str| view.tensors().iter().any(|info| info.name == name);
    match kind {
        "linear" => has_key,
        "yarn" => has_key || has_tensor(LONG),
        "llama3" => has_tensor(LLAMA3),
        "su" | "longrope" => has_tensor(LONG),
        _ => false,
    }
}

fn unstretched(kind: &str, config: &Map<String, Value>) -> String {
    let original =
        config.get("rope_scaling").and_then(|rope| rope.get("original_max_position_embeddings"));
    let trained =
        original.or_else(|| config.get("max_position_embeddings")).and_then(Value::as_u64);
    let trained =
        trained.map_or_else(|| "those it was trained on".to_owned(), |count| count.to_string());
    format!(
        "rope_scaling of the type '{kind}' is left out, which GGUF can't express for this \
         architecture: llama.cpp does not stretch positions beyond {trained}, so it computes \
         longer texts otherwise"
    )
}

/// Where the configuration names another activation function than llama.cpp computes. It has one
/// for each architecture, which is the one that the way back puts into `held`.
fn other_activation(config: &Map<String, Value>, held: &Map<String, Value>) -> Option<String> {
    let first = |config: &Map<String, Value>| {
        ACTIVATIONS.iter().find_map(|key| Some((*key, config.get(*key)?.as_str()?.to_owned())))
    };
    let ((key, told), (_, computed)) = (first(config)?, first(held)?);
    (of_ggml(&told) != of_ggml(&computed)).then(|| {
        format!(
            "config.json's '{key}' is '{told}', but llama.cpp computes '{computed}' in all models \
             of this architecture, and GGUF has no key to say otherwise: results will differ"
        )
    })
}

/// ggml's function for an activation of `transformers`: of the kinds of GELU it has the
/// approximation by tanh alone.
fn of_ggml(activation: &str) -> &str {
    match activation {
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python" | "gelu_accurate" => "gelu",
        "swish" => "silu",
        other => other,
    }
}

/// Takes out of the configuration what the file's keys lead back to, so that it does not count as
/// lost.
fn forget_what_is_held(
    metadata: &mut Metadata,
    held: &Map<String, Value>,
    has_other_activation: bool,
) {
    let Some(mut config) = metadata.object(keys::ARCHITECTURE).cloned() else { return };
    let is_same = |told: &Value, held: &Value| {
        told == held || told.is_number() && told.as_f64() == held.as_f64()
    };
    config.retain(|key, told| {
        let is_activation = ACTIVATIONS.iter().chain(&PARTS_OF_ACTIVATION).any(|name| name == key);
        // Stretched positions have keys and tensors, or a loss of their own.
        let is_rope = ["rope_scaling", "rope_parameters"].contains(&key.as_str());
        let is_held = held.get(key).is_some_and(|held| is_same(told, held));
        !is_rope && if is_activation { has_other_activation } else { !is_held }
    });
    metadata.set(keys::ARCHITECTURE, config);
}

/// Where llama.cpp needs an output matrix, and there is none: without one, it takes the token
/// embeddings of most models, but not of all.
fn missing_output(view: &View<'_>, model: &FamilyModel<'_>) -> Option<String> {
    let needs_it = ["phi2", "gptneox"].contains(&model.gguf_architecture()?);
    let has_it = view.tensors().iter().any(|info| info.name == "output.weight");
    (needs_it && !has_it).then(|| "llama.cpp can't run it: it has no output.weight".to_owned())
}

/// A checkpoint whose values came from a GGUF file, under the names it had there.
fn as_it_is<'a>(reader: &'a dyn CheckpointReader, model: &FamilyModel<'_>) -> GgufExport<'a> {
    let mut view = View::new(reader);
    let exceptions =
        reader.metadata().object(NAMES).and_then(|names| names.get("exceptions")?.as_object());
    let naming = Naming::new(GGUF, "");
    view.rename(|position, name| {
        let exception = exceptions.and_then(|names| names.get(name)?.as_str()).map(str::to_owned);
        exception.or_else(|| model.family().source_name(model.canonical(position)?, &naming))
    });
    view.metadata_mut().remove(NAMES);
    let dtypes = vec![None; view.tensors().len()];
    GgufExport { view, dtypes, losses: Vec::new(), warnings: Vec::new() }
}

struct Plan<'p, 'a> {
    reader: &'a dyn CheckpointReader,
    model: &'p FamilyModel<'p>,
    tensors: Vec<(TensorInfo, Origin)>,
    losses: Vec<Loss>,
    /// Names that are taken.
    names: HashSet<String>,
}

impl Plan<'_, '_> {
    /// Tensors that Hugging Face's models compute from their configuration.
    ///
    /// # Errors
    /// E001 when the factors of positions are not as many as the rotated dimensions need, or can't
    /// be computed with.
    fn add_computed(&mut self, facts: &Facts, keys: &[KeyValue]) -> Result<()> {
        let has = |name: &str| {
            self.model.family().source_name(name, &Naming::new(CANONICAL, "")).is_some()
        };
        let head = self.model.dimension("head_dim").filter(|&head| head <= MAX_HEAD);
        let mut computed = Vec::new();
        if let (true, Some(head)) = (has(LLAMA3), head) {
            computed
                .extend(rope::llama3_factors(&facts.config, head).map(|factors| (LLAMA3, factors)));
        }
        if let (true, Some([long, short])) = (has(LONG), rope::long_and_short(&facts.config)) {
            let rotated = keys.iter().find(|pair| pair.key.ends_with(".rope.dimension_count"));
            let rotated = rotated.and_then(|pair| pair.value.as_u64());
            if let Some(rotated) = rotated.filter(|&rotated| rotated != 2 * long.len() as u64) {
                let has = counted(long.len() as u64, "factor");
                let why = format!(
                    "config.json's 'rope_scaling' has {has}, but {rotated} dimensions need half as \
                     many"
                );
                return Err(Error::format(why));
            }
            computed.extend([(LONG, long), (SHORT, short)]);
        }
        for (name, factors) in computed {
            if let Some(wrong) =
                factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0))
            {
                let why = format!(
                    "config.json's 'rope_scaling' leads to the factor {wrong}, not a finite one \
                     above 0"
                );
                return Err(Error::format(why).for_tensor(name));
            }
            let info = TensorInfo {
                name: name.to_owned(),
                dtype: DType::F32,
                shape: [factors.len() as u64].into(),
            };
            let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
            self.add(info, Origin::Own(bytes));
        }
        Ok(())
    }

    fn add(&mut self, info: TensorInfo, origin: Origin) {
        self.names.insert(info.name.clone());
        self.tensors.push((info, origin));
    }

    fn lose(&mut self, name: &str, why: &str) {
        self.losses.push(Loss {
            name: name.to_owned(),
            what: "left out".to_owned(),
            why: why.to_owned(),
        });
    }

    fn add_all(&mut self) -> Result<()> {
        let stacks = self.stacks();
        for (position, info) in self.reader.tensors().iter().enumerate() {
            if self.reader.metadata().auxiliary_tensor() == Some(&info.name) {
                continue;
            }
            let Some(canonical) = self.model.canonical(position) else {
                let is_seen = is_of_vision(&info.name);
                self.lose(
                    &info.name,
                    if is_seen { OF_VISION } else { "llama.cpp knows no such tensor" },
                );
                continue;
            };
            if let Some((stack, _)) = self.model.family().stack(canonical) {
                // All of them are there once the last one has come.
                if let Some(parts) =
                    stacks.get(&stack).filter(|parts| parts.values().max() == Some(&position))
                {
                    self.add_stack(&stack, parts)?;
                }
                continue;
            }
            self.add_known(position, canonical)?;
        }
        Ok(())
    }

    /// Adds what becomes of a tensor that stays one, or is taken apart.
    fn add_known(&mut self, position: usize, canonical: &str) -> Result<()> {
        if self.model.is_without(canonical) {
            self.lose(&self.reader.tensors()[position].name, "llama.cpp goes without it");
            return Ok(());
        }
        if let Some(whole) = canonical.strip_suffix(BLOCKS) {
            return self.add_four_bits(position, whole);
        }
        if canonical.ends_with(SCALES) {
            return Ok(());
        }
        let cuts = self.model.family().cuts(canonical);
        if !cuts.is_empty() {
            return cuts.iter().try_for_each(|part| self.add_cut(position, part));
        }
        if self.model.family().kind(canonical) == Some(Kind::Buffer) {
            return Ok(());
        }
        match self.model.family().source_name(canonical, &Naming::new(GGUF, "")) {
            Some(name) => self.add_named(position, canonical, name),
            None => self.lose_unnamed(position, canonical),
        }
    }

    /// Adds a tensor that llama.cpp has a name for, unless it is there already or of no use to it.
    fn add_named(&mut self, position: usize, canonical: &str, name: String) -> Result<()> {
        let own = &self.reader.tensors()[position].name;
        let tied = self.reader.metadata().object(keys::TIED);
        if tied.is_some_and(|tied| tied.contains_key(own)) {
            return Ok(());
        }
        if name.starts_with("cls.") && !self.classifies_texts() {
            self.lose(own, "llama.cpp classifies texts, and nothing smaller");
            return Ok(());
        }
        if self.names.contains(&name) {
            self.lose(own, &format!("another tensor is llama.cpp's {name} already"));
            return Ok(());
        }
        self.add_one(position, canonical, name)
    }

    /// Leaves out a tensor that llama.cpp has no name for.
    ///
    /// # Errors
    /// E001 when it is of a layer, which can't be run without it.
    fn lose_unnamed(&mut self, position: usize, canonical: &str) -> Result<()> {
        let own = &self.reader.tensors()[position].name;
        if is_of_layer(canonical) {
            let architecture = self.model.gguf_architecture().unwrap_or_default();
            let why = format!(
                "llama.cpp's {architecture} has no place for it, and layers can't do without"
            );
            return Err(Error::format(why).for_tensor(own));
        }
        self.lose(own, "llama.cpp has no place for it");
        Ok(())
    }

    /// Whether a classifier is one of whole texts, as far as the configuration tells.
    fn classifies_texts(&self) -> bool {
        let architecture = self.reader.metadata().object(keys::ARCHITECTURE);
        let class = architecture.and_then(|config| config.get("architectures")?.get(0)?.as_str());
        class.is_none_or(|class| class.ends_with("ForSequenceClassification"))
    }

    fn add_one(&mut self, position: usize, canonical: &str, name: String) -> Result<()> {
        let source = &self.reader.tensors()[position];
        let mut info = source.clone();
        let origin = match self.model.gguf_layout(canonical)? {
            GgufLayout::Same => Origin::Base(position),
            GgufLayout::Swap(order) => Origin::Changed(Change::rows(source, position, order)?),
            GgufLayout::Add(constant) => {
                Origin::Changed(Change::sum(&mut info, position, constant)?)
            }
            GgufLayout::Groups(order) => {
                Origin::Changed(Change::grouped(source, position, order, false)?)
            }
            GgufLayout::Transposed => Origin::Changed(Change::transposed(&mut info, position)?),
            GgufLayout::SkipRows(skipped) => {
                let (rows, first) = rows_after(source, skipped)?;
                Origin::Changed(Change::some_rows(&mut info, position, first, rows)?)
            }
            _ => {
                return Err(Error::format("its layout is not known to this version")
                    .for_tensor(&source.name));
            }
        };
        info.name = name;
        self.add(info, origin);
        Ok(())
    }

    /// Adds what GGUF has of the tensor at this position under another name.
    fn add_cut(&mut self, position: usize, part: &str) -> Result<()> {
        let name = self.model.family().source_name(part, &Naming::new(GGUF, ""));
        let (Some(name), Some(cut)) = (name, self.model.gguf_cut(part)?) else { return Ok(()) };
        let (info, change) =
            Change::cut(&self.reader.tensors()[position], position, rows_of(cut)?, &name)?;
        self.add(info, Origin::Changed(change));
        Ok(())
    }

    /// Adds what GGUF has of four-bit floats whose elements are at this position, and their
    /// exponents beside them.
    fn add_four_bits(&mut self, position: usize, whole: &str) -> Result<()> {
        let (tensors, scales) = (self.reader.tensors(), format!("{whole}{SCALES}"));
        let at = (0..tensors.len())
            .find(|&at| self.model.canonical(at) == Some(&scales))
            .ok_or_else(|| {
                Error::format("the exponents of its four-bit floats are missing")
                    .for_tensor(&tensors[position].name)
            })?;
        for part in self.model.family().cuts(whole) {
            let name = self.model.family().source_name(&part, &Naming::new(GGUF, ""));
            let (Some(name), Some(cut)) = (name, self.model.gguf_cut(&part)?) else { continue };
            let (blocks, scales) = ((&tensors[position], position), (&tensors[at], at));
            let (info, change) = Change::four_bits(blocks, scales, rows_of(cut)?, &name)?;
            self.add(info, Origin::Changed(change));
        }
        Ok(())
    }

    /// Parts of the tensors that GGUF stacks, by their place.
    fn stacks(&self) -> BTreeMap<String, BTreeMap<u64, usize>> {
        let mut stacks: BTreeMap<String, BTreeMap<u64, usize>> = BTreeMap::new();
        for position in 0..self.reader.tensors().len() {
            let stack = self
                .model
                .canonical(position)
                .and_then(|canonical| self.model.family().stack(canonical));
            if let Some((stack, place)) = stack {
                stacks.entry(stack).or_default().insert(place, position);
            }
        }
        stacks
    }

    fn add_stack(&mut self, stack: &str, parts: &BTreeMap<u64, usize>) -> Result<()> {
        let tensors = self.reader.tensors();
        let count = self.model.parts_of(stack).unwrap_or(parts.len() as u64);
        let positions: Vec<usize> = parts.values().copied().collect();
        let is_whole = count == parts.len() as u64 && parts.keys().copied().eq(0..count);
        if let (false, Some(&first)) = (is_whole, positions.first()) {
            let what = if stack.contains("experts") { "expert" } else { "head" };
            let has = counted(parts.len() as u64, what);
            let why = format!("its layer has {has}, but llama.cpp needs all {count} in one tensor");
            return Err(Error::format(why).for_tensor(&tensors[first].name));
        }
        let naming = Naming::new(GGUF, "");
        let name =
            self.model.family().source_name(stack, &naming).unwrap_or_else(|| stack.to_owned());
        let (info, change) = Change::stack(tensors, &positions, &name)?;
        self.add(info, Origin::Changed(change));
        Ok(())
    }

    /// llama.cpp wants as many rows as there are tokens. Rows without a token are padding.
    fn cut_to_vocabulary(&mut self, tokenizer: &[KeyValue]) -> Result<()> {
        let tokens = tokenizer.iter().find(|pair| pair.key == "tokenizer.ggml.tokens");
        let Some(Typed::Array(Array::String(tokens))) = tokens.map(|pair| &pair.value) else {
            return Ok(());
        };
        let tokens = tokens.len() as u64;
        for (info, origin) in &mut self.tensors {
            let is_by_token =
                [TOKENS, "output.weight", "output.bias"].contains(&info.name.as_str());
            let rows = info.shape.dims().first().copied().unwrap_or_default();
            let (true, Origin::Base(position)) = (is_by_token && rows != tokens, &*origin) else {
                continue;
            };
            let position = *position;
            let [has, takes] = [counted(tokens, "token"), counted(rows, "row")];
            if rows < tokens {
                let why = format!(
                    "the tokenizer has {has}, but it has {takes}: llama.cpp needs a row for each"
                );
                return Err(Error::format(why).for_tensor(&self.reader.tensors()[position].name));
            }
            *origin = Origin::Changed(Change::some_rows(info, position, 0, tokens)?);
            self.losses.push(Loss {
                name: self.reader.tensors()[position].name.clone(),
                what: format!("the last {} left out", counted(rows - tokens, "row")),
                why: format!("the tokenizer has {has}, and llama.cpp takes a row for each"),
            });
        }
        Ok(())
    }
}

/// How many rows there are after those that are skipped, and the first of them.
fn rows_after(info: &TensorInfo, skipped: u64) -> Result<(u64, i64)> {
    let rows = info.shape.dims().first().and_then(|rows| rows.checked_sub(skipped));
    rows.zip(i64::try_from(skipped).ok()).ok_or_else(|| {
        let has = format!(
            "its shape is {}, but llama.cpp leaves out its first {skipped} rows",
            info.shape
        );
        Error::format(has).for_tensor(&info.name)
    })
}

/// Why tensors of vision are not in the file.
const OF_VISION: &str =
    "llama.cpp keeps what sees in a file of its own (mmproj), which apr does not write";

/// Whether a tensor is of the part that sees in a model that also reads, or between the two.
fn is_of_vision(name: &str) -> bool {
    const PARTS: [&str; 8] = [
        "vision_tower",
        "vision_model",
        "visual",
        "multi_modal_projector",
        "mm_projector",
        "vision_encoder",
        "vision_language_adapter",
        "image_newline",
    ];
    name.split('.').any(|part| PARTS.contains(&part))
}

fn is_of_layer(canonical: &str) -> bool {
    canonical
        .split('.')
        .any(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The dtype that llama.cpp needs a tensor in: single precision for vectors, norms, routers and
/// tables of positions. Doubles and 8-bit floats, which it does not know, become what holds them
/// best.
fn required_dtype(info: &TensorInfo) -> Option<DType> {
    let name = info.name.as_str();
    let is_listed = [".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight", "_norm.weight"]
        .iter()
        .any(|end| name.ends_with(end))
        || ["position_embd.weight", "token_types.weight"].contains(&name)
        || !name.ends_with(".weight");
    let dtype = match info.dtype {
        from if from.is_quantized() => return None,
        _ if info.shape.dims().len() <= 1 || is_listed => DType::F32,
        DType::F64 => DType::F32,
        DType::F8_E4M3 | DType::F8_E5M2 | DType::F8_E4M3FNUZ | DType::F8_E5M2FNUZ => DType::BF16,
        from => from,
    };
    (dtype != info.dtype).then_some(dtype)
}

/// llama.cpp's number of a file whose matrices are mostly of one dtype, `general.file_type`: that
/// of most elements.
#[must_use]
pub fn file_type<'t>(tensors: impl Iterator<Item = (&'t TensorInfo, DType)>) -> u32 {
    let mut elements: BTreeMap<DType, u64> = BTreeMap::new();
    for (info, dtype) in tensors.filter(|(info, _)| info.shape.dims().len() > 1) {
        let count = elements.entry(dtype).or_default();
        *count = count.saturating_add(info.shape.elements().unwrap_or_default());
    }
    // Single precision is what stays beside every other dtype.
    let most =
        elements.iter().filter(|(dtype, _)| **dtype != DType::F32).max_by_key(|(_, count)| **count);
    match most.map_or(DType::F32, |(dtype, _)| *dtype) {
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q8_0 => 7,
        DType::Q5_0 => 8,
        DType::Q5_1 => 9,
        DType::Q2_K => 10,
        DType::Q3_K => 12,
        DType::Q4_K => 15,
        DType::Q5_K => 17,
        DType::Q6_K => 18,
        DType::IQ2_XXS => 19,
        DType::IQ2_XS => 20,
        DType::IQ3_XXS => 23,
        DType::IQ1_S => 24,
        DType::IQ4_NL => 25,
        DType::IQ3_S => 26,
        DType::IQ2_S => 28,
        DType::IQ4_XS => 30,
        DType::IQ1_M => 31,
        DType::BF16 => 32,
        DType::TQ1_0 => 36,
        DType::TQ2_0 => 37,
        DType::MXFP4 => 38,
        DType::NVFP4 => 39,
        DType::Q1_0 => 40,
        DType::Q2_0 => 41,
        _ => 0,
    }
}
