//! The way back: what a GGUF file says about its model, and its tensors under Hugging Face's names
//! and in its layout.

use apr_arch::{
    Families, Family, FamilyModel, GgufLayout, HUGGING_FACE, IMAGES, Naming, TensorKind,
};
use apr_core::counted;
use apr_registry::{
    CheckpointReader, Convention, DType, Error, Loss, Metadata, Result, TensorInfo, keys,
};
use apr_source::Architecture;
use apr_source::naming::NAMES;
use apr_view::{Change, TensorOrigin, View};
use serde_json::{Map, Value};

use super::factors::add_factors;
use super::gguf_keys::GgufKeys;
use super::hyperparameters::single;
use super::layouts;

/// The object among the entries of a table's `config` that is a file of its own: how images are
/// resized and scaled.
const PROCESSOR: &str = "preprocessor_config";

/// That file.
pub(super) const PROCESSOR_FILE: &str = "preprocessor_config.json";

/// A checkpoint in Hugging Face's layout.
#[non_exhaustive]
pub struct Restored<'a> {
    /// Tensors in Hugging Face's layout.
    pub view: View<'a>,
    /// The text of `config.json`.
    pub config: Vec<u8>,
    /// Entries of `config.json`.
    pub entries: Map<String, Value>,
    /// Contents that Hugging Face models can't store.
    pub losses: Vec<Loss>,
    /// Names of the tensors whose blocks are decoded, because Hugging Face stores their elements in
    /// another order.
    pub decoded: Vec<String>,
}

/// Returns the metadata of a GGUF file with the family and the hyperparameters from its keys, as in
/// `config.json`. Returns `None` for other checkpoints, for checkpoints that name their family, and
/// if no family has that architecture.
#[must_use]
pub fn described(
    reader: &dyn CheckpointReader,
    families: &Families,
    architecture: &Architecture,
) -> Option<Metadata> {
    let metadata = reader.metadata();

    // Whatever was imported was described then; of a GGUF file, the architecture alone does not
    // tell: a mixture of experts may be called `llama` too.
    let is_known =
        metadata.text(keys::MODEL_TYPE).is_some_and(|told| families.find(told).is_some());
    if is_known && reader.format().convention != Convention::LlamaCpp {
        return None;
    }

    let described = GgufKeys::of(metadata, reader.tensors(), families)?;
    let family = described.family(families, architecture)?;
    let mut config = described.config(family);
    let model_type = config.remove("model_type").unwrap_or_default();
    let mut metadata = metadata.clone();
    metadata.set(keys::MODEL_TYPE, model_type);
    metadata.set(keys::ARCHITECTURE, config);
    if family.is_for_images() {
        metadata.set(keys::PART, IMAGES);
    }
    Some(metadata)
}

/// A checkpoint in GGUF's layout (a GGUF file, or what was imported from one) as Hugging Face's
/// models have it, with the `config.json` that `transformers` needs.
///
/// Quantized tensors stay quantized where whole rows are moved. Those whose elements have to be
/// moved or changed one by one are read as single precision.
///
/// # Errors
/// E001 when the checkpoint is not in GGUF's layout, or when its family is not known. E002 and E007
/// when a tensor can't be read that becomes part of the configuration.
pub fn restore<'a>(
    reader: &'a dyn CheckpointReader,
    families: &Families,
    architecture: &Architecture,
) -> Result<Restored<'a>> {
    restore_to(reader, families, architecture, DType::F32)
}

/// Restores a checkpoint like [`restore`], with floats of the dtype `decode_to` in place of blocks
/// that can't be kept.
///
/// # Errors
/// Returns the errors of [`restore`].
pub fn restore_to<'a>(
    reader: &'a dyn CheckpointReader,
    families: &Families,
    architecture: &Architecture,
    decode_to: DType,
) -> Result<Restored<'a>> {
    let original = reader.metadata();
    let described = GgufKeys::of(original, reader.tensors(), families);
    let described =
        described.ok_or_else(|| Error::format("missing GGUF keys for a config.json"))?;
    let family = described.family(families, architecture).ok_or_else(|| {
        Error::format(format!("'{}' is an unknown GGUF architecture", described.architecture))
    })?;
    let mut config = described.config(family);
    let window = missing_window(&described, family, &mut config);
    let mut metadata = original.clone();
    // One table describes the parts for images of several types of models.
    let part_of = config.get("model_type").filter(|_| family.is_for_images()).cloned();
    metadata.set(keys::MODEL_TYPE, part_of.unwrap_or_else(|| family.name().into()));
    metadata.set(keys::ARCHITECTURE, config.clone());
    let model = families.apply(family.name(), reader.tensors(), &metadata)?;
    if !model.is_in_gguf_layout() {
        return Err(Error::format("its tensors are not in GGUF's layout"));
    }

    let naming = naming_for(family, &config);
    let (tensors, losses, decoded) = (Vec::new(), Vec::new(), Vec::new());
    let mut plan =
        ImportPlan { reader, model: &model, naming, decode_to, tensors, losses, decoded };
    plan.add_all()?;
    plan.add_lists(&described)?;
    let ImportPlan { tensors, mut losses, decoded, .. } = plan;
    losses.extend(add_factors(reader, &model, &described, &mut config)?);
    losses.extend(window);
    losses.extend(missing_pooler(&config));
    config.insert("torch_dtype".to_owned(), torch_dtype(reader.tensors()).into());

    let mut view = View::of(reader, tensors);
    if let Some(processor) = config.remove(PROCESSOR) {
        let text = apr_core::json::to_vec_pretty(&processor).unwrap_or_default();
        view.add_companion(PROCESSOR_FILE, text);
    }
    let target = view.metadata_mut();
    target.remove(NAMES);
    target.retain(|key| key != keys::GGUF);
    target.set(keys::MODEL_TYPE, config.get("model_type").cloned().unwrap_or_default());
    if family.is_for_images() {
        target.set(keys::PART, IMAGES);
    }
    let mut described = config.clone();
    described.remove("model_type");
    target.set(keys::ARCHITECTURE, described);
    let text = apr_core::json::to_vec_pretty(&config).unwrap_or_default();
    Ok(Restored { view, config: text, entries: config, losses, decoded })
}

/// BERT's class of classifiers has a pooler, which a file of llama.cpp's converter lacks.
fn missing_pooler(config: &Map<String, Value>) -> Option<Loss> {
    (config.get("add_pooling_layer") == Some(&false.into())).then(|| Loss {
        name: "pooler.dense".to_owned(),
        what: "not in the file".to_owned(),
        why: "llama.cpp's converter leaves it out; transformers makes up another one".to_owned(),
    })
}

/// Sets a missing sliding window to null in the configuration of Mistral, and returns the loss of
/// the window if the model had one.
///
/// Mistral's class defaults to a window of 4096 tokens, and llama.cpp's converter does not write
/// the window. The loss is reported for models of the generation that had a window, even if only
/// the model's name contains Mistral.
fn missing_window(
    described: &GgufKeys<'_>,
    family: &Family,
    config: &mut Map<String, Value>,
) -> Option<Loss> {
    const WINDOW: &str = "sliding_window";
    const MISTRAL: &str = "mistral";
    /// `rope_theta` of the models that had a window.
    const OF_FIRST: f64 = 10_000.0;

    if config.get(WINDOW).is_some_and(|window| !window.is_null()) {
        return None;
    }

    let is_mistral = family.name() == MISTRAL;
    let named =
        |key: &str| described.entry(key).and_then(|name| Some(name.as_str()?.to_lowercase()));
    let names = ["general.name", "general.basename", "general.finetune"]
        .iter()
        .filter_map(|key| named(key));
    let is_called_so =
        family.name() == "llama" && names.into_iter().any(|name| name.contains(MISTRAL));
    // From version 0.2 on, Mistral's models have another base and see all tokens.
    let theta = described.entry("rope.freq_base").and_then(|theta| theta.as_f64());
    if !is_mistral && !is_called_so {
        return None;
    }
    if is_mistral {
        config.insert(WINDOW.to_owned(), Value::Null);
    }
    if theta.is_some_and(|theta| theta != OF_FIRST) {
        return None;
    }

    Some(Loss {
        name: WINDOW.to_owned(),
        what: "not in the file".to_owned(),
        why: "GGUF files of Mistral have no sliding window; attention is full, as in llama.cpp"
            .to_owned(),
    })
}

/// Returns the tensor naming of the class in the configuration. Classifiers have the base model's
/// tensors under a prefix.
fn naming_for(family: &Family, config: &Map<String, Value>) -> Naming {
    let class = config
        .get("architectures")
        .and_then(|classes| classes.get(0)?.as_str())
        .unwrap_or_default();
    let is_classifier = class.ends_with("ForSequenceClassification");
    let mut namings = family.namings().filter(|naming| naming.convention == HUGGING_FACE);
    let prefixed = namings.find(|naming| is_classifier && !naming.prefix.is_empty());
    prefixed
        .or_else(|| family.default_naming(HUGGING_FACE))
        .unwrap_or_else(|| Naming::new(HUGGING_FACE, ""))
}

struct ImportPlan<'p, 'a> {
    reader: &'a dyn CheckpointReader,
    model: &'p FamilyModel<'p>,
    naming: Naming,
    decode_to: DType,
    tensors: Vec<(TensorInfo, TensorOrigin)>,
    losses: Vec<Loss>,
    decoded: Vec<String>,
}

impl ImportPlan<'_, '_> {
    fn add_all(&mut self) -> Result<()> {
        for (position, info) in self.reader.tensors().iter().enumerate() {
            let Some(canonical) = self.model.canonical(position) else {
                let why = format!("{} has no such tensor", self.model.family().title());
                self.losses.push(Loss {
                    name: info.name.clone(),
                    what: "left out".to_owned(),
                    why,
                });
                continue;
            };

            // What can be computed is, or is part of the configuration.
            if self.model.family().kind(canonical) == Some(TensorKind::Buffer) {
                continue;
            }

            if let Some(whole) = self.model.family().cut_from(canonical) {
                self.add_joined(position, &whole)?;
            } else if self.model.family().part(canonical, 0).is_some() {
                self.add_parts(position, canonical)?;
            } else {
                self.add_one(position, canonical)?;
            }
        }

        Ok(())
    }

    /// Adds the tensors whose values the file has in keys.
    ///
    /// # Errors
    /// E001 when a key does not have a number for each layer.
    fn add_lists(&mut self, described: &GgufKeys<'_>) -> Result<()> {
        for (key, names) in self.model.gguf_lists() {
            let wrong = || {
                let layers = counted(names.len() as u64, "number");
                Error::format(format!("the key {key} must be a list of {layers}"))
            };
            let list = described.entry(&format!("list.{key}")).ok_or_else(wrong)?;
            let values: Option<Vec<f32>> = list
                .as_array()
                .into_iter()
                .flatten()
                .map(|value| value.as_f64().map(single))
                .collect();
            let values = values.filter(|values| values.len() == names.len()).ok_or_else(wrong)?;
            for (name, value) in names.iter().zip(values) {
                let info = TensorInfo {
                    name: self.name(name),
                    dtype: DType::F32,
                    shape: self.model.shape_of(name).unwrap_or_else(|| [1].into()),
                };
                self.tensors.push((info, TensorOrigin::Own(value.to_le_bytes().to_vec())));
            }
        }
        Ok(())
    }

    fn name(&self, canonical: &str) -> String {
        let name = self.model.family().source_name(canonical, &self.naming);
        name.unwrap_or_else(|| canonical.to_owned())
    }

    /// Adds the tensor that the one at this position was cut out of, once the last of its parts has
    /// come.
    fn add_joined(&mut self, position: usize, whole: &str) -> Result<()> {
        let find = |name: &str| {
            let is_it = |position: &usize| self.model.canonical(*position) == Some(name);
            (0..self.reader.tensors().len()).find(is_it)
        };

        // Some files have the whole as well.
        if find(whole).is_some() {
            return Ok(());
        }

        let mut cuts = Vec::new();
        for name in self.model.family().cuts(whole) {
            cuts.extend(self.model.gguf_cut(&name)?.map(|cut| (find(&name), name, cut)));
        }

        // Each of the parts comes by here, but their whole is added once.
        let last = cuts.iter().filter_map(|(position, ..)| *position).max();
        let info = &self.reader.tensors()[position];
        let unknown =
            || Error::format("the keys do not state what it is a part of").for_tensor(&info.name);
        if last.ok_or_else(unknown)? != position {
            return Ok(());
        }

        let mut parts = Vec::with_capacity(cuts.len());
        for (part, name, cut) in cuts {
            let alone = || Error::format(format!("{name} is missing, which belongs to it"));
            let part = part.ok_or_else(|| alone().for_tensor(&info.name))?;
            parts.push((self.reader.tensors()[part].clone(), part, cut));
        }

        let shape = self.model.shape_of(whole).ok_or_else(unknown)?;
        let name = self.name(whole);
        let has_blocks = parts.iter().any(|(info, ..)| info.dtype.is_quantized());
        let dtype = info.dtype;
        let is_alike = parts.iter().all(|(info, ..)| info.dtype == dtype);
        let has_rows = parts.iter().all(|(.., cut)| layouts::is_of_rows(cut));

        // Elements of blocks can't be woven, and parts may be of several types.
        let is_decoded = has_blocks && !(has_rows && is_alike);
        let is_dealt = parts.iter().any(|(.., cut)| cut.flat) || has_blocks && has_rows && is_alike;
        if is_decoded {
            parts.iter_mut().for_each(|(info, ..)| self.decode(info));
        }
        let (info, change) = if is_dealt {
            layouts::gathered_in(&parts, &shape, &name)?
        } else {
            let rows = parts
                .into_iter()
                .map(|(info, position, cut)| Ok((info, position, layouts::rows_of(&cut)?)));
            Change::joined(&rows.collect::<Result<Vec<_>>>()?, shape, &name)?
        };
        self.add_changed(info, change, is_decoded);
        Ok(())
    }

    /// Gives a quantized tensor the dtype that its blocks are decoded to.
    fn decode(&self, info: &mut TensorInfo) {
        if info.dtype.is_quantized() {
            info.dtype = self.decode_to;
        }
    }

    fn add_changed(&mut self, info: TensorInfo, change: Change, is_decoded: bool) {
        let change = if is_decoded {
            self.decoded.push(info.name.clone());
            change.of_decoded(self.decode_to)
        } else {
            change
        };
        self.tensors.push((info, TensorOrigin::Changed(change)));
    }

    fn add_parts(&mut self, position: usize, stack: &str) -> Result<()> {
        let info = &self.reader.tensors()[position];
        let count = info.shape.dims().first().copied().unwrap_or_default();
        // A shape with a 0 takes no bytes, whatever its other sizes: the loop below would hardly
        // end.
        if info.byte_len()? == 0 {
            return Err(
                Error::format("it should hold experts, and is empty").for_tensor(&info.name)
            );
        }

        if self.model.parts_of(stack).is_some_and(|parts| parts != count) {
            let why = format!(
                "its shape is {}, but the model's keys state another number of parts",
                info.shape
            );
            return Err(Error::format(why).for_tensor(&info.name));
        }

        for place in 0..count {
            let canonical = self.model.family().part(stack, place).unwrap_or_default();
            let (part, change) = Change::part(info, position, place, &self.name(&canonical))?;
            self.tensors.push((part, TensorOrigin::Changed(change)));
        }

        Ok(())
    }

    fn add_one(&mut self, position: usize, canonical: &str) -> Result<()> {
        let source = &self.reader.tensors()[position];
        let mut info = source.clone();
        let layout = self.model.gguf_layout(canonical)?;
        let is_by_element = match &layout {
            GgufLayout::Add(_) | GgufLayout::Transposed => true,
            GgufLayout::Arranged(arranged) => !layouts::moves_blocks(arranged, source.dtype),
            _ => false,
        };
        let is_decoded = is_by_element && source.dtype.is_quantized();
        if is_decoded {
            self.decode(&mut info);
        }

        let change = match layout {
            // Factors stay within the weights: the configuration then has 1 in their places.
            GgufLayout::Same | GgufLayout::Scaled(_) => None,
            GgufLayout::Arranged(arranged) => {
                let own = self.model.shape_of(canonical);
                Some(layouts::arranged_back(&mut info, position, arranged, own)?)
            }
            GgufLayout::Swap([outer, a, b, inner]) => {
                // GGUF has the two sizes in the other order already, so swapping turns it back.
                Some(Change::rows(source, position, [outer, b, a, inner])?)
            }
            GgufLayout::Add(constant) => Some(Change::sum(&mut info, position, -constant)?),
            GgufLayout::Groups(order) => Some(Change::grouped(source, position, order, true)?),
            GgufLayout::Transposed => Some(Change::transposed(&mut info, position)?),
            GgufLayout::SkipRows(skipped) => {
                let rows = source.shape.dims().first().and_then(|rows| rows.checked_add(skipped));
                let (Some(rows), Ok(skipped)) = (rows, i64::try_from(skipped)) else {
                    return Err(Error::format("it has too many rows").for_tensor(&source.name));
                };
                Some(Change::some_rows(&mut info, position, -skipped, rows)?)
            }
            GgufLayout::Rows(_) => {
                let own = self.model.shape_of(canonical);
                let rows = own.as_ref().and_then(|own| own.dims().first().copied());
                rows.map(|rows| Change::with_rows(&mut info, position, rows)).transpose()?
            }
            _ => {
                return Err(Error::format("its layout is not known to this version")
                    .for_tensor(&source.name));
            }
        };

        if let Some(whole) = self.model.with_outer_ones(canonical, &info.shape) {
            info.shape = whole;
        }
        info.name = self.name(canonical);
        match change {
            None => self.tensors.push((info, TensorOrigin::Base(position))),
            Some(change) => self.add_changed(info, change, is_decoded),
        }
        Ok(())
    }
}

/// Returns the dtype of most elements in matrices. Quantized elements count as the dtype in which
/// they are computed.
fn torch_dtype(tensors: &[TensorInfo]) -> &'static str {
    let elements = |wanted: fn(DType) -> bool| -> u64 {
        let matrices =
            tensors.iter().filter(|info| info.shape.dims().len() > 1 && wanted(info.dtype));
        matrices.fold(0, |sum, info| sum.saturating_add(info.shape.elements().unwrap_or_default()))
    };
    let single = elements(|dtype| dtype == DType::F32);
    let brain = elements(|dtype| dtype == DType::BF16);
    let half = elements(|dtype| !matches!(dtype, DType::F32 | DType::BF16));
    match single.max(brain).max(half) {
        most if most == single => "float32",
        most if most == brain => "bfloat16",
        _ => "float16",
    }
}
