//! Adapters of PEFT in the form that llama.cpp reads, and back.
//!
//! llama.cpp has weights under other names and some with their rows in another order: the second
//! matrices of an adapter, whose rows are the weights' rows, take the way that the weights take
//! when a model is converted. The first matrices stay as they are.

use std::collections::{BTreeMap, HashMap, HashSet};

use apr_core::{
    CheckpointReader, Companion, Container, DType, Error, Escaped, KeyValue, Metadata, Result,
    Stored, TensorInfo, Value as TypedValue, keys, pass_on,
};
use apr_llama::{from_gguf, to_gguf};
use apr_source::Source;
use apr_source::adapter::ADAPTER_CONFIG;
use apr_tensor::cast::cast_values;
use apr_view::{Companions, View, values};
use serde_json::{Map, Value, json};

use crate::adapter::{BASE_LAYER, Contents, PREFIX, Part};
use crate::configuration::Writer;
use crate::matrix::read;
use crate::targets::Targets;

/// The companion with a model's hyperparameters.
const CONFIG: &str = "config.json";

/// Source of a tensor's elements.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Tensor of the adapter.
    First(usize),
    /// Tensor of the view of the second matrices, and its factor.
    Second(usize, f32),
}

/// The second matrices of an adapter, under the names that a base has for the weights they change.
pub struct SecondMatrices<'a> {
    adapter: &'a dyn CheckpointReader,
    view: View<'a>,
    modules: Vec<Module>,
    /// Modules by the names of their weights.
    by_weight: HashMap<String, usize>,
    /// Alpha of llama.cpp, which multiplies it by the strength and divides it by the rank.
    alpha: f64,
    /// The base, as the adapter names it.
    base: Option<String>,
}

/// A module that an adapter changes.
struct Module {
    name: String,
    first: usize,
    rank: u64,
    /// Factor for the second matrix, so that the common alpha applies to it.
    factor: f32,
}

impl<'a> SecondMatrices<'a> {
    /// Collects the second matrices of an adapter for a base, both in PEFT's or both in llama.cpp's
    /// form.
    ///
    /// # Errors
    /// E001 for an adapter that has other tensors than pairs of matrices, and for modules that the
    /// base lacks; E007 and E008 when a configuration can't be read.
    pub fn of(adapter: &'a dyn CheckpointReader, base: &dyn CheckpointReader) -> Result<Self> {
        let contents = Contents::read(adapter)?;
        let infos = adapter.tensors();
        let of = match contents.configuration.writer {
            Writer::Mlx => Some("MLX"),
            Writer::Images => Some("image models"),
            Writer::Peft | Writer::LlamaCpp => None,
        };
        if let Some(of) = of {
            let message = format!("adapters of {of} can't be converted, only merged");
            return Err(Error::format(message));
        }
        let modules = contents.modules.keys().map(String::as_str);
        let class = contents.configuration.class.as_deref();
        let targets = Targets::new(base.tensors(), modules, class)?;
        for (name, &tensor) in &contents.replaced {
            let of_base = targets.tensor(name).filter(|_| infos[tensor].name.contains(BASE_LAYER));
            let is_copy = match of_base {
                Some(of_base) => is_same((adapter, tensor), (base, of_base))?,
                None => false,
            };
            if !is_copy {
                let name = Escaped::short(name);
                let what = match of_base {
                    Some(_) => "is not the base's, and is stored whole",
                    None => "was trained as a whole",
                };
                let message = format!("'{name}' {what}, which the other form lacks");
                return Err(Error::format(message).for_tensor(&infos[tensor].name));
            }
        }
        let mut modules = Vec::with_capacity(contents.modules.len());
        let (mut names, mut by_weight) = (HashMap::new(), HashMap::new());
        let mut alpha = None;
        for (module, parts) in &contents.modules {
            let pair = (parts.get(&Part::LoraA), parts.get(&Part::LoraB));
            let (Some(&first), Some(&second), 2) = (pair.0, pair.1, parts.len()) else {
                let tensor = parts.values().next().map(|&tensor| infos[tensor].name.clone());
                let message = match parts.contains_key(&Part::EmbeddingA) {
                    true => {
                        "LoRA of token embeddings can't be converted: merge the adapter instead"
                    }
                    false => "only pairs of LoRA's matrices have another form",
                };
                return Err(Error::format(message).for_tensor(tensor.unwrap_or_default()));
            };
            let named = |error: Error| error.for_tensor(&infos[first].name);
            let Some(weight) = targets.weight(module) else {
                let message = "the base has no weight that it could change";
                return Err(named(Error::format(message)));
            };
            let dims = (infos[first].shape.dims(), infos[second].shape.dims());
            let ([rank, _], [_, other]) = dims else {
                return Err(named(Error::format("it must be a matrix, as in other layers")));
            };
            if rank != other {
                return Err(named(Error::format("the matrices of the pair do not match")));
            }
            let scale = contents.configuration.scale(module, Some(*rank)).map_err(named)?;
            let own = scale * *rank as f64;
            let alpha = *alpha.get_or_insert(own);
            #[expect(clippy::cast_possible_truncation, reason = "elements are of that")]
            let factor = if own == alpha { 1.0 } else { (own / alpha) as f32 };
            if !factor.is_finite() {
                return Err(named(Error::format(format!("the scale is {scale}"))));
            }
            let weight = base.tensors()[weight].name.clone();
            names.insert(second, weight.clone());
            by_weight.entry(weight).or_insert(modules.len());
            let module = module.strip_suffix(".weight").unwrap_or(module).to_owned();
            modules.push(Module { name: module, first, rank: *rank, factor });
        }
        let mut view = View::new(adapter);
        view.rename(|position, _| names.get(&position).cloned());
        let wanted: HashSet<&str> = names.values().map(String::as_str).collect();
        view.drop_tensors(|name| !wanted.contains(name));
        *view.metadata_mut() = base.metadata().clone();
        view.keep_companions(|_| false);
        if let Some(at) = base.companions().iter().position(|file| file.name == CONFIG) {
            view.add_companion(CONFIG, base.read_companion(at)?);
        }
        let alpha = alpha.unwrap_or(1.0);
        let base = contents.configuration.base;
        Ok(Self { adapter, view, modules, by_weight, alpha, base })
    }

    /// Returns the matrices as a checkpoint, to detect its family.
    #[must_use]
    pub fn reader(&self) -> &View<'a> {
        &self.view
    }

    /// The module whose weight has this name.
    fn module(&self, weight: &str) -> Option<&Module> {
        self.modules.get(*self.by_weight.get(weight)?)
    }
}

/// Returns `true` if two tensors have the same shape and values.
///
/// PEFT stores the weights of embeddings and heads that an adapter changes beside its matrices.
fn is_same(
    (one, first): (&dyn CheckpointReader, usize),
    (other, second): (&dyn CheckpointReader, usize),
) -> Result<bool> {
    /// Elements that are compared at a time.
    const COUNT: u64 = 1 << 16;

    let shapes = (&one.tensors()[first].shape, &other.tensors()[second].shape);
    if shapes.0 != shapes.1 {
        return Ok(false);
    }
    let total = shapes.0.elements().unwrap_or_default();
    let mut start = 0;
    while start < total {
        let range = start..total.min(start + COUNT);
        start = range.end;
        if values::read(one, first, range.clone())? != values::read(other, second, range)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An adapter in another form: a checkpoint to write.
pub struct PortedAdapter<'a> {
    adapter: &'a dyn CheckpointReader,
    second: View<'a>,
    tensors: Vec<TensorInfo>,
    places: Vec<Place>,
    metadata: Metadata,
    companions: Companions,
}

impl<'a> PortedAdapter<'a> {
    /// A GGUF adapter of one of PEFT. `source` is what [`SecondMatrices::reader`] gives, with its
    /// family.
    ///
    /// # Errors
    /// E001 where llama.cpp has no such weights, or lays them out so that rows are no rows any
    /// more.
    pub fn for_llama_cpp(halves: &'a SecondMatrices<'a>, source: &Source<'a>) -> Result<Self> {
        let second = to_gguf(source)?.view;
        let pairs = second.metadata().key_values()?;
        let architecture = pairs.as_ref().and_then(|pairs| pairs.text("general.architecture"));
        let text =
            |key: &str, value: &str| KeyValue::new(key, TypedValue::String(value.to_owned()));
        let mut metadata = Metadata::new();
        metadata.set(keys::GGUF, json!({ "version": 3 }));
        #[expect(clippy::cast_possible_truncation, reason = "llama.cpp reads single precision")]
        let alpha = TypedValue::F32(halves.alpha as f32);
        let pairs = [
            text("general.architecture", architecture.unwrap_or_default()),
            text("general.type", "adapter"),
            text("adapter.type", "lora"),
            KeyValue::new("adapter.lora.alpha", alpha),
        ];
        metadata.set_key_values(pairs.iter().collect());
        let mut ported = Self {
            adapter: halves.adapter,
            second,
            tensors: Vec::new(),
            places: Vec::new(),
            metadata,
            companions: Companions::default(),
        };
        ported.add(halves, |weight, _, half| format!("{weight}.lora_{half}"))?;
        Ok(ported)
    }

    /// A PEFT folder's adapter of a GGUF one. `source` is what [`SecondMatrices::reader`] gives,
    /// with its family.
    ///
    /// # Errors
    /// Those of [`for_llama_cpp`](Self::for_llama_cpp), the other way round.
    pub fn for_peft(halves: &'a SecondMatrices<'a>, source: &Source<'a>) -> Result<Self> {
        let (restored, _) =
            from_gguf(source.reader(), source.families(), source.architecture(), DType::F32)?;
        let mut ported = Self {
            adapter: halves.adapter,
            second: restored.view,
            tensors: Vec::new(),
            places: Vec::new(),
            metadata: Metadata::new(),
            companions: Companions::default(),
        };
        let modules = ported.add(halves, |weight, module, half| {
            let module = weight.strip_suffix(".weight").unwrap_or(module);
            format!("{PREFIX}{module}.lora_{}.weight", half.to_ascii_uppercase())
        })?;
        let most = modules.values().copied().max().unwrap_or(1);
        let ranks: Map<String, Value> = modules
            .iter()
            .filter(|(_, rank)| **rank != most)
            .map(|(module, rank)| (module.clone(), (*rank).into()))
            .collect();
        let config = json!({
            "base_model_name_or_path": halves.base,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "init_lora_weights": true,
            "lora_alpha": halves.alpha,
            "lora_dropout": 0.0,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": most,
            "rank_pattern": ranks,
            "target_modules": modules.keys().collect::<Vec<_>>(),
            "task_type": null,
            "use_dora": false,
            "use_rslora": false,
        });
        let bytes = apr_core::json::to_vec_pretty(&config).unwrap_or_default();
        ported.companions.put(ADAPTER_CONFIG, bytes);
        Ok(ported)
    }

    /// Adds the pairs under names of a weight, a module and a half of a pair; returns the modules,
    /// with their ranks.
    fn add(
        &mut self,
        halves: &SecondMatrices<'_>,
        name: impl Fn(&str, &str, char) -> String,
    ) -> Result<BTreeMap<String, u64>> {
        let mut modules = BTreeMap::new();
        for (position, info) in self.second.tensors().iter().enumerate() {
            let below = self.second.names_below(&info.name);
            let module = match below[..] {
                [weight] => halves.module(weight),
                _ => None,
            };
            let unfit = || {
                let message =
                    "this weight has another layout in the other form: merge the adapter instead";
                Error::format(message).for_tensor(&info.name)
            };
            let Some(module) = module else {
                // What the configuration leads to has no part in an adapter.
                if below.is_empty() {
                    continue;
                }
                return Err(unfit());
            };
            if info.shape.dims().get(1) != Some(&module.rank) || info.shape.dims().len() != 2 {
                return Err(unfit());
            }
            let first = self.adapter.tensors()[module.first].clone();
            let of = |half: char| name(&info.name, &module.name, half);
            self.tensors.push(TensorInfo { name: of('a'), ..first });
            self.places.push(Place::First(module.first));
            self.tensors.push(TensorInfo { name: of('b'), ..info.clone() });
            self.places.push(Place::Second(position, module.factor));
            let known = info.name.strip_suffix(".weight").unwrap_or(&info.name);
            modules.insert(known.to_owned(), module.rank);
        }
        if modules.len() < halves.modules.len() {
            let first = |place: &Place| match place {
                Place::First(at) => Some(*at),
                Place::Second(..) => None,
            };
            let kept: HashSet<usize> = self.places.iter().filter_map(first).collect();
            let lost = halves.modules.iter().find(|module| !kept.contains(&module.first));
            let lost = lost.map(|module| module.name.clone()).unwrap_or_default();
            let message = format!("the other form can't store '{}'", Escaped::short(&lost));
            return Err(Error::format(message));
        }
        Ok(modules)
    }
}

impl CheckpointReader for PortedAdapter<'_> {
    pass_on!(adapter: format, files, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match self.places[tensor] {
            Place::First(first) => self.adapter.stored(first),
            Place::Second(second, 1.0) => self.second.stored(second),
            Place::Second(second, _) => Stored::derived_from(&self.second, &[second]),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.places[tensor] {
            Place::First(first) => self.adapter.read_tensor(first, offset, buf),
            Place::Second(second, 1.0) => self.second.read_tensor(second, offset, buf),
            Place::Second(second, factor) => {
                let info = &self.tensors[tensor];
                let elements = info.shape.elements().unwrap_or_default();
                let mut values = read(&self.second, second, 0..elements)?;
                values.iter_mut().for_each(|value| *value *= factor);
                let mut bytes = Vec::new();
                cast_values(&values, info.dtype, &mut bytes);
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let past = || Error::corrupt("the read ends past the tensor").at(offset);
                let end = start.checked_add(buf.len()).ok_or_else(past)?;
                buf.copy_from_slice(bytes.get(start..end).ok_or_else(past)?);
                Ok(())
            }
        }
    }

    fn tensor_slice(&self, _: usize) -> Option<&[u8]> {
        None
    }

    fn container(&self) -> Container<'_> {
        self.adapter.container().altered()
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(self.adapter, companion)
    }

    fn left_out(&self) -> &[String] {
        &[]
    }
}
