//! What stands for the values of a model, and what its constants say.

use apr_graph::{
    Constant, Dim, ElementType, MAX_RANK, Value, ValueId, ValueOrigin, View, WeightRef,
};
use apr_lower::{floats, ints};

use super::call::Call;
use super::element::{computed, is_new};
use super::{Lowering, position};

/// Most integers of a constant that is written into the graph itself.
const MOST_INTS: u64 = 2 * MAX_RANK as u64;

/// Source of a value.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Made(ValueId),
    /// A constant, which is converted where it is read.
    Weight(Stored),
}

/// A tensor of the checkpoint, looked at in another way.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    weight: WeightRef,
    /// The elements that are stored.
    element: ElementType,
    /// The elements that the graph reads.
    read: ElementType,
    dims: Vec<u64>,
}

impl Source {
    /// A value that no layer makes.
    pub(super) fn fixed(value: &Value) -> Option<Self> {
        let ValueOrigin::Weight(weight) = &value.origin else { return None };
        let dims: Option<Vec<u64>> = value.shape()?.iter().map(Dim::size).collect();
        let element = value.element()?;
        let read = computed(element);
        Some(Self::Weight(Stored { weight: weight.clone(), element, read, dims: dims? }))
    }
}

impl Stored {
    fn is_small_list(&self) -> bool {
        let count = self.dims.iter().try_fold(1_u64, |all, size| all.checked_mul(*size));
        self.weight.views.is_empty()
            && count.is_some_and(|count| count <= MOST_INTS)
            && self.dims.len() < 2
            && matches!(self.element, ElementType::I32 | ElementType::I64)
            && self.read == self.element
    }

    fn viewed(mut self, view: View, dims: Vec<u64>) -> Self {
        self.weight.views.push(view);
        Self { dims, ..self }
    }
}

impl Lowering<'_> {
    /// Returns a value in the element type of the computation.
    pub(super) fn value(&mut self, id: ValueId) -> Option<ValueId> {
        let stored = match self.values[id.0 as usize].clone()? {
            Source::Made(made) => return Some(made),
            Source::Weight(stored) => stored,
        };
        // Shapes that are computed with become known so.
        let constant = stored.is_small_list().then(|| self.weights.constant(&stored.weight.tensor));
        if let Some(Some(constant)) = constant
            && constant.element == stored.element
        {
            return Some(self.out.main.constant(constant));
        }
        let made = self.stored(&stored);
        self.values[id.0 as usize] = Some(Source::Made(made));
        Some(made)
    }

    /// Writes a tensor of the checkpoint.
    fn stored(&mut self, stored: &Stored) -> ValueId {
        let Stored { weight, element, read, dims } = stored;
        let own = if is_new(*element) { ElementType::F32 } else { *element };
        let views = weight.views.clone();
        let own = self.out.main.viewed(&weight.tensor, views, own, dims.iter().copied());
        self.out.cast(own, *read, &format!("{}/computed", weight.tensor))
    }

    /// What a layer passes on that only looks at a constant in another way: its elements as others,
    /// its dimensions in another order, or other dimensions.
    pub(super) fn passed(&mut self, call: &Call<'_>) -> Option<Source> {
        if !["Convert", "Reshape", "Transpose"].contains(&call.op) {
            return None;
        }
        let Source::Weight(stored) = self.source(call, 0)? else { return None };
        let output = call.outputs.first().copied().flatten()?;
        Some(Source::Weight(match call.op {
            "Convert" => {
                let to = computed(super::element::named(call.text_or("destination_type", "")?)?);
                // What does not fit would be another number.
                let is_wider = to == ElementType::F32
                    || to == ElementType::I64 && stored.read == ElementType::I32;
                (is_wider || to == stored.read).then_some(())?;
                Stored { read: to, ..stored }
            }
            "Reshape" => {
                call.ignore("special_zero");
                let dims: Option<Vec<u64>> =
                    self.from.value(output).shape()?.iter().map(Dim::size).collect();
                let dims = dims?;
                let count = |dims: &[u64]| dims.iter().product::<u64>();
                (count(&dims) == count(&stored.dims) && !dims.is_empty()).then_some(())?;
                stored.viewed(View::Reshaped(dims.clone()), dims)
            }
            _ => {
                let order = self.known_ints(call, 1)?;
                let rank = stored.dims.len();
                let order: Option<Vec<usize>> =
                    order.iter().map(|axis| position(*axis, rank)).collect();
                self.transposed(stored, &order?)?
            }
        }))
    }

    fn transposed(&self, stored: Stored, order: &[usize]) -> Option<Stored> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        sorted.iter().copied().eq(0..stored.dims.len()).then_some(())?;
        let dims = order.iter().map(|axis| stored.dims[*axis]).collect();
        Some(stored.viewed(View::Transposed(order.to_vec()), dims))
    }

    fn source(&self, call: &Call<'_>, input: usize) -> Option<Source> {
        let id = call.inputs.get(input).copied().flatten()?;
        self.values[id.0 as usize].clone()
    }

    /// Returns an input of a layer.
    pub(super) fn input(&mut self, call: &Call<'_>, input: usize) -> Option<ValueId> {
        self.value(call.inputs.get(input).copied().flatten()?)
    }

    /// Returns an input, or `None` within for one that is missing.
    pub(super) fn maybe(&mut self, call: &Call<'_>, input: usize) -> Option<Option<ValueId>> {
        if call.has_input(input) { self.input(call, input).map(Some) } else { Some(None) }
    }

    /// Returns all inputs.
    pub(super) fn inputs(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        (0..call.inputs.len()).map(|input| self.input(call, input)).collect()
    }

    /// Returns an input with its last two dimensions exchanged: a constant is looked at so.
    pub(super) fn exchanged(&mut self, call: &Call<'_>, input: usize) -> Option<ValueId> {
        if let Some(Source::Weight(stored)) = self.source(call, input) {
            let rank = stored.dims.len();
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(rank.checked_sub(2)?, rank - 1);
            let stored = self.transposed(stored, &order)?;
            return Some(self.stored(&stored));
        }
        let x = self.input(call, input)?;
        let rank = self.out.rank(x)?;
        let mut order: Vec<i64> = (0..i64::try_from(rank).ok()?).collect();
        order.swap(rank.checked_sub(2)?, rank - 1);
        let name = call.step(&format!("transposed{input}"));
        Some(self.out.main.op("Transpose", [x]).attribute("perm", order).output(&name))
    }

    /// Returns a constant with other dimensions, which have as many elements.
    pub(super) fn reshaped(
        &mut self,
        call: &Call<'_>,
        input: usize,
        dims: &[u64],
    ) -> Option<ValueId> {
        if let Some(Source::Weight(stored)) = self.source(call, input) {
            let count = |dims: &[u64]| dims.iter().product::<u64>();
            (count(dims) == count(&stored.dims)).then_some(())?;
            let stored = stored.viewed(View::Reshaped(dims.to_vec()), dims.to_vec());
            return Some(self.stored(&stored));
        }
        let x = self.input(call, input)?;
        let sizes: Option<Vec<i64>> = dims.iter().map(|size| i64::try_from(*size).ok()).collect();
        let shape = self.out.main.ints(&sizes?);
        let name = call.step(&format!("reshaped{input}"));
        Some(self.out.main.op("Reshape", [x, shape]).output(&name))
    }

    /// Returns the value of an input, if it is known before the model runs.
    fn known(&mut self, call: &Call<'_>, input: usize) -> Option<Constant> {
        match self.source(call, input)? {
            Source::Weight(stored) => {
                stored.weight.views.is_empty().then_some(())?;
                self.weights.constant(&stored.weight.tensor)
            }
            Source::Made(made) => self.out.ints(made).map(|ints| Constant::ints(&ints)),
        }
    }

    /// Returns the integers of an input: at most a pair for each dimension.
    ///
    /// A longer list is not part of a shape, and every layer that refers to it would have its own
    /// copy.
    pub(super) fn known_ints(&mut self, call: &Call<'_>, input: usize) -> Option<Vec<i64>> {
        ints(&self.known(call, input)?).filter(|ints| ints.len() <= 2 * MAX_RANK)
    }

    pub(super) fn known_int(&mut self, call: &Call<'_>, input: usize) -> Option<i64> {
        match self.known_ints(call, input)?.as_slice() {
            [int] => Some(*int),
            _ => None,
        }
    }

    /// Returns the one number of an input, if it is known before the model runs.
    pub(super) fn known_number(&mut self, call: &Call<'_>, input: usize) -> Option<f32> {
        match floats(&self.known(call, input)?)?.as_slice() {
            [float] => Some(*float),
            _ => None,
        }
    }

    /// Returns a list of 64-bit integers, the type of ONNX's shapes and indices.
    pub(super) fn longs(&mut self, call: &Call<'_>, input: usize) -> Option<ValueId> {
        if let Some(known) = self.known_ints(call, input) {
            return Some(self.out.main.ints(&known));
        }
        let x = self.input(call, input)?;
        let x = self.out.cast(x, ElementType::I64, &call.step(&format!("long{input}")));
        match self.out.rank(x) {
            Some(0) => {
                let shape = self.out.main.ints(&[1]);
                let name = call.step(&format!("list{input}"));
                Some(self.out.main.op("Reshape", [x, shape]).output(&name))
            }
            _ => Some(x),
        }
    }
}
