//! Masks: which positions a query may look at, as numbers that are added to the scores.

use apr_graph::{ElementType, ValueId};

use crate::writer::{Writer, signed};

/// Mask value for a hidden position: the lowest number, as in transformers' eager attention.
///
/// A row in which all positions are hidden thus gets equal probabilities instead of NaN.
const HIDDEN: f64 = f32::MIN as f64;

/// Tokens that a token attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Itself and those before it; with a window of `w`, the last `w` of those.
    Before,
    /// All; with a window of `w`, those at most `w` away.
    All,
}

/// Range of a token's attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All tokens.
    Whole,
    /// This number of tokens.
    Window(u64),
    /// The tokens of the same chunk of this size (Llama 4).
    Chunk(u64),
}

/// Inputs for computing masks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) sight: Sight,
    /// Positions of the queries, `[queries, 1]`.
    pub(crate) queries: ValueId,
    /// Positions of the keys, `[keys]`.
    pub(crate) keys: ValueId,
    /// Keys that are not padding, `[batch, 1, 1, keys]`.
    pub(crate) counts: Option<ValueId>,
}

impl Writer<'_> {
    /// Returns 1 for tokens that are not padding and 0 for others, `[batch, sequence, 1]`.
    ///
    /// The mask may also cover earlier tokens.
    pub(crate) fn counts(&mut self, tokens: ValueId, mask: ValueId) -> ValueId {
        let count = self.length("count", tokens, 1);
        let start = self.make("Neg", "start", [count]);
        let (end, axis) = (self.ints(&[i64::MAX]), self.ints(&[1]));
        let own = self.make("Slice", "last", [mask, start, end, axis]);

        // As many as there are tokens, which the start alone does not show.
        let shape = self.make("Shape", "shape", [tokens]);
        let own = self.make("Reshape", "own", [own, shape]);
        let counts = self.cast("counts", own, ElementType::F32);
        self.unsqueeze("counts_column", counts, &[-1])
    }

    /// Returns `true` for keys that are not padding, `[batch, 1, 1, keys]`, from a mask that is 1
    /// for tokens that count.
    pub(crate) fn counting(&mut self, attention_mask: ValueId) -> ValueId {
        let counts = self.cast("counts", attention_mask, ElementType::Bool);
        self.unsqueeze("counts_by_key", counts, &[1, 2])
    }

    /// Truths for pairs of which neither is padding, `[batch, 1, queries, keys]`, from those for
    /// keys, where the queries are the same tokens.
    pub(crate) fn mutual(&mut self, counts: ValueId) -> ValueId {
        let by_query = self.transpose("counts_by_query", counts, [0, 1, 3, 2]);
        self.make("And", "counts_by_pair", [counts, by_query])
    }

    /// Returns a mask that is 0 for visible positions and the lowest number elsewhere.
    pub(crate) fn additive(&mut self, name: &str, seen: ValueId) -> ValueId {
        let (zero, hidden) = (self.float(0.0), self.float(HIDDEN));
        self.make("Where", name, [seen, zero, hidden])
    }

    /// Positions of the queries, `[queries, 1]`, and of the keys, `[keys]`, from their numbers:
    /// both end at the same one.
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

    /// Returns one mask for each range, `[batch, 1, queries, keys]` or a shape that broadcasts to
    /// it.
    ///
    /// The mask is `None` if everything is visible.
    pub(crate) fn masks(&mut self, field: Field, reaches: &[Reach]) -> Vec<Option<ValueId>> {
        let Field { sight, queries, keys, counts } = field;
        let causal =
            (sight == Sight::Before).then(|| self.make("LessOrEqual", "causal", [keys, queries]));
        let whole = self.both("seen", causal, counts);
        let mask = |reach: &Reach| match reach {
            Reach::Whole => whole.map(|whole| self.additive("additive", whole)),
            Reach::Window(window) => Some(self.scope(&format!("window.{window}"), |w| {
                let near = w.near(sight, queries, keys, *window);
                let seen = w.both("seen", whole, Some(near)).unwrap_or(near);
                w.additive("additive", seen)
            })),
            Reach::Chunk(chunk) => Some(self.scope(&format!("chunk.{chunk}"), |w| {
                let together = w.together(field, *chunk);
                let seen = w.both("seen", whole, Some(together)).unwrap_or(together);
                w.additive("additive", seen)
            })),
        };
        reaches.iter().map(mask).collect()
    }

    /// Combines two conditions with a logical and; `None` is always true.
    fn both(
        &mut self,
        name: &str,
        one: Option<ValueId>,
        other: Option<ValueId>,
    ) -> Option<ValueId> {
        match (one, other) {
            (Some(one), Some(other)) => Some(self.make("And", name, [one, other])),
            (one, other) => one.or(other),
        }
    }

    /// Returns the keys that are in the same chunk as their query.
    ///
    /// Chunks begin after the padding in front of a text.
    fn together(&mut self, field: Field, chunk: u64) -> ValueId {
        let Field { queries, keys, counts, .. } = field;
        let before = counts.map(|counts| {
            let counts = self.cast("counted", counts, ElementType::I64);
            let (axis, zero) = (self.int(3), self.int(0));
            let so_far = self.make("CumSum", "counted_so_far", [counts, axis]);
            let is_before = self.make("Equal", "is_before", [so_far, zero]);
            let is_before = self.cast("before", is_before, ElementType::I64);
            self.sum("padding", is_before, -1)
        });
        let mut chunk_of = |name: &str, positions: ValueId| {
            let positions = match before {
                Some(before) => {
                    self.make("Sub", &format!("{name}_behind_padding"), [positions, before])
                }
                None => positions,
            };
            let size = self.int(signed(chunk));
            self.make("Div", &format!("{name}_chunk"), [positions, size])
        };
        let (of_query, of_key) = (chunk_of("query", queries), chunk_of("key", keys));
        self.make("Equal", "together", [of_query, of_key])
    }

    /// Returns the keys that are within a window.
    fn near(&mut self, sight: Sight, queries: ValueId, keys: ValueId, window: u64) -> ValueId {
        let window = self.int(signed(window));
        let distance = self.make("Sub", "distance", [queries, keys]);
        match sight {
            Sight::Before => self.make("Less", "near", [distance, window]),
            Sight::All => {
                let distance = self.make("Abs", "absolute_distance", [distance]);
                self.make("LessOrEqual", "near", [distance, window])
            }
        }
    }
}
