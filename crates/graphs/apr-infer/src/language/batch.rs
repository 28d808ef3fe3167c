//! Batched decoding: several texts grow a token each at a time, so that a step reads the weights
//! once for all of them. Shorter ones are left-padded.

use apr_core::{Error, Result};
use apr_graph::ValueId;

use super::{LanguageModel, Memory, Wants};
use crate::kv_cache::CachedHeads;
use crate::tap::Tap;
use crate::workers::Workers;
use crate::{Tensor, Value};

/// Tokens, keys and values of texts that grow side by side, by one token each at a time.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Keys and values, in the order of the graph's inputs.
    values: Vec<Value>,
    /// Tokens of each text so far.
    texts: Vec<Vec<i64>>,
    /// Rows of keys and values of each text, those before shorter ones among them.
    rows: usize,
}

impl Batch {
    /// Number of texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Returns `true` if there are no texts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Keeps only these texts, in this order. A text may occur several times, as in a beam search.
    ///
    /// # Panics
    /// When there is no such text.
    pub fn select(&mut self, texts: &[usize]) {
        self.texts = texts.iter().map(|text| self.texts[*text].clone()).collect();
        // What is before all of them goes.
        let rows = self.texts.iter().map(Vec::len).max().unwrap_or(0);
        let before = self.rows - rows;
        self.rows = rows;
        let select = |value| match value {
            Value::Cached(heads) => Value::Cached(heads.select(texts).without_first(before)),
            other => other,
        };
        self.values = std::mem::take(&mut self.values).into_iter().map(select).collect();
    }
}

impl LanguageModel<'_, '_> {
    /// Bytes of the keys and values of a token that grow in place.
    #[must_use]
    pub fn bytes_of_a_token(&self) -> u64 {
        let of = |(id, _): &(ValueId, String)| {
            let (heads, size) = self.heads_and_size(*id)?;
            Some(heads as u64 * self.cache_type.row_bytes(size)? as u64)
        };
        self.cache.iter().filter_map(of).sum()
    }

    /// Returns `true` if texts can grow side by side. The graph must have keys and values that
    /// grow, a mask that hides the rows before a shorter text, and the positions of tokens.
    #[must_use]
    pub fn takes_batches(&self) -> bool {
        self.mask.is_some()
            && self.positions.is_some()
            && !self.cache.is_empty()
            && self.cache.iter().all(|(id, _)| self.heads_and_size(*id).is_some())
    }

    /// Puts texts side by side, each of which has some tokens.
    ///
    /// # Errors
    /// E003 where the graph does not take them so ([`LanguageModel::takes_batches`]), E001 for a
    /// memory of no tokens or of another model.
    pub fn batch(&self, texts: &[Memory]) -> Result<Batch> {
        if !self.takes_batches() {
            return Err(Error::version("the graph does not take several texts side by side"));
        }
        let mut values = Vec::with_capacity(self.cache.len());
        for at in 0..self.cache.len() {
            let of = |memory: &Memory| match memory.values.get(at) {
                Some(Value::Cached(heads)) => Ok(heads.clone()),
                _ => Err(Error::format("no keys and values of a text")),
            };
            let heads: Vec<CachedHeads> = texts.iter().map(of).collect::<Result<_>>()?;
            values.push(Value::Cached(CachedHeads::side_by_side(&heads)?));
        }
        let rows = texts.iter().map(Memory::len).max().unwrap_or(0);
        let texts = texts.iter().map(|memory| memory.tokens.clone()).collect();
        Ok(Batch { values, texts, rows })
    }

    /// Adds texts to a batch.
    ///
    /// # Errors
    /// Those of [`LanguageModel::batch`].
    pub fn join(&self, batch: &mut Batch, texts: &[Memory]) -> Result<()> {
        let fresh = self.batch(texts)?;
        if batch.is_empty() {
            *batch = fresh;
            return Ok(());
        }
        let both = |(own, fresh): (&Value, &Value)| match (own, fresh) {
            (Value::Cached(own), Value::Cached(fresh)) => {
                CachedHeads::side_by_side(&[own.clone(), fresh.clone()]).map(Value::Cached)
            }
            _ => Err(Error::format("no keys and values of a text")),
        };
        batch.values = batch.values.iter().zip(&fresh.values).map(both).collect::<Result<_>>()?;
        batch.texts.extend(fresh.texts);
        batch.rows = batch.rows.max(fresh.rows);
        Ok(())
    }

    /// Returns the logits after each text and its new token, one text after the other.
    ///
    /// They equal the logits of each text alone except for rounding, because products of several
    /// rows are added up in another order.
    ///
    /// # Errors
    /// E001 if the number of tokens differs from the number of texts. Otherwise, returns the errors
    /// of [`Session::run`](crate::Session::run), after which the batch is empty.
    pub fn next_of_each(
        &self,
        batch: &mut Batch,
        tokens: &[i64],
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<Vec<Vec<f32>>> {
        let count = batch.len();
        if count == 0 || tokens.len() != count {
            return Err(Error::format(format!("{} tokens for {count} texts", tokens.len())));
        }
        let is_turned = |text: &usize| {
            let past = batch.texts[*text].len();
            self.switches(past, past + 1)
        };
        let (turned, kept): (Vec<usize>, Vec<usize>) = (0..count).partition(is_turned);
        if turned.is_empty() {
            return self.step(batch, tokens, workers, tap);
        }

        // Texts that are computed again leave the others, and come back behind them.
        let mut fresh = Vec::with_capacity(turned.len());
        let mut made = Vec::with_capacity(turned.len());
        for text in &turned {
            let mut memory = Memory::default();
            let all = [&batch.texts[*text][..], &[tokens[*text]]].concat();
            made.push(self.next(&mut memory, &all, workers, tap)?);
            fresh.push(memory);
        }
        batch.select(&kept);
        let mut logits = Vec::with_capacity(count);
        if !kept.is_empty() {
            let tokens: Vec<i64> = kept.iter().map(|text| tokens[*text]).collect();
            logits = self.step(batch, &tokens, workers, tap)?;
        }
        self.join(batch, &fresh)?;
        logits.extend(made);
        let order = || kept.iter().chain(&turned);
        let mut places = vec![0; count];
        order().enumerate().for_each(|(place, text)| places[*text] = place);
        batch.select(&places);
        Ok(places.iter().map(|place| std::mem::take(&mut logits[*place])).collect())
    }

    /// Returns the logits after each text without recomputing earlier tokens.
    fn step(
        &self,
        batch: &mut Batch,
        tokens: &[i64],
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<Vec<Vec<f32>>> {
        let Batch { values, texts, rows } = batch;
        let count = texts.len();
        let total = *rows + 1;
        let column = |values: Vec<i64>| Tensor::new(vec![count, 1], values).map(Value::from);
        let mut inputs = vec![(self.tokens.clone(), column(tokens.to_vec())?)];
        if let Some(mask) = &self.mask {
            let of = |text: &Vec<i64>| {
                let before = std::iter::repeat_n(0, *rows - text.len());
                before.chain(std::iter::repeat_n(1, text.len() + 1))
            };
            let values: Vec<i64> = texts.iter().flat_map(of).collect();
            inputs.push((mask.clone(), Tensor::new(vec![count, total], values)?.into()));
        }
        if let Some(positions) = &self.positions {
            let at = texts.iter().map(|text| text.len() as i64).collect();
            inputs.push((positions.clone(), column(at)?));
        }
        let kept = std::mem::take(values);
        let mut texts = std::mem::take(texts);
        let outputs = self.outputs(inputs, kept, Wants::All, workers, tap)?;
        let (logits, kept) = outputs;
        let logits = logits.ok_or_else(|| Error::format("no logits"))?;
        let logits = logits.floats()?;
        texts.iter_mut().zip(tokens).for_each(|(text, token)| text.push(*token));
        *batch = Batch { values: kept, texts, rows: total };
        Ok(logits.chunks_exact(logits.len() / count).map(<[f32]>::to_vec).collect())
    }
}
