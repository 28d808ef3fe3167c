//! Which tensors a mixture has, and what each is made of.

use std::collections::HashMap;
use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Error, Escaped, Result, Shape, TensorInfo, stated_dtype};
use serde_json::{Map, Value};

use super::gates::{EMBEDDING, Gates, Rows};
use super::target::{Projection, Target};
use super::{Expert, Recipe};
use crate::beside::CONFIG;
use crate::layers::in_layer;
use crate::plan::Model;
use crate::recipe::parse::MOST;

/// Tensors of experts that a result may have: a large mixture has a few ten thousand.
const MOST_TENSORS: usize = 1 << 20;

/// The stack of layers, under the name that frameworks have for it.
const STACK: &str = "model.layers";

/// Content of a tensor of the mixture.
pub(super) enum Making<'a> {
    /// Tensor of a model, cast if the dtype differs.
    Copied(Source<'a>),
    /// Tensor of a model, with noise and a factor.
    Changed { source: Source<'a>, noise: Option<f64>, factor: Option<f64> },
    /// Tensor of zeros.
    Zeros,
    /// Rows of gates, from an expert on.
    Gate { layer: usize, expert: usize },
}

pub(super) struct Source<'a> {
    pub(super) reader: Arc<dyn CheckpointReader + 'a>,
    /// Position among the models.
    pub(super) model: usize,
    pub(super) tensor: usize,
}

/// The tensors of a mixture.
pub(super) struct MixturePlan<'a> {
    pub(super) tensors: Vec<(TensorInfo, Making<'a>)>,
    pub(super) layers: usize,
    pub(super) copied: usize,
    pub(super) of_experts: usize,
    pub(super) left_out: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Puts the tensors of a mixture together.
pub(super) struct MixturePlanner<'r, 'a> {
    recipe: &'r Recipe,
    models: &'r [Model<'a>],
    positions: Vec<HashMap<&'r str, usize>>,
    pub(super) base: usize,
    pub(super) config: Map<String, Value>,
    pub(super) target: Target,
    pub(super) dtype: Option<DType>,
    relaxed: bool,
}

impl<'r, 'a> MixturePlanner<'r, 'a> {
    pub(super) fn new(recipe: &'r Recipe, models: &'r [Model<'a>], relaxed: bool) -> Result<Self> {
        let mut configs = Vec::new();
        for name in recipe.models() {
            let model = &models[position(models, name)?];
            configs.push((name, configuration(model)?));
        }
        let kind = |config: &Map<String, Value>| {
            config.get("model_type").and_then(Value::as_str).map(str::to_owned)
        };
        let types: Vec<_> = configs.iter().map(|(name, config)| (*name, kind(config))).collect();
        let target = Target::of(recipe, &types)?;
        let first = recipe.experts.first();
        let is_one = recipe.experts.iter().all(|one| first.is_some_and(|f| f.model == one.model));
        if is_one && !recipe.gate.is_random() && !relaxed {
            let message = "all experts are the same model, so that the result computes what it \
                           does";
            return Err(Error::format(message));
        }
        let config = configs.into_iter().next().map(|(_, config)| config).unwrap_or_default();
        let dtype = recipe.dtype.or_else(|| stated_dtype(&config));
        let positions = models.iter().map(|model| {
            let infos = model.reader.tensors().iter().enumerate();
            infos.map(|(at, info)| (info.name.as_str(), at)).collect()
        });
        let positions = positions.collect();
        let base = position(models, &recipe.base)?;
        Ok(Self { recipe, models, positions, base, config, target, dtype, relaxed })
    }

    fn source(&self, model: usize, name: &str) -> Result<Source<'a>> {
        let tensor = self.positions[model].get(name).copied().ok_or_else(|| {
            let message = "the model has no such tensor";
            Error::format(message).for_tensor(name).in_file(&self.models[model].name)
        })?;
        Ok(Source { reader: Arc::clone(&self.models[model].reader), model, tensor })
    }

    /// The dtype of a tensor of the result.
    fn out(&self, dtype: DType) -> DType {
        self.dtype.unwrap_or(if dtype.is_float() { dtype } else { DType::F32 })
    }

    /// The tensors, in the order of the base, then layer by layer.
    ///
    /// # Errors
    /// E001 with the first thing that does not fit.
    pub(super) fn plan(self, gates: &Gates) -> Result<MixturePlan<'a>> {
        let base = &self.models[self.base].reader;
        let (layers, hidden) = self.sizes()?;
        if let Rows::Each(rows) = &gates.rows
            && rows.iter().any(|layers_of| layers_of.len() != layers)
        {
            return Err(Error::format(format!("states of other than {layers} layers")));
        }
        let of_layer = self.recipe.all().count() * Projection::ALL.len();
        let count = layers.saturating_mul(of_layer);
        if count > MOST_TENSORS {
            return Err(Error::memory(format!("{count} tensors of experts are too many")));
        }
        let mut plan = MixturePlan {
            tensors: Vec::new(),
            layers,
            copied: 0,
            of_experts: 0,
            left_out: Vec::new(),
            warnings: Vec::new(),
        };
        for (tensor, info) in base.tensors().iter().enumerate() {
            if self.is_dense(&info.name) {
                continue;
            }
            if !self.has_place(&info.name) {
                self.leave_out(&info.name, &mut plan)?;
                continue;
            }
            let source = Source { reader: Arc::clone(base), model: self.base, tensor };
            let info = TensorInfo { dtype: self.out(info.dtype), ..info.clone() };
            plan.tensors.push((info, Making::Copied(source)));
            plan.copied += 1;
        }
        for layer in 0..layers {
            self.add_biases(layer, &mut plan)?;
            for (at, expert) in self.recipe.experts.iter().enumerate() {
                let name = |projection| self.target.expert(layer, at, projection);
                self.add_expert(layer, expert, hidden, name, &mut plan)?;
            }
            if let Some(shared) = &self.recipe.shared {
                let name = |projection| self.target.shared(layer, projection);
                self.add_expert(layer, shared, hidden, name, &mut plan)?;
            }
            self.add_gates(layer, hidden, &mut plan);
        }
        Ok(plan)
    }

    /// Layers and the width of the base.
    fn sizes(&self) -> Result<(usize, u64)> {
        let Model { reader, name } = &self.models[self.base];
        let wrong = |message: &str| Error::format(message.to_owned()).in_file(name);
        let layers = layers(&**reader);
        let layers = layers.ok_or_else(|| wrong("it has no layers named model.layers.N"))?;
        let embedding = self.source(self.base, EMBEDDING)?;
        match *embedding.reader.tensors()[embedding.tensor].shape.dims() {
            [_, hidden] => Ok((layers, hidden)),
            _ => Err(wrong("its embedding must be a matrix")),
        }
    }

    /// Returns `true` if the tensor belongs to a feed-forward network that the experts replace.
    fn is_dense(&self, name: &str) -> bool {
        let is_of = |rest: &str| {
            Projection::ALL.iter().any(|one| rest == format!(".mlp.{}.weight", one.dense()))
        };
        in_layer(name).is_some_and(|found| found.stack == STACK && is_of(found.rest))
    }

    fn has_place(&self, name: &str) -> bool {
        [EMBEDDING, "model.norm.weight", "lm_head.weight"].contains(&name)
            || in_layer(name)
                .is_some_and(|found| found.stack == STACK && self.target.has_in_layer(found.rest))
    }

    fn leave_out(&self, name: &str, plan: &mut MixturePlan<'_>) -> Result<()> {
        // What older versions of transformers stored beside the weights is computed.
        if !self.relaxed && !name.ends_with(".rotary_emb.inv_freq") {
            let message = format!("{} can't store it", self.target.name());
            let file = &self.models[self.base].name;
            return Err(Error::format(message).for_tensor(name).in_file(file));
        }
        plan.left_out.push(name.to_owned());
        Ok(())
    }

    fn add_biases(&self, layer: usize, plan: &mut MixturePlan<'a>) -> Result<()> {
        for projection in self.target.biases() {
            let prefix = format!("{STACK}.{layer}.self_attn.{projection}");
            let name = format!("{prefix}.bias");
            if self.positions[self.base].contains_key(name.as_str()) {
                continue;
            }
            let weight = self.source(self.base, &format!("{prefix}.weight"))?;
            let weight = &weight.reader.tensors()[weight.tensor];
            let rows = weight.shape.dims().first().copied().unwrap_or_default();
            let (dtype, shape) = (self.out(weight.dtype), Shape::from([rows]));
            plan.tensors.push((TensorInfo { name, dtype, shape }, Making::Zeros));
        }
        Ok(())
    }

    fn add_expert(
        &self,
        layer: usize,
        expert: &Expert,
        hidden: u64,
        name: impl Fn(Projection) -> String,
        plan: &mut MixturePlan<'a>,
    ) -> Result<()> {
        let model = position(self.models, &expert.model)?;
        for projection in Projection::ALL {
            let dense = format!("{STACK}.{layer}.mlp.{}.weight", projection.dense());
            let source = self.source(model, &dense)?;
            let info = &source.reader.tensors()[source.tensor];
            // All experts have the widths of the base's own network.
            let expected = self.source(self.base, &dense)?;
            let expected = &expected.reader.tensors()[expected.tensor].shape;
            if info.shape != *expected || !info.shape.dims().contains(&hidden) {
                let message = format!("expected {expected} as in the base, found {}", info.shape);
                let file = &self.models[model].name;
                return Err(Error::format(message).for_tensor(&dense).in_file(file));
            }
            let info = TensorInfo {
                name: name(projection),
                dtype: self.out(info.dtype),
                shape: info.shape.clone(),
            };
            let factor = expert.residual.filter(|_| projection == Projection::Down);
            let making = match (expert.noise, factor) {
                (None, None) => Making::Copied(source),
                (noise, factor) => Making::Changed { source, noise, factor },
            };
            plan.tensors.push((info, making));
            plan.of_experts += 1;
        }
        Ok(())
    }

    fn add_gates(&self, layer: usize, hidden: u64, plan: &mut MixturePlan<'a>) {
        let dtype = self.dtype.unwrap_or_else(|| {
            let norm = self.positions[self.base].get(EMBEDDING);
            let tensors = self.models[self.base].reader.tensors();
            self.out(norm.map_or(DType::F32, |at| tensors[*at].dtype))
        });
        let count = self.recipe.experts.len();
        let (name, shape) = (self.target.router(layer), Shape::from([count as u64, hidden]));
        let making = Making::Gate { layer, expert: 0 };
        plan.tensors.push((TensorInfo { name, dtype, shape }, making));
        if let Some(name) = self.target.shared_gate(layer) {
            let (shape, making) = (Shape::from([1, hidden]), Making::Gate { layer, expert: count });
            plan.tensors.push((TensorInfo { name, dtype, shape }, making));
        }
    }
}

/// Returns the number of layers of a model with the tensor names of frameworks.
pub fn layers(reader: &dyn CheckpointReader) -> Option<usize> {
    let layers = reader.tensors().iter().filter_map(|info| in_layer(&info.name));
    let last = layers.filter(|found| found.stack == STACK).map(|found| found.layer).max()?;
    usize::try_from(last).ok().filter(|last| *last < MOST).map(|last| last + 1)
}

fn position(models: &[Model<'_>], name: &str) -> Result<usize> {
    let found = models.iter().position(|model| model.name == name);
    found.ok_or_else(|| Error::format(format!("no model '{}' is open", Escaped::short(name))))
}

fn configuration(model: &Model<'_>) -> Result<Map<String, Value>> {
    let companions = model.reader.companions();
    let Some(position) = companions.iter().position(|file| file.name == CONFIG) else {
        let message = format!("a mixture of experts needs its {CONFIG}");
        return Err(Error::format(message).in_file(&model.name));
    };
    let bytes = model.reader.read_companion(position)?;
    let wrong = |error| {
        Error::format(format!("{CONFIG}: {}", apr_core::foreign(&error))).in_file(&model.name)
    };
    apr_core::json::from_python(&bytes).map_err(wrong)
}
