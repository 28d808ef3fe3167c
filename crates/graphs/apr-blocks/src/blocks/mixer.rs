//! What layers of hybrids have instead of attention or beside it: blocks that keep a state of the
//! tokens so far, which does not grow with their number.

use apr_core::{Error, Result};
use apr_graph::{BodyBuilder, Meaning, ValueId};

use super::attention::Given;
use super::convolution::kernel_of;
use super::short_convolution::ShortConvolution;
use super::state_space::StateSpace;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// A block with a state.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mixer {
    /// Gated convolutions, whose last inputs are all of their state.
    ShortConvolution(ShortConvolution),
    /// Selective state spaces, a state for each channel (Mamba).
    StateSpace(StateSpace),
    /// State spaces whose channels share how fast they fade, in heads (Mamba 2).
    HeadSpace(StateHeads),
    /// Gated delta nets.
    DeltaNet(StateHeads),
}

/// Sizes of a block whose state is a matrix for each head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateHeads {
    pub(crate) heads: u64,
    /// Number of keys and queries; several heads share each.
    pub(crate) groups: u64,
    /// Width of a head's values.
    pub(crate) head_dim: u64,
    /// Width of keys and queries.
    pub(crate) state: u64,
    /// Inputs of a channel that the convolution in front sees.
    pub(crate) kernel: u64,
}

/// State of the tokens so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct States {
    /// The last inputs of a convolution, `[batch, channels, kernel - 1]`.
    pub(crate) convolution: ValueId,
    /// The state proper, if the block has one besides those inputs.
    pub(crate) state: Option<ValueId>,
}

/// The blocks of a layer, besides attention to an encoder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerBlocks {
    pub(crate) attention: bool,
    pub(crate) mixer: Option<Mixer>,
    pub(crate) mlp: bool,
}

impl LayerBlocks {
    /// Reads the blocks of a layer from option `layer_blocks`.
    ///
    /// Without it, a layer has attention, or instead what keeps a state, and a feed-forward
    /// network. `first` is a layer without that network, `mlp` a layer of it alone, and `both` a
    /// layer with attention and a state side by side.
    pub(crate) fn of(place: BlockPosition<'_>) -> Result<Self> {
        let mixer = Mixer::of(place)?;
        let attention = mixer.is_none();
        Ok(match place.text_or_none("layer_blocks")?.as_deref() {
            None => Self { attention, mixer, mlp: true },
            Some("first") => Self { attention, mixer, mlp: false },
            Some("mlp") => Self { attention: false, mixer: None, mlp: true },
            Some("both") => Self { attention: true, mixer, mlp: true },
            Some(other) => return Err(place.unknown("layer_blocks", other)),
        })
    }
}

impl Mixer {
    /// Returns the block of a layer that keeps a state, or `None` if the checkpoint has none in
    /// this layer. Option `mixer` is its kind.
    pub(crate) fn of(place: BlockPosition<'_>) -> Result<Option<Self>> {
        if let Some(sizes) = ShortConvolution::of(place)? {
            return Ok(Some(Self::ShortConvolution(sizes)));
        }
        match place.module_or_none("mixer_convolution") {
            Some(_) => Self::required(place).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the block of a layer of state spaces.
    ///
    /// # Errors
    /// E001 if the checkpoint lacks its convolution.
    pub(crate) fn required(place: BlockPosition<'_>) -> Result<Self> {
        match place.text_or_none("mixer")?.as_deref() {
            None | Some("state_space") => Ok(Self::StateSpace(StateSpace::of(place)?)),
            Some("head_space") => Ok(Self::HeadSpace(StateHeads::of(place)?)),
            Some("delta_net") => Ok(Self::DeltaNet(StateHeads::of(place)?)),
            Some(other) => Err(place.unknown("mixer", other)),
        }
    }

    /// Number of channels of the convolution, and number of inputs that it sees.
    pub(crate) fn convolution(self) -> [u64; 2] {
        match self {
            Self::ShortConvolution(sizes) => [sizes.channels, sizes.kernel],
            Self::StateSpace(sizes) => [sizes.channels, sizes.kernel],
            Self::HeadSpace(sizes) | Self::DeltaNet(sizes) => [sizes.channels(), sizes.kernel],
        }
    }

    /// Name of the state proper in inputs and outputs, as transformers.js has it, and its sizes for
    /// a text; `None` for a block without one.
    pub(crate) fn state(self) -> Option<(&'static str, Vec<u64>)> {
        match self {
            Self::ShortConvolution(_) => None,
            Self::StateSpace(sizes) => Some(("ssm", vec![sizes.channels, sizes.state])),
            Self::HeadSpace(of) => Some(("ssm", vec![of.heads, of.head_dim, of.state])),
            Self::DeltaNet(of) => Some(("recurrent", vec![of.heads, of.state, of.head_dim])),
        }
    }
}

impl StateHeads {
    /// Options `mixer_heads`, `mixer_groups` (or as many), `mixer_head_dim` and `state_size`; the
    /// kernel is the one of the checkpoint.
    fn of(place: BlockPosition<'_>) -> Result<Self> {
        let heads = place.size("mixer_heads")?;
        let groups = place.size_or_none("mixer_groups")?.unwrap_or(heads);
        let (head_dim, state) = (place.size("mixer_head_dim")?, place.size("state_size")?);
        let kernel = kernel_of(place, &place.module("mixer_convolution")?)?;
        let width = [heads.max(groups), head_dim.max(state)].iter().try_fold(2_u64, |all, size| {
            all.checked_mul(*size).filter(|width| (1..1 << 40).contains(width))
        });
        if width.is_none() || groups == 0 || heads % groups != 0 {
            return Err(Error::format(format!(
                "{heads} heads of {head_dim} can't share {groups} keys of {state} evenly"
            )));
        }
        Ok(Self { heads, groups, head_dim, state, kernel })
    }

    /// Width of all heads' values.
    pub(crate) fn width(self) -> u64 {
        self.heads * self.head_dim
    }

    /// Width of all keys, and of all queries.
    pub(crate) fn keys(self) -> u64 {
        self.groups * self.state
    }

    /// Channels of the convolution: those of queries, keys and values.
    pub(crate) fn channels(self) -> u64 {
        2 * self.keys() + self.width()
    }

    /// Number of heads that share a key.
    pub(crate) fn shared(self) -> u64 {
        self.heads / self.groups
    }
}

/// What a token does to the state of each head, a matrix, `[batch, tokens, groups, heads of a
/// group, rows, columns]` each, where a dimension can be 1.
pub(crate) struct Recurrence {
    /// The state fades by this factor.
    pub(crate) decay: ValueId,
    /// What is added is the product of this column and the row.
    pub(crate) column: ValueId,
    pub(crate) row: ValueId,
    /// What is read from the state.
    pub(crate) query: Query,
    /// For the delta rule: the share of the row's error that is corrected. The row is then what
    /// the state should give for the column.
    pub(crate) share: Option<ValueId>,
}

/// Side of the state that a query is multiplied with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Query {
    /// `query state`, a row.
    Row(ValueId),
    /// `state query`, a column.
    Column(ValueId),
}

impl Writer<'_> {
    /// Returns what the block of a layer makes of `x`, and its state.
    pub(crate) fn mixer(
        &mut self,
        place: BlockPosition<'_>,
        mixer: Mixer,
        x: ValueId,
        given: Given,
    ) -> Result<(ValueId, States)> {
        let counts = given.counts.ok_or_else(|| {
            Error::format("a layer with a state needs to know which tokens are padding")
        })?;
        match mixer {
            Mixer::ShortConvolution(sizes) => {
                let past = given.states.map(|states| states.convolution);
                let (made, convolution) = self.short_convolution(place, sizes, x, counts, past)?;
                Ok((made, States { convolution, state: None }))
            }
            Mixer::StateSpace(_) => self.state_space(place, x, counts, given.states),
            Mixer::HeadSpace(sizes) => self.head_space(place, sizes, x, counts, given.states),
            Mixer::DeltaNet(sizes) => self.delta_net(place, sizes, x, counts, given.states),
        }
    }

    /// Computes a recurrence from token to token. Returns what is read behind each token, `[batch,
    /// tokens, groups, heads of a group, ..]`, and the last state, `[batch, heads, rows, columns]`.
    ///
    /// This is a `Scan` for the reasons of Mamba's: see [`Writer::state_space`].
    pub(crate) fn recurrence(
        &mut self,
        sizes: StateHeads,
        sides: [u64; 2],
        of: &Recurrence,
        past: Option<ValueId>,
    ) -> (ValueId, ValueId) {
        let [rows, columns] = sides.map(signed);
        let (groups, shared) = (signed(sizes.groups), signed(sizes.shared()));
        let first = match past {
            Some(past) => self.reshape("past_state", past, &[0, groups, shared, rows, columns]),
            None => {
                let batch = self.length("batch", of.decay, 0);
                let rest = self.ints(&[groups, shared, rows, columns]);
                let shape = self.concat("state_shape", &[batch, rest], 0);
                let zero = self.float(0.0);
                self.make("Expand", "no_state", [zero, shape])
            }
        };
        let (Query::Row(query) | Query::Column(query)) = of.query;
        let inputs = [of.decay, of.column, of.row, query].into_iter().chain(of.share);
        let count: i64 = if of.share.is_some() { 5 } else { 4 };
        let axes: Vec<i64> = (0..count).map(|_| 1).collect();
        let body = recurrence_body(of.query, of.share.is_some());
        let node = self.op("Scan", std::iter::once(first).chain(inputs));
        let node = node.attribute("body", body.finish()).attribute("num_scan_inputs", count);
        let node = node.attribute("scan_input_axes", axes);
        let [last, made] = node.attribute("scan_output_axes", [1]).outputs("scan");
        let last = self.reshape("state", last, &[0, signed(sizes.heads), rows, columns]);
        (made, last)
    }

    /// Returns a value of each token as matrices of each head, for a [`Recurrence`].
    pub(crate) fn matrices(&mut self, name: &str, x: ValueId, shape: [u64; 4]) -> ValueId {
        let [groups, shared, rows, columns] = shape.map(signed);
        self.reshape(name, x, &[0, 0, groups, shared, rows, columns])
    }
}

/// Returns the body for one token.
fn recurrence_body(query: Query, corrects: bool) -> BodyBuilder {
    let mut body = BodyBuilder::default();
    let (state, decay) = (body.parameter("state"), body.parameter("decay"));
    let (column, row) = (body.parameter("column"), body.parameter("row"));
    let asked = body.parameter("query");
    let share = corrects.then(|| body.parameter("share"));
    let faded = body.op("Mul", [state, decay]).output("faded");
    let row = match share {
        None => row,
        Some(share) => {
            let order = [0, 1, 2, 4, 3];
            let key = body.op("Transpose", [column]).attribute("perm", order).output("key");
            let known = body.op("MatMul", [key, faded]).output("known");
            let error = body.op("Sub", [row, known]).output("error");
            body.op("Mul", [error, share]).output("correction")
        }
    };
    let fresh = body.op("Mul", [column, row]).output("fresh");
    let next = body.op("Add", [faded, fresh]).output("next_state");
    let made = match query {
        Query::Row(_) => body.op("MatMul", [asked, next]).output("made"),
        Query::Column(_) => body.op("MatMul", [next, asked]).output("made"),
    };
    for (name, value) in [("state_out", next), ("made_out", made)] {
        body.output(name, value, Meaning::Unknown);
    }
    body
}
