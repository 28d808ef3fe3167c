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
    /// Pairs of tokens that see each other, `[batch, 1, queries, keys]`.
    pub(crate) pairs: Option<ValueId>,
    /// `true` if they do in layers with a window alone, within the window; `false` if they do in
    /// all layers, at any distance.
    pub(crate) pairs_in_windows: bool,
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
        let Field { sight, queries, keys, counts, pairs, .. } = field;
        let causal =
            (sight == Sight::Before).then(|| self.make("LessOrEqual", "causal", [keys, queries]));
        if let Some(pairs) = pairs {
            let masks = reaches.iter().map(|reach| self.paired_mask(field, causal, pairs, *reach));
            return masks.map(Some).collect();
        }
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

    /// Returns the mask of a reach in which some pairs see each other: regardless of the reach, or
    /// within its window alone.
    fn paired_mask(
        &mut self,
        field: Field,
        causal: Option<ValueId>,
        pairs: ValueId,
        reach: Reach,
    ) -> ValueId {
        let name = match reach {
            Reach::Whole => "whole".to_owned(),
            Reach::Window(window) => format!("window.{window}"),
            Reach::Chunk(chunk) => format!("chunk.{chunk}"),
        };
        self.scope(&name, |w| {
            let near = match reach {
                Reach::Whole => None,
                Reach::Window(window) => {
                    Some(w.near(field.sight, field.queries, field.keys, window))
                }
                Reach::Chunk(chunk) => Some(w.together(field, chunk)),
            };
            let seen = match (field.pairs_in_windows, causal) {
                (true, Some(causal)) => match near {
                    None => causal,
                    Some(near) => {
                        let seen = w.make("Or", "before_or_paired", [causal, pairs]);
                        w.make("And", "near_and_seen", [seen, near])
                    }
                },
                _ => match w.both("near_and_before", causal, near) {
                    Some(seen) => w.make("Or", "or_paired", [seen, pairs]),
                    None => pairs,
                },
            };
            let seen = w.both("seen", Some(seen), field.counts).unwrap_or(seen);
            w.additive("additive", seen)
        })
    }

    /// Returns `true` for pairs of tokens in the same run of `token`, `[batch, 1, queries, keys]`.
    ///
    /// The keys may include earlier tokens, which are not in any pair.
    pub(crate) fn pairs_of_runs(
        &mut self,
        tokens: ValueId,
        attention_mask: ValueId,
        token: i64,
    ) -> ValueId {
        let (token, zero, axis) = (self.int(token), self.int(0), self.int(1));
        let is_it = self.make("Equal", "is_image", [tokens, token]);
        let is_it = self.cast("image", is_it, ElementType::I64);
        // A run starts where the token before is another.
        let first = self.slice("first", is_it, 1, 0, 1);
        let first = self.make("Mul", "before_first", [first, zero]);
        let others = self.slice("others", is_it, 1, 0, -1);
        let before = self.concat("before", &[first, others], 1);
        let starts = self.make("Greater", "starts", [is_it, before]);
        let starts = self.cast("start", starts, ElementType::I64);
        let so_far = self.make("CumSum", "runs_so_far", [starts, axis]);
        let run = self.make("Mul", "run", [so_far, is_it]);

        // 0 for the keys of earlier tokens.
        let earlier = self.make("Mul", "no_runs", [attention_mask, zero]);
        let count = self.length("count", tokens, 1);
        let end = self.make("Neg", "end", [count]);
        let (start, axes) = (self.ints(&[0]), self.ints(&[1]));
        let earlier = self.make("Slice", "earlier", [earlier, start, end, axes]);
        let of_keys = self.concat("run_of_keys", &[earlier, run], 1);
        let of_keys = self.unsqueeze("by_key", of_keys, &[1, 2]);
        let of_queries = self.unsqueeze("by_query", run, &[1, 3]);
        let same = self.make("Equal", "same", [of_queries, of_keys]);
        let has_run = self.make("Greater", "has_run", [of_queries, zero]);
        self.make("And", "pairs", [same, has_run])
    }

    /// Returns `true` for all pairs if there are no earlier tokens, `[1, 1, 1, 1]`: the first run
    /// of a text reads a prompt, whose tokens see each other.
    pub(crate) fn pairs_of_first(&mut self, queries: ValueId, keys: ValueId) -> ValueId {
        let is_first = self.make("Equal", "is_first", [queries, keys]);
        self.unsqueeze("first_pairs", is_first, &[1, 2, 3])
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
