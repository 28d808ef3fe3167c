//! The checkpoint that a mixture of experts is.

use std::ops::Range;
use std::sync::Arc;

use apr_core::{
    CheckpointReader, Companion, Container, Convention, DType, FileInfo, Format, Metadata, Result,
    Stored, StoredRange, TensorInfo, counted, keys,
};
use apr_tensor::cast::cast_float;
use apr_view::chunks::fill;
use apr_view::{Companions, values};
use serde_json::{Map, Value, json};

use super::condition::condition;
use super::gates::{Gates, Rows, normal, uniform};
use super::plan::{Making, MixturePlanner, Source};
use super::target::Target;
use super::{MoeReport, Recipe};
use crate::beside::{CARD, CONFIG};
use crate::card::{add_to_header, code, fence, front_matter};
use crate::grid::{Grid, on_grid};
use crate::plan::Model;
use crate::random::Draws;

/// Elements that are computed at a time.
const BLOCK: u64 = 1 << 14;

/// Experts whose vectors are compared, which takes the cube of their number.
const COMPARED: usize = 128;

/// Routers whose rows are as alike as this leave experts idle.
const ALIKE: f64 = 5.0;

/// The base and experts in one model.
///
/// ```
/// use apr_core::Result;
/// use apr_merge::Model;
/// use apr_merge::moe::{Gates, Moe, parse};
///
/// fn mixture<'a>(text: &str, models: &[Model<'a>]) -> Result<Option<Moe<'a>>> {
///     let Some(recipe) = parse(text)? else { return Ok(None) };
///     let gates = Gates::random(&recipe)?;
///     let mixture = Moe::plan(&recipe, models, gates, false)?;
///     println!("{} tensors of experts", mixture.report().of_experts);
///     Ok(Some(mixture))
/// }
/// ```
pub struct Moe<'a> {
    recipe: Recipe,
    base: Arc<dyn CheckpointReader + 'a>,
    models: Vec<Model<'a>>,
    tensors: Vec<TensorInfo>,
    makings: Vec<Making<'a>>,
    gates: Gates,
    metadata: Metadata,
    files: Vec<FileInfo>,
    companions: Companions,
    warnings: Vec<String>,
    left_out: Vec<String>,
    report: MoeReport,
    /// `true` to accept values that are not finite.
    relaxed: bool,
}

impl<'a> Moe<'a> {
    /// Plans a mixture of models that are open, by the names that the recipe has for them, under
    /// the names of tensors that frameworks have. With `relaxed`, tensors of the base that the
    /// result has no place for are left out.
    ///
    /// # Errors
    /// E001 with the first thing that does not fit; E007 and E008 when a configuration can't be
    /// read.
    pub fn plan(
        recipe: &Recipe,
        models: &[Model<'a>],
        gates: Gates,
        relaxed: bool,
    ) -> Result<Self> {
        let planner = MixturePlanner::new(recipe, models, relaxed)?;
        let (target, base) = (planner.target, Arc::clone(&models[planner.base].reader));
        let configuration = target.configuration(&planner.config, recipe, planner.dtype);
        let plan = planner.plan(&gates)?;
        let mut warnings = plan.warnings;
        let conditions = conditions(recipe, &gates, plan.layers);
        warnings.extend(degenerate(&conditions, gates.is_same()));
        if !recipe.experts.len().is_power_of_two() {
            warnings.push(format!(
                "the number of experts, {}, is not a power of two, which some programs require",
                recipe.experts.len()
            ));
        }
        let mut metadata = base.metadata().clone();
        fit_metadata(&mut metadata, &configuration);
        let report = MoeReport {
            architecture: target,
            base: recipe.base.clone(),
            experts: recipe.experts.iter().map(|expert| expert.model.clone()).collect(),
            shared: recipe.shared.as_ref().map(|shared| shared.model.clone()),
            per_token: Target::per_token(recipe),
            gate_mode: recipe.gate,
            conditions,
            copied: plan.copied,
            of_experts: plan.of_experts,
        };
        warnings.extend(base.warnings().iter().cloned());
        let (tensors, makings) = plan.tensors.into_iter().unzip();
        let mut moe = Self {
            recipe: recipe.clone(),
            models: models.to_vec(),
            tensors,
            makings,
            gates,
            metadata,
            files: models.iter().flat_map(|model| model.reader.files()).cloned().collect(),
            companions: Companions::of(&*base),
            left_out: plan.left_out,
            base,
            warnings,
            report,
            relaxed,
        };
        moe.companions.put(CONFIG, apr_core::json::to_python(&configuration));
        Ok(moe)
    }

    /// Replaces the base's card by a model card that describes the mixture.
    ///
    /// # Errors
    /// E007 and E008 when the base's card can't be read.
    pub fn with_card(mut self, title: &str) -> Result<Self> {
        let position = self.base.companions().iter().position(|file| file.name == CARD);
        let main = position.map(|position| self.base.read_companion(position)).transpose()?;
        let names = self.recipe.models();
        let mut card = front_matter(names.iter().copied(), main.as_deref(), &["moe", "merge"]);
        let experts = counted(self.recipe.experts.len() as u64, "expert");
        let kind = self.report.architecture.name();
        let text = &self.recipe.text;
        let fence = fence(text);
        card += &format!(
            "# {title}\n\nA {kind} of {experts}, made with apr of {}.\n\n### Configuration\n\n\
             {fence}yaml\n{}\n{fence}\n",
            names.iter().map(|name| code(name)).collect::<Vec<_>>().join(", "),
            text.trim_end()
        );
        self.companions.put(CARD, card.into_bytes());
        Ok(self)
    }

    /// Adds a record to the metadata if the output's format can store it.
    #[must_use]
    pub fn with_record(mut self, format: &'static Format) -> Self {
        let record = json!({
            "method": "moe",
            "models": self.recipe.models(),
            "seed": self.recipe.seed,
            "configuration": self.recipe.text,
            "tool": concat!("apr ", env!("CARGO_PKG_VERSION")),
        });
        match format.convention {
            Convention::Canonical => self.metadata.set("merge", record),
            Convention::Framework => add_to_header(&mut self.metadata, "merge", &record),
            _ => {}
        }
        self
    }

    /// Returns the report on the mixture.
    #[must_use]
    pub fn report(&self) -> &MoeReport {
        &self.report
    }

    /// Elements of a tensor that is computed.
    fn values(&self, tensor: usize, range: Range<u64>) -> Result<Vec<f64>> {
        let info = &self.tensors[tensor];
        match &self.makings[tensor] {
            Making::Zeros => Ok(range.map(|_| 0.0).collect()),
            Making::Copied(source) => self.read(source, range),
            Making::Changed { source, noise, factor } => {
                let mut values = self.read(source, range.clone())?;
                let dtype = match source.reader.tensors()[source.tensor].dtype {
                    dtype if dtype.is_quantized() => DType::F32,
                    dtype => dtype,
                };
                let draws = Draws::of(self.recipe.seed, &info.name, source.model);
                on_grid!(dtype, change(&mut values, *noise, *factor, draws, range.start));
                Ok(values)
            }
            Making::Gate { layer, expert } => {
                let width = info.shape.row_len().max(1);
                let draws = Draws::of(self.recipe.seed, &info.name, 0);
                Ok(range.map(|at| self.gate(*expert, *layer, at, width, draws)).collect())
            }
        }
    }

    fn gate(&self, first: usize, layer: usize, at: u64, width: u64, draws: Draws) -> f64 {
        match &self.gates.rows {
            Rows::Normal => normal(draws, at),
            Rows::Uniform => uniform(draws, at, width),
            Rows::Same(_) | Rows::Each(_) => {
                let place = |at: u64| usize::try_from(at).unwrap_or_default();
                let row = self.gates.row(first + place(at / width), layer);
                row.and_then(|row| row.get(place(at % width))).map_or(0.0, |value| (*value).into())
            }
        }
    }

    fn read(&self, source: &Source<'_>, range: Range<u64>) -> Result<Vec<f64>> {
        let model = &self.models[source.model].name;
        let found = values::read(&*source.reader, source.tensor, range.clone());
        let found = found.map_err(|error| error.in_file(model))?;
        let odd = found.iter().position(|value| !value.is_finite()).filter(|_| !self.relaxed);
        if let Some(at) = odd {
            let first = range.start + at as u64;
            let error = values::not_finite(&*source.reader, source.tensor, first);
            return Err(error.in_file(model));
        }
        Ok(found)
    }

    /// The source of a tensor that has its bytes.
    fn as_it_is(&self, tensor: usize) -> Option<&Source<'a>> {
        match &self.makings[tensor] {
            Making::Copied(source) => {
                let dtype = source.reader.tensors()[source.tensor].dtype;
                (dtype == self.tensors[tensor].dtype).then_some(source)
            }
            _ => None,
        }
    }
}

/// Adds noise and multiplies, as PyTorch does: each operation in single precision, rounded to the
/// weight's dtype.
fn change<G: Grid>(
    values: &mut [f64],
    noise: Option<f64>,
    factor: Option<f64>,
    draws: Draws,
    start: u64,
) {
    #[expect(clippy::cast_possible_truncation, reason = "PyTorch's operand is of that")]
    let single = |x: f64| f64::from(x as f32);
    for (value, position) in values.iter_mut().zip(start..) {
        if let Some(noise) = noise {
            let drawn = G::q(G::q(normal(draws, position)) * single(noise));
            *value = G::q(*value + drawn);
        }
        if let Some(factor) = factor {
            *value = G::q(*value * single(factor));
        }
    }
}

/// Updates the family and the hyperparameters in the metadata, if the metadata contain them.
fn fit_metadata(metadata: &mut Metadata, configuration: &Map<String, Value>) {
    let Some(before) = metadata.object(keys::ARCHITECTURE).cloned() else { return };
    if let Some(kind) = configuration.get(keys::MODEL_TYPE) {
        metadata.set(keys::MODEL_TYPE, kind.clone());
    }
    // Tables, such as that of a model's code, describe no network.
    let is_known = |key: &str, value: &Value| !value.is_object() || before.contains_key(key);
    let architecture: Map<String, Value> = configuration
        .iter()
        .filter(|(key, value)| *key != keys::MODEL_TYPE && is_known(key, value))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    metadata.set(keys::ARCHITECTURE, architecture);
}

/// Returns the condition number of each layer's router, or a single one if all layers are the same.
fn conditions(recipe: &Recipe, gates: &Gates, layers: usize) -> Vec<Option<f64>> {
    let experts = recipe.gated().count();
    if recipe.gate.is_random() || experts > COMPARED {
        return Vec::new();
    }
    let layers = if gates.is_same() { layers.min(1) } else { layers };
    let of = |layer| {
        let rows: Vec<&[f32]> = (0..experts).filter_map(|at| gates.row(at, layer)).collect();
        condition(&rows)
    };
    (0..layers).map(of).collect()
}

/// A warning of routers whose rows are alike.
fn degenerate(conditions: &[Option<f64>], is_same: bool) -> Option<String> {
    let is_alike = |value: &Option<f64>| value.is_none_or(|value| value > ALIKE);
    let layers: Vec<String> = conditions
        .iter()
        .enumerate()
        .filter(|(_, condition)| is_alike(condition))
        .map(|(layer, _)| layer.to_string())
        .collect();
    let place = match layers.len() {
        0 => return None,
        count if is_same || count == conditions.len() => "all layers".to_owned(),
        _ => format!("layers {}", layers.join(", ")),
    };
    Some(format!("the prompts of experts are similar in {place}: some experts may never be used"))
}

impl CheckpointReader for Moe<'_> {
    fn format(&self) -> &'static Format {
        self.base.format()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let (Making::Copied(source) | Making::Changed { source, .. }) = &self.makings[tensor]
        else {
            return Stored::derived(StoredRange { file: 0, offset: 0, len: 0 });
        };
        let before = self.models[..source.model].iter().map(|model| model.reader.files().len());
        let reader: &dyn CheckpointReader = &*source.reader;
        Stored::derived_from_all([(reader, source.tensor, before.sum())])
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(source) = self.as_it_is(tensor) {
            return source.reader.read_tensor(source.tensor, offset, buf);
        }
        let info = &self.tensors[tensor];
        let mut wide = Vec::new();
        let read = fill(info, (offset, buf), BLOCK, |range, out| {
            wide.clear();
            let values = self.values(tensor, range)?;
            wide.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            cast_float(DType::F64, info.dtype, &wide, out);
            Ok(())
        });
        read.map_err(|error| error.for_tensor(&info.name))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let source = self.as_it_is(tensor)?;
        source.reader.tensor_slice(source.tensor)
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }

    fn files(&self) -> &[FileInfo] {
        &self.files
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(&*self.base, companion)
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
