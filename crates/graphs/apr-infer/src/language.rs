//! Language models: one token after the other, with the keys and values of earlier ones kept.

mod batch;
mod prompt_runs;
mod rows;

use apr_core::{Error, Result};
use apr_graph::{Body, Dim, ElementType, Meaning, ValueId};

pub use batch::Batch;
pub use prompt_runs::{PromptRun, prompt_runs, vectors_of_logits};
use prompt_runs::{Reading, reads_on};
pub use rows::TokenRows;

use crate::kv_cache::{CacheType, CachedHeads, heads_and_size, keeps_others};
use crate::last_rows;
use crate::moving::part;
use crate::session::Session;
use crate::tap::Tap;
use crate::workers::Workers;
use crate::{Tensor, Value};

/// Maximum number of elements of one state. The states of a model of 2.8 billion weights have
/// 81,920.
const MAX_STATE: usize = 1 << 26;

/// A session whose graph generates text, with the roles of its inputs and outputs.
#[derive(Debug)]
pub struct LanguageModel<'s, 'a> {
    session: &'s Session<'a>,
    tokens: String,
    mask: Option<String>,
    positions: Option<String>,
    logits: String,
    /// Input and output of each key and value that is kept.
    cache: Vec<(ValueId, String)>,
    cache_type: CacheType,
    /// The length of texts beyond which all of their tokens are turned otherwise.
    switch: Option<usize>,
    /// Rows that replace the vectors of some tokens.
    rows: Option<TokenRows>,
}

/// Tokens so far, with the keys and values kept of them.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Keys and values, in the order of the graph's inputs.
    values: Vec<Value>,
    /// Tokens that are kept; without a cache, the tokens themselves.
    tokens: Vec<i64>,
}

impl Memory {
    /// Number of tokens so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns `true` if there are no tokens yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// A copy with keys and values of its own, which grow without another copy.
    #[must_use]
    pub fn unshared(&self) -> Self {
        let of = |value: &Value| match value {
            Value::Cached(heads) => Value::Cached(heads.unshared()),
            other => other.clone(),
        };
        Self { values: self.values.iter().map(of).collect(), tokens: self.tokens.clone() }
    }

    /// Returns the size of keys, values and states in memory in bytes, including the capacity
    /// reserved for more tokens.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.values.iter().flat_map(Value::pieces).map(|(_, bytes)| bytes).sum()
    }

    /// The tokens so far.
    #[must_use]
    pub fn tokens(&self) -> &[i64] {
        &self.tokens
    }
}

/// Logits that are wanted of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    Nothing,
    /// Logits of at least the last token.
    Last,
    All,
}

fn with_meaning(body: &Body, list: &[ValueId], meaning: Meaning) -> Option<String> {
    list.iter()
        .map(|id| body.value(*id))
        .find(|value| value.meaning == meaning)
        .map(|value| value.name.clone())
}

impl<'s, 'a> LanguageModel<'s, 'a> {
    /// Finds tokens, logits and the cache among a graph's inputs and outputs.
    ///
    /// # Errors
    /// E003 where the graph does not continue texts.
    pub fn new(session: &'s Session<'a>) -> Result<Self> {
        let body = &session.graph.body;
        let missing = |what: &str| {
            Error::version(format!("the graph does not generate text: missing {what}"))
        };
        let input = |meaning| with_meaning(body, &body.inputs, meaning);
        let tokens = input(Meaning::TokenIds).ok_or_else(|| missing("input of tokens"))?;
        let logits = with_meaning(body, &body.outputs, Meaning::Logits)
            .ok_or_else(|| missing("output of logits"))?;
        let pasts = |meaning| {
            body.inputs.iter().copied().filter(move |id| body.value(*id).meaning == meaning)
        };
        let presents =
            |meaning| body.outputs.iter().filter(move |id| body.value(**id).meaning == meaning);
        let name = |id: &ValueId| body.value(*id).name.clone();
        let keys = pasts(Meaning::PastKey).zip(presents(Meaning::PresentKey).map(name));
        let states = pasts(Meaning::PastState).zip(presents(Meaning::PresentState).map(name));
        let cache: Vec<_> = keys
            .chain(pasts(Meaning::PastValue).zip(presents(Meaning::PresentValue).map(name)))
            .chain(states)
            .collect();
        let kept = [Meaning::PastKey, Meaning::PastValue, Meaning::PastState];
        let past: usize = kept.into_iter().map(|meaning| pasts(meaning).count()).sum();

        // `zip` ends with the shorter list, so an input without its output shows here.
        if past != cache.len() {
            return Err(missing("output for each input key and value"));
        }

        let (mask, positions) = (input(Meaning::AttentionMask), input(Meaning::PositionIds));
        let cache_type = CacheType::F32;
        let (switch, rows) = (None, None);
        Ok(Self { session, tokens, mask, positions, logits, cache, cache_type, switch, rows })
    }

    /// Sets the rows that replace the vectors of a token.
    #[must_use]
    pub fn with_rows(self, rows: Option<TokenRows>) -> Self {
        Self { rows, ..self }
    }

    /// Sets the type in which keys and values are kept.
    ///
    /// # Errors
    /// E003 where heads do not fill the type's blocks, and where a graph does something else with
    /// keys and values than to join new ones with those of earlier tokens and to multiply them.
    pub fn with_cache_type(self, cache_type: CacheType) -> Result<Self> {
        let grows = |(id, _): &(ValueId, String)| self.heads_and_size(*id).is_some();
        if cache_type != CacheType::F32 && !self.cache.iter().all(grows) {
            return Err(keeps_others(cache_type));
        }
        self.session.check_cache_type(cache_type)?;
        Ok(Self { cache_type, ..self })
    }

    /// Sets the length above which a text uses other rotary positions for all of its tokens
    /// (LongRoPE). When a text grows beyond `switch` tokens, its keys and values are recomputed, as
    /// in transformers.
    #[must_use]
    pub fn with_switch(self, switch: Option<usize>) -> Self {
        Self { switch, ..self }
    }

    /// Returns `true` if a text crosses the switch length when it grows from `past` to `total`
    /// tokens.
    fn switches(&self, past: usize, total: usize) -> bool {
        self.switch.is_some_and(|switch| past > 0 && past <= switch && total > switch)
    }

    /// Returns the storage type of keys and values.
    #[must_use]
    pub fn cache_type(&self) -> CacheType {
        self.cache_type
    }

    /// Heads and elements of a head of a key or value that can grow in place.
    fn heads_and_size(&self, id: ValueId) -> Option<(usize, usize)> {
        heads_and_size(self.session.graph, id)
    }

    /// Returns the logits of the token that follows the tokens so far and `tokens`. Long prompts
    /// are read in pieces, each with the keys and values of the pieces before it.
    ///
    /// # Errors
    /// Returns the errors of [`Session::run`]. The memory is empty then, because a run takes the
    /// keys and values that it extends.
    pub fn next(
        &self,
        memory: &mut Memory,
        tokens: &[i64],
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<Vec<f32>> {
        if tokens.is_empty() {
            return Err(Error::format("no tokens to continue from"));
        }
        let logits = if self.switches(memory.len(), memory.len() + tokens.len()) {
            let all = [memory.tokens(), tokens].concat();
            *memory = Memory::default();
            self.read(memory, &all, workers, tap)
        } else {
            self.read(memory, tokens, workers, tap)
        };
        if logits.is_err() {
            *memory = Memory::default();
        }
        logits
    }

    /// Forgets all but the first `tokens` tokens. Returns `false` and changes nothing if the memory
    /// can't be truncated.
    ///
    /// States can't be truncated, because they depend on all tokens so far. Keys and values can't
    /// be truncated if they have no dimension with one row per token, or if a shorter text has
    /// other ones.
    ///
    /// # Errors
    /// E001 for keys and values that are not tensors.
    pub fn truncate(&self, memory: &mut Memory, tokens: usize) -> Result<bool> {
        let past = memory.len();
        if tokens >= past {
            return Ok(true);
        }
        if tokens == 0 {
            *memory = Memory::default();
            return Ok(true);
        }
        if self.switches(tokens, past) {
            return Ok(false);
        }
        for ((id, _), value) in self.cache.iter().zip(&memory.values) {
            let has_rows = match value {
                Value::Cached(_) => true,
                other => self.axis_of_tokens(*id, other.tensor()?.shape(), past).is_some(),
            };
            if !has_rows {
                return Ok(false);
            }
        }
        // Keys and values that nobody else has are cut where they lie.
        let values = std::mem::take(&mut memory.values);
        let first = |((id, _), value): (&(ValueId, String), Value)| match value {
            Value::Cached(heads) => Ok(Value::Cached(heads.truncated(tokens))),
            other => {
                let tensor = other.tensor()?;
                let axis = self.axis_of_tokens(*id, tensor.shape(), past).unwrap_or_default();
                part(tensor, axis, 0, tokens).map(Value::from)
            }
        };
        memory.values = self.cache.iter().zip(values).map(first).collect::<Result<_>>()?;
        memory.tokens.truncate(tokens);
        Ok(true)
    }

    /// Returns `true` if the memory consists of keys and values with one row per token, which can
    /// be split and joined. Returns `false` for states, and if nothing is kept.
    #[must_use]
    pub fn keeps_rows(&self) -> bool {
        let has_rows = |(id, _): &(ValueId, String)| {
            let dims = self.session.graph.body.value(*id).shape();
            let shape: Option<Vec<usize>> = dims.map(|dims| vec![0; dims.len()]);
            shape.is_some_and(|shape| self.axis_of_tokens(*id, &shape, 0).is_some())
        };
        !self.cache.is_empty() && self.cache.iter().all(has_rows)
    }

    /// Returns the keys and values with the names of their inputs, or nothing for an empty memory.
    /// Keys and values in a cache type are also returned as values ([`Value::without_cache`]).
    pub fn kept<'m>(
        &'m self,
        memory: &'m Memory,
    ) -> impl ExactSizeIterator<Item = (&'m str, &'m Value)> {
        let name = |id: &ValueId| self.session.graph.body.value(*id).name.as_str();
        self.cache.iter().map(move |(id, _)| name(id)).zip(&memory.values)
    }

    /// Restores the memory of `tokens` from keys and values, which `tensor` returns by the names of
    /// their inputs.
    ///
    /// # Errors
    /// E001 if one is missing, or if its type or shape does not fit the graph for that number of
    /// tokens.
    pub fn restored(
        &self,
        tokens: Vec<i64>,
        mut tensor: impl FnMut(&str) -> Option<Tensor>,
    ) -> Result<Memory> {
        let mut values = Vec::with_capacity(self.cache.len());
        for ((id, _), empty) in self.cache.iter().zip(self.nothing()?) {
            let name = &self.session.graph.body.value(*id).name;
            let kept = tensor(name)
                .ok_or_else(|| Error::format("missing keys and values").for_tensor(name))?;
            let (mut shape, element) = match &empty {
                Value::Cached(heads) => (heads.shape(), ElementType::F32),
                other => (other.tensor()?.shape().to_vec(), other.tensor()?.element()),
            };
            if let Some(axis) = self.axis_of_tokens(*id, kept.shape(), tokens.len()) {
                shape[axis] = tokens.len();
            }
            if kept.shape() != shape || kept.element() != element {
                return Err(Error::format(format!(
                    "expected {element} of {shape:?}, found {} of {:?}",
                    kept.element(),
                    kept.shape()
                ))
                .for_tensor(name));
            }
            values.push(match empty {
                Value::Cached(heads) => {
                    Value::Cached(heads.with(&kept).map_err(|error| error.for_tensor(name))?)
                }
                _ => Value::from(kept),
            });
        }
        Ok(Memory { values, tokens })
    }

    /// The dimension of a key or value that has a row for each of `past` tokens: the only one of
    /// that size that is no number in the graph, the batch aside.
    fn axis_of_tokens(&self, id: ValueId, shape: &[usize], past: usize) -> Option<usize> {
        let value = self.session.graph.body.value(id);
        let dims = value.shape()?;
        if value.meaning == Meaning::PastState || dims.len() != shape.len() {
            return None;
        }
        let mut open = (1..dims.len()).filter(|at| dims[*at].size().is_none());
        match (open.next(), open.next()) {
            (Some(axis), None) if shape[axis] == past => Some(axis),
            _ => None,
        }
    }

    fn read(
        &self,
        memory: &mut Memory,
        tokens: &[i64],
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<Vec<f32>> {
        let reading = Reading::of(&self.session.graph.body);
        // The first piece of a text beyond the switch goes beyond it, too.
        let beyond = self.switch.filter(|switch| memory.is_empty() && tokens.len() > *switch);
        let mut least = beyond.map_or(0, |switch| switch + 1);
        let mut left = tokens;
        loop {
            let run = reading.run(memory.len(), left.len(), tokens.len(), least);
            let (piece, rest) = left.split_at(self.with_whole_images(left, run.tokens));
            let wants = if rest.is_empty() { Wants::Last } else { Wants::Nothing };
            let logits = self.run(memory, piece, wants, workers, tap)?;
            (left, least) = (rest, 0);
            if left.is_empty() {
                let logits = logits.ok_or_else(|| Error::format("no logits"))?;
                let vocabulary = logits.shape().last().copied().unwrap_or_default();
                let logits = logits.floats()?;
                return Ok(logits[logits.len().saturating_sub(vocabulary)..].to_vec());
            }
        }
    }

    /// The number of tokens to read of `left`, with the whole of each image among them: its tokens
    /// may see each other.
    fn with_whole_images(&self, left: &[i64], tokens: usize) -> usize {
        let Some(rows) = &self.rows else { return tokens };
        let whole = rows.whole_image(left, tokens);
        match left.len() - whole < last_rows::KEPT {
            true => left.len(),
            false => whole,
        }
    }

    /// Returns the logits after each of `tokens`, which follow `context`: `[1, tokens,
    /// vocabulary]`. The logits of `context` are not computed. Returns `None` if the graph keeps no
    /// keys and values to continue from.
    ///
    /// # Errors
    /// Returns the errors of [`Session::run`].
    pub fn logits_behind(
        &self,
        context: &[i64],
        tokens: &[i64],
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<Option<Tensor>> {
        if !self.reads_on() {
            return Ok(None);
        }
        let mut memory = Memory::default();
        if self.switches(context.len(), context.len() + tokens.len()) {
            let all = [context, tokens].concat();
            let logits = self.run(&mut memory, &all, Wants::All, workers, tap)?;
            let own = |logits: Tensor| part(&logits, 1, context.len(), tokens.len());
            return logits.map(own).transpose();
        }
        if !context.is_empty() {
            self.run(&mut memory, context, Wants::Nothing, workers, tap)?;
        }
        self.run(&mut memory, tokens, Wants::All, workers, tap)
    }

    /// Returns `true` if keys and values of earlier tokens are sufficient to continue reading.
    fn reads_on(&self) -> bool {
        reads_on(&self.session.graph.body)
    }

    /// Reads tokens; the logits that are wanted of them.
    fn run(
        &self,
        memory: &mut Memory,
        tokens: &[i64],
        wants: Wants,
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<Option<Tensor>> {
        let is_other = |value: &Value| match value {
            Value::Cached(heads) => heads.cache_type() != self.cache_type,
            _ => false,
        };
        if memory.values.iter().any(is_other) {
            return Err(Error::format("keys and values were kept as another cache type"));
        }
        let past = memory.tokens.len();
        memory.tokens.extend(tokens);
        let images = self.rows.as_ref().map(|rows| {
            let past = if self.cache.is_empty() { &[] } else { &memory.tokens[..past] };
            Ok::<_, Error>((rows.input.clone(), rows.behind(past, &memory.tokens[past.len()..])?))
        });
        let images = images.transpose()?;

        // Without a cache, everything is computed again.
        let (given, past) =
            if self.cache.is_empty() { (&memory.tokens[..], 0) } else { (tokens, past) };
        let row = |values: Vec<i64>| Tensor::new(vec![1, values.len()], values).map(Value::from);
        let mut inputs = vec![(self.tokens.clone(), row(given.to_vec())?)];
        if let Some(mask) = &self.mask {
            inputs.push((mask.clone(), row(vec![1; past + given.len()])?));
        }

        if let Some(positions) = &self.positions {
            let places = self.rows.as_ref().and_then(|rows| rows.positions(&memory.tokens, past));
            let positions_of_run = match places {
                Some(places) => Tensor::new(vec![3, 1, places.len() / 3], places)?.into(),
                None => row((past..past + given.len()).map(|at| at as i64).collect())?,
            };
            inputs.push((positions.clone(), positions_of_run));
        }

        inputs.extend(images.map(|(name, rows)| (name, Value::from(rows))));
        let kept = if memory.values.is_empty() {
            self.nothing()?
        } else {
            std::mem::take(&mut memory.values)
        };
        let (logits, kept) = self.outputs(inputs, kept, wants, workers, tap)?;
        memory.values = kept;
        Ok(logits)
    }

    /// Runs the graph with keys and values. Returns the requested logits and the new keys and
    /// values.
    fn outputs(
        &self,
        mut inputs: Vec<(String, Value)>,
        kept: Vec<Value>,
        wants: Wants,
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<(Option<Tensor>, Vec<Value>)> {
        let body = &self.session.graph.body;
        // The tokens come first.
        let rows =
            inputs.first().and_then(|(_, tokens)| tokens.tensor().ok()?.shape().last().copied());
        inputs.extend(self.cache.iter().map(|(id, _)| body.value(*id).name.clone()).zip(kept));
        let mut wanted: Vec<&str> =
            self.cache.iter().map(|(_, present)| present.as_str()).collect();
        if wants != Wants::Nothing {
            wanted.push(self.logits.as_str());
        }
        let rows = rows.filter(|_| wants == Wants::Last);
        let outcome = self.session.run_for(inputs, &wanted, rows, workers, tap)?;
        if outcome.stopped {
            return Err(Error::io(apr_core::IoCause::Interrupted, "interrupted"));
        }

        let mut outputs = outcome.outputs;
        let logits = (wants != Wants::Nothing).then(|| outputs.pop()).flatten();
        let logits = logits.map(|logits| logits.tensor().cloned()).transpose()?;
        Ok((logits, outputs))
    }

    /// Keys and values of no tokens, and states before any.
    fn nothing(&self) -> Result<Vec<Value>> {
        let body = &self.session.graph.body;
        let empty = |id: &ValueId| {
            if let Some((heads, size)) = self.heads_and_size(*id) {
                return CachedHeads::new(self.cache_type, heads, size).map(Value::Cached);
            }
            let value = body.value(*id);
            // Sizes that are not numbers are the batch, which comes first, and the past, of which
            // there is none.
            let size = |(at, dim): (usize, &Dim)| match dim.size() {
                Some(size) => usize::try_from(size).unwrap_or(0),
                None => usize::from(at == 0),
            };
            let shape: Vec<usize> =
                value.shape().unwrap_or_default().iter().enumerate().map(size).collect();
            let is_state = value.meaning == Meaning::PastState;
            if shape.is_empty() || is_state == shape.contains(&0) {
                return Err(Error::version(format!(
                    "'{}' has no size for earlier tokens",
                    value.name
                )));
            }
            let element = value.element().unwrap_or(ElementType::F32);
            let len = shape.iter().try_fold(1_usize, |len, side| len.checked_mul(*side));
            let len = len.filter(|len| *len <= MAX_STATE).ok_or_else(|| {
                Error::memory(format!("the state '{}' of {shape:?} is too large", value.name))
            })?;
            crate::cast::from_floats(vec![0.0; len], shape, element).map(Value::from)
        };

        self.cache.iter().map(|(id, _)| empty(id)).collect()
    }
}
