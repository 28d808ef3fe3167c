//! The modules that adapters change, and the pairs of matrices that they have for each.

use std::collections::{BTreeMap, BTreeSet};

use apr_core::{DType, Error, Escaped, Result, TensorInfo};
use apr_lowrank::{Amount, Extent, memory};
use apr_tensor::factors::suits;

use super::{Combination, CombineMethod, CombineReport};
use crate::adapter::{Adapter, Contents, Part, Parts};
use crate::configuration::{Method, Writer};
use crate::form::rows_and_columns;
use crate::image_names::Spelling;
use crate::report::MergedAdapter;

/// The matrices of a module in one adapter.
pub(super) struct Pair {
    pub(super) adapter: usize,
    pub(super) first: usize,
    pub(super) second: usize,
    pub(super) rank: usize,
    pub(super) scale: f64,
}

/// A module of the result.
pub(super) struct Module {
    pub(super) name: String,
    /// Matrices A and B in the first adapter that has the module.
    pub(super) infos: [TensorInfo; 2],
    /// Position of the number with the module's scale in that adapter.
    pub(super) alpha: Option<usize>,
    /// Dtype of the new matrices.
    pub(super) dtype: DType,
    /// Rows of B and columns of A.
    sides: [usize; 2],
    pub(super) pairs: Vec<Pair>,
}

impl Module {
    fn inner(&self) -> usize {
        self.pairs.iter().fold(0, |sum, pair| sum.saturating_add(pair.rank))
    }

    /// Elements of all matrices of rank `inner`.
    fn elements(&self, inner: usize) -> u64 {
        let sides = self.sides[0].saturating_add(self.sides[1]);
        (sides as u64).saturating_mul(inner as u64)
    }

    /// Returns the number of bytes of the matrices in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.elements(self.inner()).saturating_mul(4)
    }

    /// Returns the number of bytes that computing the module takes.
    ///
    /// # Errors
    /// E008 if it is more than there may be.
    pub(super) fn memory(&self, combination: &Combination) -> Result<u64> {
        let inner = self.inner();
        let [rows, columns] = self.sides;
        let whole = (rows as u64).saturating_mul(columns as u64).saturating_mul(4);
        let needed = match combination.amount {
            None => self.bytes().saturating_mul(4),
            // The change, its orthogonal bases, and both again beside the result to measure it.
            Some(_) if !combination.method.takes_density() => self.bytes().saturating_mul(8),
            Some(amount) => {
                let extent = match amount {
                    Amount::Rank(rank) => Extent::Rank(usize::try_from(rank).unwrap_or(usize::MAX)),
                    Amount::Energy(share) => Extent::Energy { share, most: usize::MAX },
                };
                let products = (self.pairs.len() as u64).saturating_add(4).saturating_mul(whole);
                memory(rows, columns, extent).saturating_add(products)
            }
        };
        if needed > combination.memory {
            let message = format!(
                "combining matrices of {rows} and {columns} elements of rank {inner} needs \
                 {needed} bytes of memory; the limit is {}",
                combination.memory
            );
            return Err(Error::memory(message).for_tensor(&self.infos[0].name));
        }
        Ok(needed)
    }
}

/// The modules of all adapters.
pub(super) struct Modules {
    pub(super) writer: Writer,
    pub(super) list: Vec<Module>,
    /// Positions of tensors of the only adapter that the result has as they are.
    pub(super) copied: Vec<usize>,
    contents: Vec<Contents>,
    warnings: Vec<String>,
}

impl Modules {
    /// Collects the modules of adapters.
    ///
    /// # Errors
    /// E001 for adapters that can't be combined; E002, E007 and E008 when one can't be read.
    pub(super) fn of(adapters: &[Adapter<'_>], combination: &Combination) -> Result<Self> {
        let contents: Vec<Contents> = adapters
            .iter()
            .map(|adapter| {
                let read = Contents::read(&*adapter.reader).and_then(|contents| {
                    check(&contents, adapter, adapters.len())?;
                    Ok(contents)
                });
                read.map_err(|error| error.in_file(&adapter.name))
            })
            .collect::<Result<_>>()?;
        let Some(first) = contents.first() else {
            return Err(Error::format("there are no adapters to combine"));
        };
        let writer = first.configuration.writer;
        if contents.iter().any(|contents| contents.configuration.writer != writer) {
            return Err(Error::format(
                "adapters of PEFT and of image models have other names: combine one kind at a time",
            ));
        }
        check_spelling(&contents)?;

        let mut found =
            Self { writer, list: Vec::new(), copied: Vec::new(), contents, warnings: Vec::new() };
        let mut known = BTreeMap::new();
        for (position, adapter) in adapters.iter().enumerate() {
            let added = found.add(position, adapter, combination, &mut known);
            added.map_err(|error| error.in_file(&adapter.name))?;
        }
        if found.list.is_empty() {
            return Err(Error::format("the adapters have no pairs of matrices"));
        }
        found.copied = found.contents[0].replaced.values().copied().collect();
        found.warn(adapters);
        Ok(found)
    }

    /// Adds the modules of an adapter.
    fn add(
        &mut self,
        position: usize,
        adapter: &Adapter<'_>,
        combination: &Combination,
        known: &mut BTreeMap<String, usize>,
    ) -> Result<()> {
        let reader = &*adapter.reader;
        let infos = reader.tensors();
        let contents = &self.contents[position];
        for (name, parts) in &contents.modules {
            let (first, second) = pair(parts, infos)?;
            let named = |error: Error| error.for_tensor(&infos[first].name);
            let sizes = [first, second].map(|at| rows_and_columns(&infos[at].shape));
            let [Some((rank, columns)), Some((rows, inner))] = sizes else {
                return Err(named(Error::format("it must be a matrix")));
            };
            if rank != inner || [rank, columns, rows].contains(&0) {
                return Err(named(Error::format("the matrices of the pair do not match")));
            }
            let scale = contents.scale(reader, name, Some(rank)).map_err(named)?;
            #[expect(clippy::cast_possible_truncation, reason = "matrices are of that")]
            if !((scale * adapter.weight) as f32).is_finite() {
                return Err(named(Error::format(format!("the scale is {scale}"))));
            }
            let size = |size: u64| {
                usize::try_from(size).map_err(|_| named(Error::memory("it does not fit in memory")))
            };
            let (rank, sides) = (size(rank)?, [size(rows)?, size(columns)?]);
            let pair = Pair { adapter: position, first, second, rank, scale };
            let Some(&at) = known.get(name) else {
                let stored = infos[first].dtype;
                let dtype = combination.precision.or(suits(stored).then_some(stored));
                known.insert(name.clone(), self.list.len());
                self.list.push(Module {
                    name: name.clone(),
                    infos: [infos[first].clone(), infos[second].clone()],
                    alpha: parts.get(&Part::Alpha).copied(),
                    dtype: dtype.unwrap_or(DType::F32),
                    sides,
                    pairs: vec![pair],
                });
                continue;
            };
            let module = &mut self.list[at];
            let is_alike = [first, second]
                .into_iter()
                .zip(&module.infos)
                .all(|(at, other)| infos[at].shape.dims().len() == other.shape.dims().len());
            if module.sides != sides || !is_alike {
                let message = format!(
                    "it does not go with {} of another adapter: its model has other sizes",
                    module.infos[0].shape
                );
                return Err(named(Error::format(message)));
            }
            let needs_rank =
                combination.amount.is_none() && combination.method != CombineMethod::Cat;
            if let Some(other) =
                module.pairs.first().filter(|other| needs_rank && other.rank != rank)
            {
                let message = format!(
                    "rank {rank}, and {} in another adapter: '{}' combines matrices of one rank, \
                     or products of them with a rank for the result",
                    other.rank,
                    combination.method.name()
                );
                return Err(named(Error::format(message)));
            }
            module.pairs.push(pair);
        }
        Ok(())
    }

    fn warn(&mut self, adapters: &[Adapter<'_>]) {
        let bases: BTreeSet<&str> =
            self.contents.iter().filter_map(|it| it.configuration.base.as_deref()).collect();
        if bases.len() > 1 {
            let bases: Vec<String> =
                bases.iter().map(|base| format!("'{}'", Escaped::short(base))).collect();
            self.warnings.push(format!(
                "the adapters were trained on models of different names: {}",
                bases.join(", ")
            ));
        }
        for (position, adapter) in adapters.iter().enumerate().filter(|_| adapters.len() > 1) {
            let of_adapter =
                |module: &&Module| module.pairs.iter().any(|it| it.adapter == position);
            let mut modules = self.list.iter().filter(of_adapter);
            if modules.all(|module| module.pairs.len() == 1) {
                self.warnings.push(format!(
                    "{} changes no module that another adapter changes",
                    Escaped::short(&adapter.name)
                ));
            }
        }
    }

    /// Returns the report, without results of modules.
    pub(super) fn report(
        &self,
        adapters: &[Adapter<'_>],
        combination: &Combination,
    ) -> CombineReport {
        let of_adapter = |(position, adapter): (usize, &Adapter<'_>)| {
            let contents = &self.contents[position];
            let pairs = self.list.iter().flat_map(|module| &module.pairs);
            let pairs = pairs.filter(|pair| pair.adapter == position);
            let ranks: BTreeSet<u64> = pairs.clone().map(|pair| pair.rank as u64).collect();
            let mut scales: Vec<f64> = pairs.map(|pair| pair.scale).collect();
            scales.sort_by(f64::total_cmp);
            scales.dedup();
            MergedAdapter {
                name: adapter.name.clone(),
                kind: "LoRA".to_owned(),
                trained_on: contents.configuration.base.clone(),
                weight: adapter.weight,
                ranks: ranks.into_iter().collect(),
                scales,
                modules: contents.modules.len(),
                replaced: contents.replaced.len(),
            }
        };
        let Combination { method, amount, density, .. } = *combination;
        let names = |tensors: &[usize]| {
            let infos = adapters[0].reader.tensors();
            tensors.iter().map(|&tensor| infos[tensor].name.clone()).collect()
        };
        CombineReport {
            method: method.name(),
            rank: if let Some(Amount::Rank(rank)) = amount { Some(rank) } else { None },
            energy: if let Some(Amount::Energy(share)) = amount { Some(share) } else { None },
            density: method.takes_density().then_some(density),
            adapters: adapters.iter().enumerate().map(of_adapter).collect(),
            relative_error: None,
            modules: Vec::new(),
            copied: names(&self.copied),
            warnings: self.warnings.clone(),
        }
    }
}

/// Checks that an adapter is one of several that can be combined.
fn check(contents: &Contents, adapter: &Adapter<'_>, count: usize) -> Result<()> {
    let configuration = &contents.configuration;
    let advice = match configuration.writer {
        Writer::Mlx => Some("MLX: merge it into its model instead"),
        Writer::LlamaCpp => Some("llama.cpp: convert it to PEFT's form first"),
        Writer::Peft | Writer::Images => None,
    };
    if let Some(advice) = advice {
        return Err(Error::format(format!("it is an adapter of {advice}")));
    }
    if configuration.method != Method::Named || !configuration.parameters.is_empty() {
        return Err(Error::format(
            "only pairs of LoRA's matrices of single weights can be combined",
        ));
    }
    if let Some((name, &tensor)) = contents.replaced.iter().next().filter(|_| count > 1) {
        let message = format!(
            "'{}' was trained as a whole, which adapters can't be combined with",
            Escaped::short(name)
        );
        return Err(Error::format(message).for_tensor(&adapter.reader.tensors()[tensor].name));
    }
    Ok(())
}

/// Checks that names of modules have one spelling in all adapters of image models, so that one
/// module is one in the result, too.
fn check_spelling(contents: &[Contents]) -> Result<()> {
    let mut known: Vec<(Spelling, &str)> = Vec::new();
    for module in contents.iter().flat_map(|it| it.modules.keys()) {
        let Some(spelling) = Spelling::of(module) else { continue };
        if let Some((_, other)) = known.iter().find(|(other, _)| spelling.conflicts_with(*other)) {
            return Err(Error::format(format!(
                "the adapters spell the modules of one model in two ways, such as '{}' and '{}'",
                Escaped::short(other),
                Escaped::short(module)
            )));
        }
        if !known.iter().any(|(other, _)| *other == spelling) {
            known.push((spelling, module));
        }
    }
    Ok(())
}

/// Returns the positions of a module's matrices.
fn pair(parts: &Parts, infos: &[TensorInfo]) -> Result<(usize, usize)> {
    let position = |part: Part| parts.get(&part).copied();
    let other = parts.iter().find(|(part, _)| {
        !matches!(
            part,
            Part::LoraA | Part::LoraB | Part::EmbeddingA | Part::EmbeddingB | Part::Alpha
        )
    });
    let lora = position(Part::LoraA).zip(position(Part::LoraB));
    let embedding = position(Part::EmbeddingA).zip(position(Part::EmbeddingB));
    match (lora.xor(embedding), other) {
        (Some(pair), None) => Ok(pair),
        (_, other) => {
            let tensor = other.map(|(_, tensor)| tensor).or(parts.values().next());
            let name = tensor.map(|&tensor| infos[tensor].name.clone());
            let message = "only pairs of LoRA's matrices can be combined";
            Err(Error::format(message).for_tensor(name.unwrap_or_default()))
        }
    }
}
