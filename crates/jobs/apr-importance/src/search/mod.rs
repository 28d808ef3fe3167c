//! Types of tensors, chosen by what they do to the outputs.

mod choose;
mod member;
mod trial;
mod units;

use std::collections::BTreeSet;

use apr_core::{CheckpointReader, DType, Error, TensorInfo};
use apr_quality::{Sample, WindowOptions};
use apr_quantize::{Imatrix, Layout, Quantization, Scheme, TensorType, Weighting};
use apr_run::{Host, RunError, RunOptions, RunResult};
use apr_source::Source;
use serde::Serialize;

use self::choose::{choose, swapped};
use self::trial::{CountedMeasure, Effect, Trials};
use self::units::{Storage, Unit, fixed, units};

/// Inputs on which a model runs while types are tried.
#[derive(Debug, Clone, Copy)]
pub enum SearchData<'d> {
    /// A text, for a model that continues texts: effects are KL divergences of softened
    /// predictions.
    Text {
        /// Text to run the model on.
        text: &'d str,
        /// Options for splitting the text into windows.
        options: WindowOptions,
    },
    /// Texts, sounds, images or arrays: effects are mean squares of the relative L2 distance of
    /// outputs.
    Samples(&'d [Sample]),
}

/// Maximum size of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Bits per weight, over all tensors.
    BitsPerWeight(f64),
    /// Bytes of the tensors and of the other contents of a file.
    Bytes(u64),
}

/// Contents of a file whose types are not chosen, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unchosen {
    /// Tensors that are not quantized, of a file of blocks.
    pub tensors: u64,
    /// All contents that are not tensors.
    pub overhead: u64,
    /// Alignment to which the length of each tensor in the file is rounded up; 0 and 1 for none.
    pub alignment: u64,
}

/// Goal of a search for types.
#[derive(Debug, Clone, Copy)]
pub struct SearchGoal<'g> {
    /// Name of the data.
    pub dataset: &'g str,
    /// Maximum size of the model.
    pub budget: Budget,
    /// Contents of the file whose types are not chosen.
    pub unchosen: Unchosen,
    /// The layout of codes and scales with the fewest bits, for folders; `None` for blocks.
    pub layout: Option<Layout>,
}

/// A point of the curve of size against effect.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CurvePoint {
    /// Bits per weight, over all tensors.
    pub bits_per_weight: f64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// The sum of the effects of single tensors.
    #[serde(rename = "expected_effect")]
    pub expected: f64,
    /// The effect of all of them together.
    pub measured: f64,
    /// KL divergence in nats, of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub divergence: Option<f64>,
    /// `true` for the chosen point.
    pub chosen: bool,
}

/// The type that was chosen for a tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ChosenType {
    /// The tensor, by the name that the model has it under.
    pub tensor: String,
    /// Type of the tensor: a dtype or a layout.
    #[serde(rename = "type")]
    pub wanted: &'static str,
    /// Effect on the outputs of quantizing only this tensor, and those that servers join to it, in
    /// the unit of the curve.
    pub effect: f64,
}

/// Result of a search.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SearchReport {
    /// Unit of effects. `softened_divergence` is the KL divergence of predictions at temperature 2,
    /// times 4. `squared_distance` is relative to the outputs.
    pub effect: &'static str,
    /// Runs of the model on all of the data.
    pub trials: usize,
    /// Size against effect, the smallest first.
    pub curve: Vec<CurvePoint>,
    /// Types, in the order of the model's tensors.
    pub types: Vec<ChosenType>,
    /// Tensors that the data do not reach, which have a type of 8 bits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<String>,
}

/// Result of a search, with the data that quantizers need to apply it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SearchOutcome {
    /// Report of the search.
    pub report: SearchReport,
    /// Importance, as the types were tried with.
    pub matrix: Imatrix,
    /// The layout with the fewest bits, for folders.
    layout: Option<Layout>,
    /// The types, in the order of the report's.
    types: Vec<TensorType>,
}

/// Sizes on the curve besides the requested one, as factors of it.
const AROUND: [f64; 4] = [0.8, 0.9, 1.12, 1.25];

/// Number of fixed mixes that are tried besides the result of the single tensors' effects.
const MIXES: usize = 4;
/// Maximum number of exchanges that are tried after the choice.
const SWAPS: usize = 32;

/// The scheme that the metadata name for a file of mostly one type.
const SCHEMES: [(DType, Scheme); 13] = [
    (DType::Q2_K, Scheme::Q2_K),
    (DType::Q3_K, Scheme::Q3_K_M),
    (DType::IQ4_XS, Scheme::IQ4_XS),
    (DType::IQ4_NL, Scheme::IQ4_NL),
    (DType::Q4_0, Scheme::Q4_0),
    (DType::Q4_1, Scheme::Q4_1),
    (DType::Q4_K, Scheme::Q4_K_M),
    (DType::Q5_0, Scheme::Q5_0),
    (DType::Q5_1, Scheme::Q5_1),
    (DType::Q5_K, Scheme::Q5_K_M),
    (DType::Q6_K, Scheme::Q6_K),
    // Halves are no scheme of blocks.
    (DType::F16, Scheme::Q8_0),
    (DType::Q8_0, Scheme::Q8_0),
];

/// Chooses the type of each tensor of a model, so that the model fits the budget and its outputs
/// change as little as possible. `done` receives the number of each run of the model and the
/// maximum number of runs.
///
/// Each tensor is quantized alone to one type near the budget, and its effect on the outputs is
/// measured. For other types, the effect is assumed to grow with the square of the error that
/// inputs see, because the divergence of two similar distributions is quadratic in their
/// difference. Effects of tensors are assumed to add up. Then bits are spent where they remove most
/// effect.
///
/// The result is run beside llama.cpp's mixes of nearly the same size. From the best of them on,
/// bits are moved between pairs of tensors as long as that helps.
///
/// # Errors
/// [`RunError::Request`] for a budget that no types fit, or a model without tensors to quantize.
/// E001 if tensors are quantized already. Otherwise, returns the errors of running the model.
pub fn search(
    source: &Source<'_>,
    data: SearchData<'_>,
    goal: SearchGoal<'_>,
    options: &RunOptions,
    host: &dyn Host,
    done: &mut dyn FnMut(usize, usize),
) -> RunResult<SearchOutcome> {
    let SearchGoal { dataset, budget, unchosen, layout } = goal;
    if matches!(data, SearchData::Samples([])) {
        return Err(RunError::request("there are no inputs to measure effects on"));
    }
    let trials = Trials::new(source, data, options, host)?;
    let matrix = trials.importance(dataset)?;
    let storage = Storage { layout, alignment: unchosen.alignment };
    let mut units = units(source, &matrix, storage, options.max_memory, host)?;
    let sizes = Sizes::of(source.reader(), &units, storage, unchosen)?;
    let budget = sizes.budget(budget);
    sizes.check(&units, budget)?;

    let swaps = units.len().min(SWAPS);
    let all = units.len() + AROUND.len() + 1 + MIXES + swaps;
    let average = budget as f64 * 8.0 / sizes.quantized_elements as f64;
    trials.with_effect(|measure| {
        let (mut runs, mut unreached) = (0, Vec::new());
        let mut measure = |types: &[(&Unit, TensorType)]| {
            let effect = measure(types)?;
            runs += 1;
            done(runs, all);
            Ok(effect)
        };
        for unit in &mut units {
            let (wanted, error) = unit.near(average);
            let effect = measure(&[(unit, wanted)])?.objective;
            unit.scale(effect, error);
            if effect == 0.0 && error > 0.0 {
                unit.keep_safe();
                unreached.extend(unit.members.iter().map(|member| member.info.name.clone()));
            }
        }
        let least = sizes.check(&units, budget)?;

        let mut curve = Vec::new();
        for share in AROUND {
            let wanted = whole(share * budget as f64);
            let found = Trial::of(&units, choose(&units, wanted.max(least)), &mut measure)?;
            curve.push(found.point(&units, &sizes, false));
        }

        let mut best = Trial::of(&units, choose(&units, budget), &mut measure)?;
        let fixed = fixed(source, layout, &mut units)?;
        let within = fixed.into_iter().filter(|(_, bytes)| *bytes <= budget);
        let mut near: Vec<_> = within.collect();
        near.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        near.truncate(MIXES);
        for (chosen, _) in near {
            let mix = Trial::of(&units, chosen, &mut measure)?;
            if mix.effect.objective < best.effect.objective {
                best = mix;
            }
        }
        let mut failed = 0;
        for _ in 0..swaps {
            let Some(chosen) = swapped(&units, &best.chosen, budget, failed) else { break };
            let other = Trial::of(&units, chosen, &mut measure)?;
            if other.effect.objective < best.effect.objective {
                (best, failed) = (other, 0);
            } else {
                failed += 1;
            }
        }
        curve.push(best.point(&units, &sizes, true));
        curve.sort_by_key(|point| (point.bytes, !point.chosen));
        curve.dedup_by_key(|point| point.bytes);
        let chosen = best.chosen;

        let types = units.iter().zip(&chosen).flat_map(|(unit, at)| {
            let choice = &unit.choices[*at];
            unit.members.iter().map(|member| ChosenType {
                tensor: member.info.name.clone(),
                wanted: choice.wanted.name(),
                effect: choice.effect,
            })
        });
        let wanted = units
            .iter()
            .zip(&chosen)
            .flat_map(|(unit, at)| unit.members.iter().map(|_| unit.choices[*at].wanted));
        let wanted = wanted.collect();
        let effect = match data {
            SearchData::Text { .. } => "softened_divergence",
            SearchData::Samples(_) => "squared_distance",
        };
        let report =
            SearchReport { effect, trials: runs, curve, types: types.collect(), unreached };
        Ok(SearchOutcome { report, matrix: matrix.clone(), layout, types: wanted })
    })
}

impl SearchOutcome {
    /// The quantization that was found, with importance called by the name of its data.
    #[must_use]
    pub fn quantization(&self, data: &str) -> Quantization {
        let mut found = Quantization::to(self.scheme());
        found.choices.searched = true;
        for (ChosenType { tensor, .. }, wanted) in self.report.types.iter().zip(&self.types) {
            found.choices.overrides.push((apr_view::named(tensor), *wanted));
        }
        found.weighting =
            Some(Weighting::Matrix { matrix: self.matrix.clone(), file: data.to_owned() });
        found
    }

    /// The scheme of the type that most of the tensors have.
    fn scheme(&self) -> Scheme {
        let count =
            |wanted: TensorType| self.types.iter().filter(|chosen| **chosen == wanted).count();
        if let Some(layout) = self.layout {
            let layouts = [layout].into_iter().chain(layout.larger().iter().copied());
            let most = layouts.max_by_key(|layout| count(TensorType::Layout(*layout)));
            return Scheme::parse(most.unwrap_or(layout).name()).unwrap_or(Scheme::Fp8);
        }
        let count = |(dtype, _): &&(DType, Scheme)| count(TensorType::Dtype(*dtype));
        SCHEMES.iter().max_by_key(count).map_or(Scheme::Q8_0, |(_, scheme)| *scheme)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of bytes, which saturate"
)]
fn whole(bytes: f64) -> u64 {
    bytes as u64
}

/// Types that were tried.
struct Trial {
    /// Positions of the chosen types, one for each unit.
    chosen: Vec<usize>,
    effect: Effect,
}

impl Trial {
    fn of(units: &[Unit], chosen: Vec<usize>, measure: &mut CountedMeasure<'_>) -> RunResult<Self> {
        let types = units.iter().zip(&chosen).map(|(unit, at)| (unit, unit.choices[*at].wanted));
        let effect = measure(&types.collect::<Vec<_>>())?;
        Ok(Self { chosen, effect })
    }

    fn point(&self, units: &[Unit], sizes: &Sizes, chosen: bool) -> CurvePoint {
        let choices = || units.iter().zip(&self.chosen).map(|(unit, at)| &unit.choices[*at]);
        let bytes = choices().map(|choice| choice.bytes).sum();
        CurvePoint {
            bits_per_weight: sizes.bits(bytes),
            bytes: sizes.total(bytes),
            expected: choices().map(|choice| choice.effect).sum(),
            measured: self.effect.objective,
            divergence: self.effect.divergence,
            chosen,
        }
    }
}

/// Sizes of all that is not chosen.
struct Sizes {
    unchosen: Unchosen,
    elements: u64,
    quantized_elements: u64,
}

impl Sizes {
    fn of(
        reader: &dyn CheckpointReader,
        units: &[Unit],
        storage: Storage,
        mut unchosen: Unchosen,
    ) -> Result<Self, Error> {
        let elements = |info: &TensorInfo| info.shape.elements().unwrap_or_default();
        let members = || units.iter().flat_map(|unit| &unit.members);
        let quantized = members().map(|member| member.elements).sum::<u64>();
        if storage.layout.is_some() {
            // They stay as they are.
            let chosen: BTreeSet<usize> = members().map(|member| member.position).collect();
            let tensors = reader.tensors().iter().enumerate();
            let others = tensors.filter(|(at, _)| !chosen.contains(at)).map(|(_, info)| {
                Ok::<u64, Error>(info.byte_len()?.next_multiple_of(storage.alignment.max(1)))
            });
            unchosen.tensors = others.sum::<Result<u64, Error>>()?;
        }
        Ok(Self {
            unchosen,
            elements: reader.tensors().iter().map(elements).sum::<u64>().max(1),
            quantized_elements: quantized.max(1),
        })
    }

    /// Refuses a budget that the smallest types exceed; their bytes.
    fn check(&self, units: &[Unit], budget: u64) -> RunResult<u64> {
        let smallest = choose(units, 0);
        let least = units.iter().zip(&smallest).map(|(unit, at)| unit.choices[*at].bytes).sum();
        if least <= budget {
            return Ok(least);
        }
        Err(RunError::request(format!(
            "the smallest types make {:.2} bits per weight, {} bytes, which is more than that",
            self.bits(least),
            self.total(least)
        )))
    }

    /// Returns the bytes that are left for quantized tensors.
    fn budget(&self, budget: Budget) -> u64 {
        let all = match budget {
            Budget::BitsPerWeight(bits) => whole(bits * self.elements as f64 / 8.0),
            Budget::Bytes(bytes) => bytes.saturating_sub(self.unchosen.overhead),
        };
        all.saturating_sub(self.unchosen.tensors)
    }

    fn total(&self, quantized: u64) -> u64 {
        self.unchosen.tensors + quantized
    }

    fn bits(&self, quantized: u64) -> f64 {
        self.total(quantized) as f64 * 8.0 / self.elements as f64
    }
}
