//! Memory that running a model takes, from its header and its graphs.

use std::cell::Cell;
use std::collections::BTreeSet;

use apr_blocks::GraphOptions;
use apr_core::{Code, Escaped};
use apr_graph::{Body, Dim, Graph, Inference, Meaning, Value, ValueId, activations, infer};
use apr_infer::{CacheType, kept_size, prompt_runs, vectors_of_logits};
use apr_ops::graph::{Runnable, usual_size, with_graphs};
use apr_ops::inspect::{DTypeShare, dtype_shares};
use apr_registry::CheckpointReader;
use apr_source::Source;
use serde::Serialize;

use crate::error::{RunError, RunResult};
use crate::facts::Facts;
use crate::recognised::PARTS;
use crate::runner::{RunOptions, graph_options};

/// Options of a memory estimate.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// Tokens of a text; the model's context by default.
    pub context: Option<usize>,
    /// Texts or other inputs side by side; 1 by default.
    pub batch: usize,
    /// Storage type of keys and values. Default: single precision.
    pub cache_type: Option<CacheType>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { context: None, batch: 1, cache_type: None }
    }
}

/// Origin of the number of tokens that an estimate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ContextOrigin {
    /// [`MemoryOptions::context`].
    Requested,
    /// The context of the model.
    Model,
    /// Neither is known.
    Default,
}

/// Memory that running a model takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MemoryEstimate {
    /// Tokens of a text; `None` for models whose inputs have another size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
    /// Origin of that number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_origin: Option<ContextOrigin>,
    /// Inputs side by side.
    pub batch: u64,
    /// Weights by dtype, in stored form.
    pub weights: Vec<DTypeShare>,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Storage type of keys and values; `None` for models that keep none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_type: Option<&'static str>,
    /// Bytes of keys, values and states that are kept.
    pub cache_bytes: u64,
    /// Peak size in bytes of other values, in the part with the largest peak.
    pub activation_bytes: u64,
    /// Weights, cache and activations.
    pub total_bytes: u64,
    /// The parts, which run one after the other.
    pub parts: Vec<PartMemory>,
    /// Values that are not included, and options beyond the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Memory for a part of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PartMemory {
    /// Name of the part.
    pub name: String,
    /// Bytes of keys, values and states that it keeps.
    pub cache_bytes: u64,
    /// Peak size in bytes of other values.
    pub activation_bytes: u64,
    /// The node that runs then.
    pub activations_at: String,
    /// Tokens that are read in that run, if it reads tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_at_once: Option<u64>,
}

/// Longest context that is estimated: the runs of a prompt are counted one by one.
const LONGEST_CONTEXT: usize = 1 << 27;

/// Estimates the memory that a run takes, without reading weights. For a model without a graph, the
/// estimate covers only its weights.
///
/// Long prompts are read in pieces, as in [`LanguageModel::next`](apr_infer::LanguageModel::next),
/// and decoders after an encoder write token by token. Activations are those of the graph. An
/// engine that fuses operators needs less.
///
/// # Errors
/// [`RunError::Request`] for a context, a batch or a cache type that the model does not use. E003
/// if keys and values can't be stored as the cache type.
pub fn estimate_memory(
    source: &Source<'_>,
    facts: &Facts,
    run: &RunOptions,
    options: &MemoryOptions,
) -> RunResult<MemoryEstimate> {
    // Whether a head is tied makes no difference here, and finding out reads weights.
    let graphs = GraphOptions { untied: Some(Vec::new()), ..graph_options(facts, run) };
    let has_graph = Cell::new(false);
    let estimated = with_graphs(source, &graphs, |_, parts| {
        has_graph.set(true);
        of_parts(source.reader(), parts, facts, options)
    });
    match estimated {
        Err(RunError::Model(error)) if !has_graph.get() && error.code() == Code::Version => {
            Ok(weights_alone(source.reader(), error.message()))
        }
        estimated => estimated,
    }
}

fn of_parts(
    reader: &dyn CheckpointReader,
    graphs: &[Runnable],
    facts: &Facts,
    options: &MemoryOptions,
) -> RunResult<MemoryEstimate> {
    let own = facts.context();
    let (context, origin) = match (options.context, own) {
        (Some(context), _) => (context, ContextOrigin::Requested),
        (None, Some(own)) => (own, ContextOrigin::Model),
        (None, None) => (to_usize(usual_size("sequence")), ContextOrigin::Default),
    };
    if context > LONGEST_CONTEXT {
        let message = format!("a context of {context} tokens; {LONGEST_CONTEXT} are the most");
        return Err(RunError::request(message));
    }
    let mut warnings = Vec::new();
    if let Some(own) = own.filter(|own| *own < context) {
        warnings.push(format!("the model was made for at most {own} tokens"));
    }

    let mut estimator = Estimator {
        context: context as u64,
        batch: options.batch as u64,
        cache_type: options.cache_type.unwrap_or_default(),
        has_decoder: PARTS.iter().all(|name| graphs.iter().any(|part| part.name == *name)),
        encoded: None,
        has_tokens: false,
        has_batch: false,
        unknown: 0,
    };
    let estimated = graphs.iter().map(|part| estimator.part(part));
    let parts = estimated.collect::<RunResult<Vec<PartMemory>>>()?;
    if options.context.is_some() && !estimator.has_tokens {
        return Err(RunError::request("no input of the model has a number of tokens"));
    }
    if options.batch != 1 && !estimator.has_batch {
        return Err(RunError::request("the inputs of the model have a fixed batch size"));
    }
    let cache_bytes = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.cache_bytes));
    let keeps = graphs.iter().any(|part| keeps(&part.graph.body));
    if options.cache_type.is_some() && !keeps {
        return Err(RunError::request("the model does not have a KV cache"));
    }
    if estimator.unknown > 0 {
        warnings.push(match estimator.unknown {
            1 => "a node or input of unknown size is not included".to_owned(),
            unknown => format!("{unknown} nodes and inputs of unknown size are not included"),
        });
    }

    let own = weights_alone(reader, "");
    let activation_bytes = parts.iter().map(|part| part.activation_bytes).max().unwrap_or(0);
    let run_bytes = cache_bytes.saturating_add(activation_bytes);
    Ok(MemoryEstimate {
        context: estimator.has_tokens.then_some(estimator.context),
        context_origin: estimator.has_tokens.then_some(origin),
        batch: estimator.batch,
        cache_type: keeps.then(|| estimator.cache_type.name()),
        cache_bytes,
        activation_bytes,
        total_bytes: own.weight_bytes.saturating_add(run_bytes),
        parts,
        warnings,
        ..own
    })
}

/// The weights alone, of a model whose graph is not known.
fn weights_alone(reader: &dyn CheckpointReader, why: &str) -> MemoryEstimate {
    let weights = dtype_shares(reader);
    let weight_bytes = weights.iter().fold(0, |sum: u64, share| sum.saturating_add(share.bytes));
    MemoryEstimate {
        context: None,
        context_origin: None,
        batch: 1,
        weights,
        weight_bytes,
        cache_type: None,
        cache_bytes: 0,
        activation_bytes: 0,
        total_bytes: weight_bytes,
        parts: Vec::new(),
        warnings: vec![format!("cache and activations are not known: {why}")],
    }
}

fn to_usize(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Returns `true` if a graph reads values that are kept of earlier tokens.
fn keeps(body: &Body) -> bool {
    body.inputs.iter().any(|id| body.value(*id).meaning.is_kept())
}

struct Estimator {
    context: u64,
    batch: u64,
    cache_type: CacheType,
    has_decoder: bool,
    /// Number of vectors from the encoder, if known.
    encoded: Option<u64>,
    has_tokens: bool,
    has_batch: bool,
    unknown: u64,
}

/// Sizes of one run of a part.
#[derive(Clone, Copy)]
struct RunSize {
    past: u64,
    tokens: u64,
    has_logits: bool,
}

impl Estimator {
    fn part(&mut self, part: &Runnable) -> RunResult<PartMemory> {
        let mut graph = part.graph.clone();
        let has_others =
            graph.body.outputs.iter().any(|id| graph.body.value(*id).meaning != Meaning::Logits);
        if let Some(vectors) = vectors_of_logits(&graph.body).filter(|_| !has_others) {
            // They are all that a run without logits leads to: the graph keeps nothing.
            graph.body.outputs.push(vectors);
        }
        let inference = infer(&mut graph);
        let symbols = Symbols::of(&graph.body);
        self.has_tokens |= !symbols.tokens.is_empty();
        self.has_batch |= !symbols.batch.is_empty();
        let is_decoder = self.has_decoder && part.name != PARTS[0];
        let runs = self.runs(&graph.body, is_decoder);

        let mut most: Option<(RunSize, apr_graph::Activations)> = None;
        for run in runs {
            let found = self.run(&graph, &inference, &symbols, run);
            if most.as_ref().is_none_or(|(_, before)| found.bytes > before.bytes) {
                most = Some((run, found));
            }
        }
        let (run, most) = most.ok_or_else(|| RunError::request("nothing to run"))?;
        let all = RunSize { past: self.context, tokens: 0, has_logits: false };
        let size = |symbol: &str| Some(self.size(&symbols, all, symbol));
        let kept = kept_size(&graph, self.cache_type, !self.has_decoder, &size)?;
        let encoded = states(&graph.body).and_then(|dim| dim.value(&size));
        if self.has_decoder && !is_decoder {
            self.encoded = encoded;
        }
        self.unknown = self.unknown.saturating_add(most.unknown + kept.unknown as u64);
        Ok(PartMemory {
            name: Escaped(&part.name).to_string(),
            cache_bytes: kept.bytes(),
            activation_bytes: most.bytes,
            activations_at: most.at,
            tokens_at_once: (!symbols.tokens.is_empty()).then_some(run.tokens),
        })
    }

    /// The runs that may need most.
    fn runs(&self, body: &Body, is_decoder: bool) -> Vec<RunSize> {
        if is_decoder {
            let (past, tokens) = match keeps(body) {
                true => (self.context.saturating_sub(1), 1),
                // All tokens are read again for each that is written.
                false => (0, self.context),
            };
            return vec![RunSize { past, tokens, has_logits: true }];
        }
        // Of pieces without logits, those with most tokens and with most scores need most.
        let scores = |run: &RunSize| run.tokens.saturating_mul(run.past + run.tokens);
        let (mut widest, mut longest, mut last) = (None::<RunSize>, None::<RunSize>, None);
        let mut past = 0;
        for run in prompt_runs(body, to_usize(self.context)) {
            let (tokens, logits) = (run.tokens as u64, run.logits as u64);
            let all_logits = logits == tokens;
            if !all_logits {
                let run = RunSize { past, tokens, has_logits: false };
                widest = widest.filter(|widest| widest.tokens > tokens).or(Some(run));
                longest = longest.filter(|longest| scores(longest) > scores(&run)).or(Some(run));
            }
            past += tokens;
            if logits > 0 {
                // Behind the last attention, they are all that is computed.
                last = Some(RunSize { past: past - logits, tokens: logits, has_logits: true });
            }
        }
        [widest, longest, last].into_iter().flatten().collect()
    }

    fn run(
        &self,
        graph: &Graph,
        inference: &Inference,
        symbols: &Symbols,
        run: RunSize,
    ) -> apr_graph::Activations {
        let size = |symbol: &str| Some(self.size(symbols, run, symbol));
        let wanted = |value: &Value| run.has_logits || value.meaning != Meaning::Logits;
        activations(graph, inference, &size, &wanted)
    }

    fn size(&self, symbols: &Symbols, run: RunSize, symbol: &str) -> u64 {
        let is_of = |names: &BTreeSet<String>| names.contains(symbol);
        if is_of(&symbols.batch) {
            self.batch
        } else if is_of(&symbols.tokens) {
            run.tokens
        } else if is_of(&symbols.past) {
            run.past
        } else if is_of(&symbols.all) {
            run.past.saturating_add(run.tokens)
        } else if symbol.contains("sequence") {
            self.encoded.unwrap_or(self.context)
        } else {
            usual_size(symbol)
        }
    }
}

/// Dimension of the states that an encoder returns, for each of its vectors.
fn states(body: &Body) -> Option<&Dim> {
    let wanted = [Meaning::EncoderStates, Meaning::HiddenStates];
    let mut outputs = body.outputs.iter().map(|id| body.value(*id));
    outputs.find(|value| wanted.contains(&value.meaning))?.shape()?.get(1)
}

/// Symbols in the dimensions of the inputs, grouped by their meaning.
#[derive(Default)]
struct Symbols {
    batch: BTreeSet<String>,
    /// Tokens of a run.
    tokens: BTreeSet<String>,
    /// Earlier tokens.
    past: BTreeSet<String>,
    /// Earlier tokens and the tokens of the run.
    all: BTreeSet<String>,
}

impl Symbols {
    fn of(body: &Body) -> Self {
        let mut symbols = Self::default();
        let of = |id: &ValueId| {
            let value = body.value(*id);
            value.shape().map(|dims| (value.meaning, dims))
        };
        let inputs: Vec<_> = body.inputs.iter().filter_map(of).collect();
        for (meaning, dims) in &inputs {
            if dims.len() > 1 {
                symbols.batch.extend(names(dims.first()));
            }
            match meaning {
                Meaning::TokenIds | Meaning::PositionIds | Meaning::TokenTypes => {
                    symbols.tokens.extend(names(dims.last()));
                }
                Meaning::Embeddings => symbols.tokens.extend(names(dims.get(1))),
                Meaning::PastKey | Meaning::PastValue => {
                    let open = dims.iter().skip(1).flat_map(|dim| names(Some(dim)));
                    symbols.past.extend(open.filter(|name| !is_of_encoder(name)));
                }
                _ => {}
            }
        }
        for (_, dims) in inputs.iter().filter(|(meaning, _)| *meaning == Meaning::AttentionMask) {
            let own = names(dims.last()).filter(|name| {
                !symbols.tokens.contains(name)
                    && !symbols.past.contains(name)
                    && !is_of_encoder(name)
            });
            let own: Vec<String> = own.collect();
            symbols.all.extend(own);
        }
        // Exporters name the sizes of outputs on their own: those of logits are the inputs'.
        let logits = body.outputs.iter().filter_map(of).find(|(of, _)| *of == Meaning::Logits);
        if let Some((_, [first, rows, _])) = logits.filter(|_| !symbols.tokens.is_empty()) {
            let is_known = |name: &String| symbols.has(name);
            let [first, rows] = [first, rows]
                .map(|dim| names(Some(dim)).filter(|name| !is_known(name)).collect::<Vec<_>>());
            symbols.batch.extend(first);
            symbols.tokens.extend(rows);
        }
        let Self { batch, tokens, past, .. } = &mut symbols;
        batch.retain(|name| !tokens.contains(name) && !past.contains(name));
        symbols
    }

    fn has(&self, name: &str) -> bool {
        let Self { batch, tokens, past, all } = self;
        [batch, tokens, past, all].iter().any(|names| names.contains(name))
    }
}

fn is_of_encoder(name: &str) -> bool {
    name.contains("encoder") && !name.contains("decoder")
}

/// The symbol of a dimension that is one alone.
fn names(dim: Option<&Dim>) -> impl Iterator<Item = String> {
    let symbols = dim.map(Dim::symbols).unwrap_or_default();
    let only = if symbols.len() == 1 { symbols } else { Vec::new() };
    only.into_iter().map(|symbol| symbol.to_string())
}
