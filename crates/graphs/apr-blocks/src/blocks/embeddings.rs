//! Vectors of tokens, of their positions and of their types.

use apr_core::Result;
use apr_graph::{ElementType, ValueId};

use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Vectors that take the place of a token's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageRows {
    /// The token.
    pub(crate) token: i64,
    /// The vectors, `[rows, hidden]`; in a row behind each, those that are added behind layers.
    pub(crate) features: ValueId,
    /// Number of the first layers behind which vectors are added.
    pub(crate) layers: u64,
}

impl Writer<'_> {
    /// A row of the table `tokens` for each token, times option `embedding_scale`, through the
    /// linear layer `token_projection` where the checkpoint has it.
    pub(crate) fn token_vectors(
        &mut self,
        place: BlockPosition<'_>,
        tokens: ValueId,
    ) -> Result<ValueId> {
        let table = self.tensor(&place.module("tokens")?)?;
        let x = self.make("Gather", "tokens", [table, tokens]);
        let scale = place.number_or_none("embedding_scale")?.filter(|scale| *scale != 1.0);
        let x = scale.map_or(x, |scale| self.scaled("scaled", x, scale));
        self.projected("token_projection", x, place.module_or_none("token_projection"))
    }

    /// Returns the vectors of the tokens, with rows of `features` for image tokens.
    ///
    /// `features` is `[rows, hidden]`, in the order of the tokens: the first image token gets the
    /// first row. An image token for which no row is left gets the vector of the token itself.
    ///
    /// Returns the vectors to add behind layers, too, which are 0 for words (DeepStack: Meng et al.
    /// 2024, <https://arxiv.org/abs/2406.04334>).
    pub(crate) fn token_or_image_vectors(
        &mut self,
        place: BlockPosition<'_>,
        tokens: ValueId,
        images: ImageRows,
    ) -> Result<(ValueId, Vec<ValueId>)> {
        let hidden = signed(place.size("hidden")?);
        let (flat, zero) = (self.ints(&[-1]), self.int(0));
        let number = self.scope("image_rows", |w| {
            let token = w.int(images.token);
            let is_image = w.make("Equal", "is_image", [tokens, token]);
            let counts = w.cast("counts", is_image, ElementType::I64);
            let counts = w.make("Reshape", "in_a_row", [counts, flat]);
            let so_far = w.make("CumSum", "so_far", [counts, zero]);
            let number = w.make("Mul", "number", [so_far, counts]);
            let rows = w.length("rows", images.features, 0);
            let is_there = w.make("LessOrEqual", "is_there", [number, rows]);
            let number = w.make("Where", "row", [is_there, number, zero]);
            let shape = w.make("Shape", "shape", [tokens]);
            w.make("Reshape", "row_of_token", [number, shape])
        });

        // The token may be none of the table, and row 0 is one that nothing has.
        let is_text = self.make("Equal", "is_text", [number, zero]);
        let words = self.make("Where", "words", [is_text, tokens, zero]);
        let text = self.token_vectors(place, words)?;
        let first = self.ints(&[1, hidden]);
        let nothing = self.float(0.0);
        let nothing = self.make("Expand", "no_row", [nothing, first]);
        let more = (0..images.layers).map(|layer| {
            self.scope(&format!("behind.{layer}"), |w| {
                let start = signed(layer + 1).saturating_mul(hidden);
                let end = start.saturating_add(hidden);
                let own = w.slice("own", images.features, 1, start, end);
                let rows = w.concat("rows_behind_none", &[nothing, own], 0);
                w.make("Gather", "image_vectors", [rows, number])
            })
        });
        let more: Vec<ValueId> = more.collect();
        let features = match more.is_empty() {
            true => images.features,
            false => self.slice("features", images.features, 1, 0, hidden),
        };
        let rows = self.concat("rows_behind_none", &[nothing, features], 0);
        let rows = self.make("Gather", "image_vectors", [rows, number]);
        let is_text = self.unsqueeze("is_text_column", is_text, &[-1]);
        Ok((self.make("Where", "vectors", [is_text, text, rows]), more))
    }

    /// Returns the linear layer of a module if the checkpoint has it, or else `x` itself.
    pub(crate) fn projected(
        &mut self,
        name: &str,
        x: ValueId,
        module: Option<String>,
    ) -> Result<ValueId> {
        match module {
            Some(module) => self.outer_linear(name, x, &module),
            None => Ok(x),
        }
    }

    /// Returns `true` if position embeddings are added to the token embeddings.
    ///
    /// This is the case if option `position_table` is `sinusoids`, or if the checkpoint has the
    /// table `positions` and option `learned_positions` is not false (DeBERTa v3 has a table that
    /// the model does not use).
    pub(crate) fn has_positions(place: BlockPosition<'_>) -> Result<bool> {
        let is_learned = place.truth_or("learned_positions", true)?;
        Ok(is_learned && place.tensor_or_none("positions").is_some()
            || place.text_or_none("position_table")?.is_some())
    }

    /// Adds a row of the table `positions` for each position, if the family has position
    /// embeddings.
    ///
    /// Option `position_offset`: number of rows before the row of the first position. If the
    /// checkpoint has no table, option `position_table` can select a computed one: `sinusoids`.
    pub(crate) fn with_positions(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        positions: ValueId,
    ) -> Result<ValueId> {
        if !Self::has_positions(place)? {
            return Ok(x);
        }

        let table = match place.tensor_or_none("positions") {
            Some(table) => self.tensor(&table)?,
            None => match place.text_or_none("position_table")?.as_deref() {
                Some("sinusoids") => self.sinusoids(place)?,
                Some("spread_sinusoids") => self.spread_sinusoids(place)?,
                Some(other) => return Err(place.unknown("position_table", other)),
                None => return Ok(x),
            },
        };
        let offset = place.size_or_none("position_offset")?.filter(|offset| *offset > 0);
        let positions = match offset {
            Some(offset) => {
                let offset = self.int(signed(offset));
                self.make("Add", "position_rows", [positions, offset])
            }
            None => positions,
        };
        let positions = self.make("Gather", "positions", [table, positions]);
        Ok(self.make("Add", "with_positions", [x, positions]))
    }

    /// Adds a row of the table `token_types`: the row of each token's type, or the first if the
    /// caller passes no types.
    pub(crate) fn with_token_types(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        types: Option<ValueId>,
    ) -> Result<ValueId> {
        let Some(table) = place.tensor_or_none("token_types") else { return Ok(x) };
        let table = self.tensor(&table)?;
        let types = types.unwrap_or_else(|| self.int(0));
        let types = self.make("Gather", "token_types", [table, types]);
        Ok(self.make("Add", "with_token_types", [x, types]))
    }

    /// Positions that start behind option `padding_id`, which padding has itself,
    /// `[batch, sequence]` (RoBERTa). `past` tokens were read before, none of them padding.
    pub(crate) fn positions_behind_padding(
        &mut self,
        place: BlockPosition<'_>,
        tokens: ValueId,
        past: Option<ValueId>,
    ) -> Result<ValueId> {
        let padding = self.int(signed(place.size("padding_id")?));
        let is_padding = self.make("Equal", "is_padding", [tokens, padding]);
        let counts = self.make("Not", "counts", [is_padding]);
        let counts = self.cast("counts_as_number", counts, ElementType::I64);
        let axis = self.int(1);
        let so_far = self.make("CumSum", "so_far", [counts, axis]);
        let so_far = match past {
            Some(past) => self.make("Add", "so_far_with_past", [so_far, past]),
            None => so_far,
        };
        let number = self.make("Mul", "number", [so_far, counts]);
        Ok(self.make("Add", "position_numbers", [number, padding]))
    }

    /// Positions of the tokens in a row, from 0 on or after `past` ones: `[1, sequence]`.
    pub(crate) fn positions_in_a_row(&mut self, count: ValueId, past: Option<ValueId>) -> ValueId {
        // Range takes numbers without dimensions.
        let scalar = self.ints(&[]);
        let (zero, one) = (self.int(0), self.int(1));
        let count = self.make("Reshape", "token_count", [count, scalar]);
        let (start, end) = match past {
            None => (zero, count),
            Some(past) => {
                let past = self.make("Reshape", "past_count", [past, scalar]);
                (past, self.make("Add", "all_count", [past, count]))
            }
        };
        let row = self.make("Range", "row", [start, end, one]);
        self.unsqueeze("position_numbers", row, &[0])
    }
}
