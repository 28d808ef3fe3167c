//! Masks: which positions a query may look at, as numbers that are added to the scores.

use apr_core::Result;
use apr_graph::{ElementType, ValueId};

use crate::writer::Writer;

/// What a hidden position gets: the lowest number, as transformers' eager attention has it, so that a row which may look
/// at nothing gets equal shares and no NaN.
const HIDDEN: f64 = f32::MIN as f64;

impl Writer<'_> {
    /// The mask of padding alone, `[batch, 1, 1, keys]`, from one that is 1 where a token counts.
    pub(crate) fn padding_mask(&mut self, attention_mask: ValueId) -> ValueId {
        self.scope("mask", |w| {
            let counts = w.counting(attention_mask);
            w.additive("additive", counts)
        })
    }

    fn counting(&mut self, attention_mask: ValueId) -> ValueId {
        let counts = self.cast("counts", attention_mask, ElementType::Bool);
        self.unsqueeze("counts_by_key", counts, &[1, 2])
    }

    /// 0 where a position may be seen, the lowest number elsewhere.
    pub(crate) fn additive(&mut self, name: &str, seen: ValueId) -> ValueId {
        let (zero, hidden) = (self.float(0.0), self.float(HIDDEN));
        self.make("Where", name, [seen, zero, hidden])
    }

    /// Positions of the queries, `[queries, 1]`, and of the keys, `[keys]`: both end at the same one.
    pub(crate) fn positions(&mut self, queries: ValueId, keys: ValueId) -> (ValueId, ValueId) {
        let (zero, one) = (self.int(0), self.int(1));
        let scalar = self.ints(&[]);
        let queries = self.make("Reshape", "queries", [queries, scalar]);
        let keys = self.make("Reshape", "keys", [keys, scalar]);
        let past = self.make("Sub", "past", [keys, queries]);
        let query = self.make("Range", "query_positions", [past, keys, one]);
        let query = self.unsqueeze("query_column", query, &[1]);
        let key = self.make("Range", "key_positions", [zero, keys, one]);
        (query, key)
    }

    /// The causal masks of a decoder: position `q` sees `k <= q`, and with a window `w` only `k > q - w`. One mask for each
    /// window, `[batch, 1, queries, keys]`; a window of `None` reaches everything.
    ///
    /// `tokens` has a length of the queries on its axis 1.
    pub(crate) fn causal_masks(
        &mut self,
        tokens: ValueId,
        attention_mask: ValueId,
        windows: &[Option<u64>],
    ) -> Result<Vec<ValueId>> {
        self.scope("mask", |w| {
            let queries = w.length("query_count", tokens, 1);
            let keys = w.length("key_count", attention_mask, 1);
            let (query, key) = w.positions(queries, keys);
            let counts = w.counting(attention_mask);
            let causal = w.make("LessOrEqual", "causal", [key, query]);
            let whole = w.make("And", "seen", [causal, counts]);
            let mask = |window: &Option<u64>| match window {
                None => Ok(w.additive("additive", whole)),
                Some(window) => w.scope(&format!("window.{window}"), |w| {
                    let first = w.window_start(query, *window);
                    let near = w.make("Greater", "near", [key, first]);
                    let seen = w.make("And", "seen", [whole, near]);
                    Ok(w.additive("additive", seen))
                }),
            };
            windows.iter().map(mask).collect()
        })
    }

    fn window_start(&mut self, query: ValueId, window: u64) -> ValueId {
        let window = self.int(crate::writer::signed(window));
        self.make("Sub", "before_window", [query, window])
    }
}
