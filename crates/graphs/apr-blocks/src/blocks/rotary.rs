//! Rotary positions: pairs of a head's dimensions, turned by an angle that grows with the position
//! (Su et al. 2021, <https://arxiv.org/abs/2104.09864>).

use apr_core::{Error, Result};
use apr_graph::{Constant, ElementType, ValueId};

use super::frequencies::{Frequencies, Inverse, Rotation};
use super::places::{GridOrder, Positions};
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Pairing of the rotated dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RotaryPairs {
    /// One of the first half with one of the second half (LLaMA in Hugging Face's order, GPT-NeoX).
    Halves,
    /// Neighbours (GPT-J, Cohere, GLM, DeepSeek-V2).
    Pairs,
    /// Neighbours, which end up in different halves (DeepSeek-V3).
    PairsToHalves,
    /// As `Halves`, in each half by itself ([`GridOrder::Apart`]).
    HalvesOfHalves,
}

/// Rotation of the queries and keys of a layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rotary {
    layout: RotaryPairs,
    /// Number of dimensions that are rotated; the other dimensions of a head are unchanged.
    dim: u64,
    frequencies: Frequencies,
    /// `true` if pairs turn clockwise.
    is_backwards: bool,
}

/// Cosines and sines, `[batch, 1, sequence, dim]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) cos: ValueId,
    pub(crate) sin: ValueId,
}

impl Rotary {
    /// Options `rotary` (whether positions are rotary in this layer), `rotary_layout` (`halves`,
    /// `pairs`, `pairs_to_halves`), `rotary_dim` or `rotary_share` of the head's dimensions,
    /// `rotary_backwards` (pairs turn clockwise, nanochat), and those of [`Rotation`].
    pub(crate) fn of(place: BlockPosition<'_>, head_dim: u64) -> Result<Option<Self>> {
        if !place.truth("rotary")? {
            return Ok(None);
        }

        let grid = GridOrder::of(place)?;
        let layout = match place.text_or_none("rotary_layout")?.as_deref() {
            None if grid == Some(GridOrder::Apart) => RotaryPairs::HalvesOfHalves,
            None | Some("halves") => RotaryPairs::Halves,
            Some("pairs") => RotaryPairs::Pairs,
            Some("pairs_to_halves") => RotaryPairs::PairsToHalves,
            Some(other) => return Err(place.unknown("rotary_layout", other)),
        };

        let rotation = Rotation::of(place)?;
        // Classes of other families turn whole heads, whatever the configuration says.
        let share = match place.states("rotary_share") {
            true => rotation
                .partial()
                .map_or_else(|| place.number_or_none("rotary_share"), |share| Ok(Some(share)))?,
            false => None,
        };

        // The fraction is cut off, as transformers does it.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a head's dimensions"
        )]
        let part = |share: f64| (head_dim as f64 * share) as u64;
        let dim = match place.size_or_none("rotary_dim")? {
            Some(dim) => dim,
            None => share.map_or(head_dim, part),
        };
        if dim > head_dim {
            let message =
                format!("rotary positions turn {dim} dimensions of heads that have {head_dim}");
            return Err(Error::format(message));
        }
        let mut frequencies = match grid {
            None => rotation.frequencies(dim)?,
            Some(order) => rotation.grid_frequencies(dim, order)?,
        };
        if let Some(factor) = place.number_or_none("rotary_scale")? {
            frequencies.factor = factor;
        }
        let is_backwards = place.truth("rotary_backwards")?;
        Ok(Some(Self { layout, dim, frequencies, is_backwards }))
    }

    /// Returns the number of angles of a position.
    pub(crate) fn angles(&self) -> u64 {
        self.dim / 2
    }
}

impl Writer<'_> {
    /// Cosines and sines of all positions.
    ///
    /// # Errors
    /// E003 for positions with several numbers, if angles depend on the length of the text.
    pub(crate) fn turn(
        &mut self,
        place: BlockPosition<'_>,
        name: &str,
        rotary: &Rotary,
        positions: Positions,
    ) -> Result<Turn> {
        self.scope(name, |w| {
            let angles = w.angles(place, rotary, positions)?;
            let half = signed(rotary.dim / 2);
            let both = match rotary.layout {
                RotaryPairs::Halves | RotaryPairs::PairsToHalves => {
                    w.concat("both", &[angles, angles], -1)
                }
                RotaryPairs::HalvesOfHalves => {
                    let quarter = rotary.dim / 4;
                    let [first, second] = w.split("axes", angles, -1, [quarter, quarter]);
                    w.concat("both", &[first, first, second, second], -1)
                }
                RotaryPairs::Pairs => {
                    let column = w.reshape("angle_column", angles, &[0, 0, 0, half, 1]);
                    let twice = w.concat("twice", &[column, column], -1);
                    w.reshape("both", twice, &[0, 0, 0, 2 * half])
                }
            };
            let mut wave = |op: &str, name: &str| {
                let wave = w.make(op, name, [both]);
                let factor = rotary.frequencies.factor;
                // One times a number is that number.
                if factor == 1.0 { wave } else { w.scaled(&format!("{name}_scaled"), wave, factor) }
            };
            let (cos, mut sin) = (wave("Cos", "cos"), wave("Sin", "sin"));
            if rotary.is_backwards {
                sin = w.make("Neg", "sin_backwards", [sin]);
            }
            Ok(Turn { cos, sin })
        })
    }

    /// Returns the angles of all positions, `[batch, 1, sequence, dim / 2]`.
    fn angles(
        &mut self,
        place: BlockPosition<'_>,
        rotary: &Rotary,
        positions: Positions,
    ) -> Result<ValueId> {
        let inverse = &rotary.frequencies.inverse;
        match (positions, inverse) {
            (Positions::One(ids), _) => {
                let positions = self.cast("positions", ids, ElementType::F32);
                let inverse = self.inverse(inverse, positions);
                let column = self.unsqueeze("column", positions, &[1, 3]);
                Ok(self.make("Mul", "angles", [column, inverse]))
            }
            (Positions::Several(ids), Inverse::Fixed(values)) => {
                let inverse = self.body().constant(Constant::floats(values));
                self.angles_of_axes(place, rotary, ids, inverse)
            }
            (Positions::Several(_), _) => Err(Error::version(
                "rotary positions that depend on the length of a text can't have several numbers",
            )),
        }
    }

    /// Returns the angles per position, `[dim / 2]`, or `[batch, 1, 1, dim / 2]` if they depend on
    /// the text.
    fn inverse(&mut self, inverse: &Inverse, positions: ValueId) -> ValueId {
        match inverse {
            Inverse::Fixed(values) => self.body().constant(Constant::floats(values)),
            Inverse::ByLength { short, long, limit } => {
                let (short, long) = (Constant::floats(short), Constant::floats(long));
                let (short, long) = (self.body().constant(short), self.body().constant(long));
                let length = self.text_length(positions);
                let limit = self.float(*limit as f64);
                let is_long = self.make("Greater", "is_long", [length, limit]);
                self.make("Where", "inverse", [is_long, long, short])
            }
            Inverse::Growing { theta, factor, trained, dim } => {
                let trained = *trained as f64;
                let length = self.text_length(positions);
                let least = self.float(trained);
                let length = self.make("Max", "counted_length", [length, least]);
                let stretched = self.scaled("stretched", length, factor / trained);
                let less = self.float(factor - 1.0);
                let growth = self.make("Sub", "growth", [stretched, less]);
                let dims = *dim as f64;
                // (theta growth^(dim / (dim - 2)))^(-2i / dim), with the powers of theta computed
                // here.
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "graphs compute in single precision"
                )]
                let powers = |of: &dyn Fn(f64) -> f64| -> Vec<f32> {
                    (0..dim / 2).map(|at| of((2 * at) as f64) as f32).collect()
                };
                let of_theta = Constant::floats(&powers(&|even| theta.powf(-even / dims)));
                let exponents = Constant::floats(&powers(&|even| -even / (dims - 2.0)));
                let (of_theta, exponents) =
                    (self.body().constant(of_theta), self.body().constant(exponents));
                let of_growth = self.make("Pow", "powers", [growth, exponents]);
                self.make("Mul", "inverse", [of_growth, of_theta])
            }
        }
    }

    /// Returns the last position of each text plus 1, `[batch, 1, 1, 1]`.
    ///
    /// The rotation of a text thus does not depend on the other texts of the batch.
    fn text_length(&mut self, positions: ValueId) -> ValueId {
        let last = self.largest_of_rows("last_position", positions);
        let one = self.float(1.0);
        let length = self.make("Add", "length", [last, one]);
        self.unsqueeze("length_of_text", length, &[2, 3])
    }

    /// Turns heads, `[batch, heads, sequence, head_dim]`.
    pub(crate) fn rotated(
        &mut self,
        name: &str,
        rotary: &Rotary,
        x: ValueId,
        turn: Turn,
        head_dim: u64,
    ) -> ValueId {
        self.scope(name, |w| {
            if rotary.dim == head_dim {
                return w.rotated_whole(rotary, x, turn);
            }
            let [turned, kept] = w.split("parts", x, -1, [rotary.dim, head_dim - rotary.dim]);
            let turned = w.rotated_whole(rotary, turned, turn);
            w.concat("joined", &[turned, kept], -1)
        })
    }

    /// Returns `x cos + turned(x) sin`, where `turned` maps a pair (a, b) to (-b, a).
    fn rotated_whole(&mut self, rotary: &Rotary, x: ValueId, turn: Turn) -> ValueId {
        let half = rotary.dim / 2;
        let x = if rotary.layout == RotaryPairs::PairsToHalves {
            self.apart(x, signed(half))
        } else {
            x
        };
        let rotated_half = match rotary.layout {
            RotaryPairs::Halves | RotaryPairs::PairsToHalves => {
                let [first, second] = self.split("halves", x, -1, [half, half]);
                let negative = self.make("Neg", "negative", [second]);
                self.concat("rotated_half", &[negative, first], -1)
            }
            RotaryPairs::HalvesOfHalves => {
                let parts = self.split("quarters", x, -1, [half / 2; 4]);
                let [first, second, third, fourth] = parts;
                let second = self.make("Neg", "negative", [second]);
                let fourth = self.make("Neg", "other_negative", [fourth]);
                self.concat("rotated_half", &[second, first, fourth, third], -1)
            }
            RotaryPairs::Pairs => {
                let half = signed(half);
                let pairs = self.reshape("pairs", x, &[0, 0, 0, half, 2]);
                let [first, second] = self.split("sides", pairs, -1, [1, 1]);
                let negative = self.make("Neg", "negative", [second]);
                let swapped = self.concat("swapped", &[negative, first], -1);
                self.reshape("rotated_half", swapped, &[0, 0, 0, 2 * half])
            }
        };

        let x_cos = self.make("Mul", "x_cos", [x, turn.cos]);
        let half_sin = self.make("Mul", "half_sin", [rotated_half, turn.sin]);
        self.make("Add", "rotated", [x_cos, half_sin])
    }

    /// The first ones of all pairs, then the second ones.
    fn apart(&mut self, x: ValueId, half: i64) -> ValueId {
        let pairs = self.reshape("neighbours", x, &[0, 0, 0, half, 2]);
        let sides = self.transpose("by_side", pairs, [0, 1, 2, 4, 3]);
        self.reshape("apart", sides, &[0, 0, 0, 2 * half])
    }
}
