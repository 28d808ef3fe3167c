//! What becomes of each tensor of a base: which adapters change it, and how.

mod images;
mod multiplied;
mod rows;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use apr_arch::Families;
use apr_core::{CheckpointReader, DType, Error, Escaped, Result, TensorInfo, counted};
use apr_source::{Architecture, family_of};

use crate::adapted::{AdaptOptions, inputs_first};
use crate::adapter::{Adapter, BASE_LAYER, Contents, Part, Parts};
use crate::beside;
use crate::configuration::{Method, Writer};
use crate::form::{Form, Orientation, rows_and_columns};
use crate::report::MergedAdapter;
use crate::targets::Targets;

/// Last name parts of input embeddings, which are also the output's embeddings if the model ties
/// them.
const EMBEDDINGS: [&str; 4] = ["embed_tokens", "wte", "embed_in", "word_embeddings"];

/// Last parts of the names of output projections.
const OUTPUTS: [&str; 4] = ["lm_head", "embed_out", "output_layer", "proj_out"];

/// Name of BERT's output projection.
const DECODER: &str = "cls.predictions.decoder";

/// Steps of comparing a module with one of the names that a configuration lists.
const PARAMETER: u64 = 200;

/// Source of a tensor's elements before the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Base(usize),
    /// Trained as a whole, in place of the base's.
    Adapter {
        adapter: usize,
        tensor: usize,
    },
}

impl Source {
    pub(crate) fn adapter(self) -> Option<usize> {
        match self {
            Self::Base(_) => None,
            Self::Adapter { adapter, .. } => Some(adapter),
        }
    }
}

/// A change of a tensor by an adapter.
pub(crate) enum Stage {
    /// Matrices times a scale, and with magnitudes (DoRA) rows or columns of that length.
    Delta { adapter: usize, form: Form, scale: f32, magnitude: Option<usize> },
    /// A bias times a scale.
    Bias { adapter: usize, tensor: usize, scale: f32 },
    /// Rows that were trained as such: which row of the tensor is which row of the weight.
    Rows { adapter: usize, tensor: usize, of: HashMap<u64, u64> },
    /// Factors of rows, or of groups of `each` columns (IA3).
    Factors { adapter: usize, tensor: usize, by_column: bool, each: u64 },
    /// A matrix that rows are multiplied by.
    Turn { adapter: usize, tensor: usize, method: Method },
}

impl Stage {
    pub(crate) fn adapter(&self) -> usize {
        match self {
            Self::Delta { adapter, .. }
            | Self::Bias { adapter, .. }
            | Self::Rows { adapter, .. }
            | Self::Factors { adapter, .. }
            | Self::Turn { adapter, .. } => *adapter,
        }
    }

    /// The adapter's tensors that it is made of.
    pub(crate) fn tensors(&self) -> Vec<usize> {
        match self {
            Self::Delta { form, magnitude, .. } => {
                form.tensors().into_iter().chain(*magnitude).collect()
            }
            Self::Bias { tensor, .. }
            | Self::Rows { tensor, .. }
            | Self::Factors { tensor, .. }
            | Self::Turn { tensor, .. } => vec![*tensor],
        }
    }

    /// Returns `true` if elements of a row depend on the whole row.
    pub(crate) fn takes_rows(&self) -> bool {
        matches!(self, Self::Turn { .. })
    }
}

/// A tensor of the result.
pub(crate) struct Slot {
    pub(crate) info: TensorInfo,
    pub(crate) source: Source,
    pub(crate) stages: Vec<Stage>,
    /// Elements of a row.
    pub(crate) columns: u64,
    /// `true` if the elements keep the dtype of their source.
    pub(crate) is_as_stored: bool,
    /// `true` if the base stores the tensor in codes and scales.
    is_coded: bool,
}

impl Slot {
    /// Returns `true` if an adapter changes or replaces the tensor.
    pub(crate) fn is_changed(&self) -> bool {
        !self.stages.is_empty() || self.source.adapter().is_some()
    }
}

/// The tensors of a base with adapters.
pub(crate) struct AdapterPlan {
    pub(crate) slots: Vec<Slot>,
    pub(crate) merged: Vec<MergedAdapter>,
    pub(crate) warnings: Vec<String>,
    /// `true` if the output projection was tied to the input embedding and is now a separate
    /// tensor.
    pub(crate) is_untied: bool,
}

impl AdapterPlan {
    /// Plans adapters over a base, in their order.
    ///
    /// # Errors
    /// E001 with the first thing that does not fit, in the adapter's file; E007 and E008 when a
    /// configuration can't be read.
    pub(crate) fn new(
        base: &dyn CheckpointReader,
        adapters: &[Adapter<'_>],
        options: &AdaptOptions<'_>,
    ) -> Result<Self> {
        let slot = |(position, info): (usize, &TensorInfo)| Slot {
            info: info.clone(),
            source: Source::Base(position),
            stages: Vec::new(),
            columns: columns(info),
            is_as_stored: true,
            is_coded: base.stored(position).coding().is_some(),
        };
        let mut planner = Planner {
            slots: base.tensors().iter().enumerate().map(slot).collect(),
            ties: beside::ties(base)?,
            warnings: Vec::new(),
            is_untied: false,
            added: HashMap::new(),
            relaxed: options.relaxed,
            is_cast: options.is_cast,
            inputs_first: match &options.inputs_first {
                Some(names) => Some(names.clone()),
                None => {
                    let families = Families::builtin();
                    inputs_first(base, family_of(base, &families, &Architecture::Auto)?.as_ref())
                }
            },
            decoded: BTreeMap::new(),
        };
        let mut merged = Vec::with_capacity(adapters.len());
        for (position, adapter) in adapters.iter().enumerate() {
            let added = planner.add(position, adapter);
            merged.push(added.map_err(|error| error.in_file(&adapter.name))?);
        }
        let Planner { slots, mut warnings, is_untied, decoded, .. } = planner;
        for (dtype, count) in decoded.iter().filter(|_| !options.is_cast) {
            let tensors = counted(*count, "quantized tensor");
            warnings.push(format!("{tensors} that an adapter changes: decoded to {dtype}"));
        }
        Ok(Self { slots, merged, warnings, is_untied })
    }
}

fn columns(info: &TensorInfo) -> u64 {
    rows_and_columns(&info.shape).map_or(1, |(_, columns)| columns.max(1))
}

struct Planner {
    slots: Vec<Slot>,
    /// `true` or `false` if the base states whether its output projection is tied to its input
    /// embedding.
    ties: Option<bool>,
    warnings: Vec<String>,
    is_untied: bool,
    /// Slots of tensors that the base lacks, by their names.
    added: HashMap<String, usize>,
    relaxed: bool,
    /// `true` if the result will be cast to another dtype.
    is_cast: bool,
    /// Weights whose rows are inputs, if the family is known.
    inputs_first: Option<HashSet<String>>,
    /// Quantized weights that change.
    decoded: BTreeMap<&'static str, u64>,
}

impl Planner {
    /// Adds what an adapter changes.
    fn add(&mut self, position: usize, adapter: &Adapter<'_>) -> Result<MergedAdapter> {
        let reader = &*adapter.reader;
        let contents = Contents::read(reader)?;
        let tensors = reader.tensors();
        let modules = contents.modules.keys().map(String::as_str);
        let infos: Vec<TensorInfo> = self.slots.iter().map(|slot| slot.info.clone()).collect();
        let targets = Targets::new(&infos, modules, contents.configuration.class.as_deref())?;
        for (name, &tensor) in &contents.replaced {
            self.replace(
                &targets,
                name,
                (position, tensor),
                (adapter, contents.configuration.keeps_ties),
            )?;
        }

        let (mut scales, mut ranks, mut skipped) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut seen = HashSet::new();
        let mut changed = 0;
        let layers = self.layer_orientation(&contents, &targets, tensors);
        let method = contents.configuration.method;
        let image = self.image_modules(&contents, tensors)?;
        let mut taken = HashSet::new();
        for (module, parts) in &contents.modules {
            let stacked = |planner: &Self, taken: &HashSet<usize>| {
                let parameters = contents.configuration.parameters.as_slice();
                let fits = |slot: &usize| {
                    let weight = &planner.slots[*slot].info;
                    let way = planner.orientation(layers, weight);
                    !taken.contains(slot) && Form::new(parts, tensors, weight, way, method).is_ok()
                };
                parameters_of(module, parameters, &targets).into_iter().find(fits)
            };
            let mut found = match &image {
                Some(image) if image.is_absent(module) => continue,
                Some(image) => image.slot(module),
                None => self.slot(&targets, module),
            };
            if found.is_none() && image.is_none() {
                let parameters = contents.configuration.parameters.len() as u64;
                contents.configuration.work.spend(parameters.saturating_mul(PARAMETER))?;
                found = stacked(self, &taken);
            }
            taken.extend(found);
            let Some(slot) = found else {
                if self.relaxed {
                    skipped.push(module.as_str());
                    continue;
                }
                return Err(missing(module, tensors, parts));
            };
            changed += 1;
            if let Some(&tensor) = parts.get(&Part::TokenRows) {
                let rows =
                    rows::trained_rows(&contents, module, &tensors[tensor], &self.slots[slot])?;
                self.check_dtype(slot)?;
                self.slots[slot].stages.push(Stage::Rows { adapter: position, tensor, of: rows });
            }
            if parts.keys().all(|part| *part == Part::TokenRows) {
                continue;
            }
            let weight = &self.slots[slot].info;
            let way = self.orientation(layers, weight);
            if self.multiply((position, adapter), parts, slot, (method, way))? {
                if let Some(&tensor) = parts.get(&Part::Factors) {
                    self.scale_bias(&targets, module, position, (tensor, &tensors[tensor]))?;
                }
                continue;
            }
            let weight = &self.slots[slot].info;
            let form = Form::new(parts, tensors, weight, way, method)?;
            let own = contents.scale(reader, module, form.rank);
            let own = own.map_err(|error| named(error, tensors, parts))?;
            let scale = own * adapter.weight;
            #[expect(clippy::cast_possible_truncation, reason = "PEFT's matrices are of that")]
            let single = scale as f32;
            if !single.is_finite() {
                return Err(named(Error::format(format!("the scale is {scale}")), tensors, parts));
            }
            if seen.insert(own.to_bits()) {
                scales.push(own);
            }
            ranks.extend(form.rank);
            let magnitude = parts.get(&Part::Magnitude).copied();
            if let Some(magnitude) = magnitude {
                check_magnitude(&tensors[magnitude], &form, &self.slots[slot].info)?;
            }
            self.check_dtype(slot)?;
            let scale = single;
            let stage = Stage::Delta { adapter: position, form, scale, magnitude };
            self.slots[slot].stages.push(stage);
            if let Some(&tensor) = parts.get(&Part::LoraBias) {
                self.add_bias(&targets, module, Stage::Bias { adapter: position, tensor, scale })?;
            }
        }
        if changed + contents.replaced.len() == 0 {
            let message = "the base does not have the modules that the adapter changes";
            return Err(Error::format(message));
        }
        if let Some(first) = skipped.first() {
            let (first, rest) = (Escaped::short(first), skipped.len() - 1);
            let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            let name = Escaped::short(&adapter.name);
            self.warnings.push(format!("{name}: left out, as the base lacks it: {first}{rest}"));
        }
        self.warn_of_absent(image.as_ref(), &adapter.name);
        let kind = apr_source::adapter::adapter_of(reader)?.map(|adapter| adapter.kind);
        Ok(MergedAdapter {
            name: adapter.name.clone(),
            kind: kind.unwrap_or_else(|| "LoRA".to_owned()),
            trained_on: contents.configuration.base.clone(),
            weight: adapter.weight,
            ranks: ranks.into_iter().collect(),
            scales,
            modules: changed,
            replaced: contents.replaced.len(),
        })
    }

    /// Returns the orientation of one weight: from its family, or else the orientation of all
    /// layers.
    fn orientation(&self, layers: Orientation, weight: &TensorInfo) -> Orientation {
        let inputs_first = match &self.inputs_first {
            Some(names) => names.contains(&weight.name),
            None => layers.inputs_first && !weight.name.contains("lm_head"),
        };
        Orientation { inputs_first, ..layers }
    }

    /// Returns the orientation of the layers of a base without a family.
    ///
    /// Weights are `[in, out]`, as in GPT-2, if the configuration states it or the shape of a
    /// weight that is not square shows it.
    fn layer_orientation(
        &self,
        contents: &Contents,
        targets: &Targets<'_>,
        tensors: &[TensorInfo],
    ) -> Orientation {
        let configuration = &contents.configuration;
        if configuration.writer == Writer::Images {
            return Orientation { writer: Writer::Images, inputs_first: false };
        }
        let is_turned = |(module, parts): (&String, &Parts)| {
            let slot = targets.weight(module)?;
            let (rows, columns) = rows_and_columns(&self.slots[slot].info.shape)?;
            let (_, inputs) = rows_and_columns(&tensors[*parts.get(&Part::LoraA)?].shape)?;
            (rows != columns).then_some(inputs == rows)
        };
        let told = contents.modules.iter().find_map(is_turned);
        Orientation {
            writer: configuration.writer,
            inputs_first: told.unwrap_or(configuration.fan_in_fan_out),
        }
    }

    /// Returns the tensor that a module's change applies to.
    ///
    /// An output projection that is tied to the input embedding becomes a separate tensor.
    fn slot(&mut self, targets: &Targets<'_>, module: &str) -> Option<usize> {
        if let Some(slot) = targets.weight(module) {
            self.untie(module, slot);
            return Some(slot);
        }
        if self.ties == Some(false) || !is_output(module) {
            return None;
        }
        let name = targets.name(&format!("{module}.weight"));
        if let Some(&known) = self.added.get(&name) {
            return Some(known);
        }
        let is_embedding = |slot: &&Slot| {
            let module = slot.info.name.strip_suffix(".weight").unwrap_or_default();
            module.rsplit('.').next().is_some_and(|last| EMBEDDINGS.contains(&last))
        };
        let embedding = self.slots.iter().find(is_embedding)?;
        let slot = Slot {
            info: TensorInfo { name: name.clone(), ..embedding.info.clone() },
            source: embedding.source,
            stages: Vec::new(),
            columns: embedding.columns,
            is_as_stored: true,
            is_coded: embedding.is_coded,
        };
        let embedding = Escaped::short(&embedding.info.name).to_string();
        self.warnings.push(format!(
            "{} is no longer tied to {embedding}, because the adapter changes only one of them",
            Escaped::short(&name)
        ));
        self.is_untied = true;
        Some(self.push(slot))
    }

    /// Records that an output projection that the file stores, although it is stated to be the
    /// input embedding, is changed alone.
    fn untie(&mut self, module: &str, slot: usize) {
        if self.ties == Some(true) && !self.is_untied && is_output(module) {
            self.warnings.push(format!(
                "{} is no longer the input embedding, because the adapter changes only one of \
                 them",
                Escaped::short(&self.slots[slot].info.name)
            ));
            self.is_untied = true;
        }
    }

    /// Adds a tensor that the base lacks.
    fn push(&mut self, slot: Slot) -> usize {
        self.added.insert(slot.info.name.clone(), self.slots.len());
        self.slots.push(slot);
        self.slots.len() - 1
    }

    /// Puts a tensor that was trained as a whole in the place of the base's.
    fn replace(
        &mut self,
        targets: &Targets<'_>,
        name: &str,
        (adapter, tensor): (usize, usize),
        (from, keeps_ties): (&Adapter<'_>, bool),
    ) -> Result<()> {
        let info = &from.reader.tensors()[tensor];
        let source = Source::Adapter { adapter, tensor };
        if from.weight != 1.0 {
            self.warnings.push(format!(
                "{}: '{}' was trained as a whole and is copied, not scaled by {}",
                Escaped::short(&from.name),
                Escaped::short(name),
                from.weight
            ));
        }
        let module = name.strip_suffix(".weight");
        let is_output = module.is_some_and(is_output);
        let found = match targets.tensor(name) {
            None if is_output && keeps_ties => return Ok(()),
            None => module.and_then(|module| self.slot(targets, module)),
            Some(slot) => {
                let changes_alone = is_output && !keeps_ties;
                module.filter(|_| changes_alone).inspect(|module| self.untie(module, slot));
                Some(slot)
            }
        };
        let Some(slot) = found else {
            let name = targets.name(name);
            self.is_untied |= is_output && self.ties != Some(false);
            self.warnings.push(format!(
                "{}: the base lacks '{}', which is added",
                Escaped::short(&from.name),
                Escaped::short(&name)
            ));
            let info = TensorInfo { name, ..info.clone() };
            let columns = columns(&info);
            let (stages, is_as_stored, is_coded) = (Vec::new(), true, false);
            self.push(Slot { info, source, stages, columns, is_as_stored, is_coded });
            return Ok(());
        };
        let slot = &mut self.slots[slot];
        let (old, new) = (slot.info.shape.dims(), info.shape.dims());
        // Tokens may have been added.
        let fits = old == new || (new.len() == 2 && old.len() == 2 && old[1] == new[1]);
        if !fits {
            let message =
                format!("expected {} as in the base, found {}", slot.info.shape, info.shape);
            return Err(Error::format(message).for_tensor(&info.name));
        }
        if !slot.stages.is_empty() {
            self.warnings.push(format!(
                "{}: '{}' replaces the changes of earlier adapters",
                Escaped::short(&from.name),
                Escaped::short(&slot.info.name)
            ));
        }
        // Weights of 8 bits and fewer do not come back as they were.
        let keeps = matches!(slot.info.dtype, DType::F32 | DType::F16 | DType::BF16);
        let dtype = if keeps && info.dtype.is_float() { slot.info.dtype } else { info.dtype };
        slot.is_as_stored = dtype == info.dtype;
        let name = std::mem::take(&mut slot.info.name);
        slot.info = TensorInfo { name, dtype, shape: info.shape.clone() };
        slot.source = source;
        slot.stages.clear();
        Ok(())
    }

    fn add_bias(&mut self, targets: &Targets<'_>, module: &str, stage: Stage) -> Result<()> {
        let name = format!("{module}.bias");
        let Some(slot) = targets.tensor(&name) else {
            let message = "the base has no bias for the adapter's bias";
            return Err(Error::format(message).for_tensor(name));
        };
        self.check_dtype(slot)?;
        self.slots[slot].stages.push(stage);
        Ok(())
    }

    /// Sets the dtype of a changed weight: its own dtype, or single precision for block types.
    fn check_dtype(&mut self, slot: usize) -> Result<()> {
        let slot = &mut self.slots[slot];
        match slot.info.dtype {
            DType::F16 | DType::BF16 if self.is_cast => {
                // What is rounded once more after the sum is not rounded before.
                slot.info.dtype = DType::F32;
                slot.is_as_stored = false;
            }
            // Codes stand for values of a dtype, in which PEFT adds.
            DType::F32 | DType::F16 | DType::BF16 if slot.is_coded => {
                let dtype = match slot.info.dtype {
                    DType::F16 => "F16",
                    DType::BF16 => "BF16",
                    _ => "F32",
                };
                *self.decoded.entry(dtype).or_default() += 1;
            }
            DType::F32 | DType::F16 | DType::BF16 => {}
            dtype if dtype.is_quantized() || dtype.is_float() => {
                slot.info.dtype = DType::F32;
                slot.is_as_stored = false;
                let name = Escaped::short(&slot.info.name);
                if dtype.is_quantized() {
                    *self.decoded.entry("F32").or_default() += 1;
                } else {
                    self.warnings.push(format!("'{name}' is of {dtype}, and F32 from here on"));
                }
            }
            dtype => {
                let message = format!("an adapter can't be merged into weights of {dtype}");
                return Err(Error::format(message).for_tensor(&slot.info.name));
            }
        }
        Ok(())
    }
}

/// The parameters of a module that a change may be of, the likeliest first. PEFT wraps a module
/// once for each of them, the last outermost.
fn parameters_of(module: &str, parameters: &[String], targets: &Targets<'_>) -> Vec<usize> {
    let (mut root, mut depth) = (module, 0);
    while let Some(inner) = root.strip_suffix(BASE_LAYER) {
        (root, depth) = (inner, depth + 1);
    }
    let slot = |parameter: &String| {
        let (parent, leaf) = parameter.rsplit_once('.').unwrap_or(("", parameter));
        let is_of = parent.is_empty()
            || root.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if is_of { targets.tensor(&format!("{root}.{leaf}")) } else { None }
    };
    let mut slots: Vec<usize> = parameters.iter().rev().filter_map(slot).collect();
    let outer = depth.min(slots.len());
    slots.rotate_left(outer);
    slots
}

/// The error with the name of a part of the change.
fn named(error: Error, tensors: &[TensorInfo], parts: &Parts) -> Error {
    match parts.values().next() {
        Some(&tensor) => error.for_tensor(&tensors[tensor].name),
        None => error,
    }
}

/// Returns `true` for the name of an output projection, which can be tied to the input embedding.
fn is_output(module: &str) -> bool {
    let last = module.rsplit('.').next().unwrap_or(module);
    OUTPUTS.contains(&last) || module.ends_with(DECODER)
}

fn missing(module: &str, tensors: &[TensorInfo], parts: &Parts) -> Error {
    let message = format!(
        "the base has no weight '{}': the adapter belongs to another model, or its names are \
         unknown",
        Escaped::short(module)
    );
    named(Error::format(message), tensors, parts)
}

fn check_magnitude(info: &TensorInfo, form: &Form, weight: &TensorInfo) -> Result<()> {
    let wanted = rows_and_columns(&weight.shape)
        .map(|(rows, columns)| if form.by_column { columns } else { rows });
    if info.shape.elements() == wanted {
        return Ok(());
    }
    let message = format!("magnitudes of {} do not fit the base's {}", info.shape, weight.shape);
    Err(Error::format(message).for_tensor(&info.name))
}
