//! What stands for the values of a program, and what parameters say.

use apr_graph::{
    Constant, ConstantData, Dim, ElementType, MAX_RANK, Value, ValueId, ValueOrigin, WeightRef,
};
use apr_lower::{floats, ints};

use super::super::call::{Argument, Call, given};
use super::super::element::{computed, computed_constant};
use super::Lowering;

/// Source of a value.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Made(ValueId),
    Weight { weight: WeightRef, element: ElementType, dims: Vec<u64> },
    Constant(Constant),
}

impl Source {
    /// A value that no operation makes.
    pub(super) fn fixed(value: &Value) -> Option<Self> {
        match &value.origin {
            ValueOrigin::Weight(weight) => {
                let dims: Option<Vec<u64>> = value.shape()?.iter().map(Dim::size).collect();
                Some(Self::Weight {
                    weight: weight.clone(),
                    element: value.element()?,
                    dims: dims?,
                })
            }
            ValueOrigin::Constant(constant) => Some(Self::Constant(constant.clone())),
            _ => None,
        }
    }
}

impl Lowering<'_> {
    /// Returns a value in the element type of the computation.
    pub(super) fn value(&mut self, id: ValueId) -> Option<ValueId> {
        let source = self.values[id.0 as usize].clone()?;
        let made = match &source {
            Source::Made(made) => *made,
            Source::Weight { weight, element, dims } => {
                let own = self.out.main.weight(&weight.tensor, *element, dims.iter().copied());
                weight.views.is_empty().then_some(())?;
                self.out.cast(own, computed(*element), &format!("{}/computed", weight.tensor))
            }
            Source::Constant(constant) => self.constant(constant)?,
        };
        // A weight is converted once.
        self.values[id.0 as usize] = Some(match source {
            Source::Weight { element, .. } if computed(element) != element => Source::Made(made),
            source => source,
        });
        Some(made)
    }

    fn constant(&mut self, constant: &Constant) -> Option<ValueId> {
        Some(self.out.main.constant(computed_constant(constant)?))
    }

    fn argument(&mut self, argument: &Argument<'_>) -> Option<ValueId> {
        match argument {
            Argument::Value(id) => self.value(*id),
            Argument::Given(value) => self.constant(&given(value)?),
        }
    }

    /// Returns the argument of a parameter as a value.
    pub(super) fn tensor(&mut self, call: &Call<'_>, parameter: &str) -> Option<ValueId> {
        let argument = call.one(parameter)?;
        self.argument(&argument)
    }

    /// Returns an optional parameter. `None` only if it is present and cannot be written.
    pub(super) fn maybe(&mut self, call: &Call<'_>, parameter: &str) -> Option<Option<ValueId>> {
        match call.has(parameter) {
            true => self.tensor(call, parameter).map(Some),
            false => Some(None),
        }
    }

    /// The values of a list.
    pub(super) fn tensors(&mut self, call: &Call<'_>, parameter: &str) -> Option<Vec<ValueId>> {
        let arguments = call.all(parameter)?.to_vec();
        arguments.iter().map(|argument| self.argument(argument)).collect()
    }

    /// Returns the value of a parameter, if it is known before the model runs.
    pub(super) fn known(&mut self, call: &Call<'_>, parameter: &str) -> Option<Constant> {
        match call.one(parameter)? {
            Argument::Given(value) => given(value),
            Argument::Value(id) => match self.values[id.0 as usize].clone()? {
                Source::Constant(constant) => Some(constant),
                Source::Weight { weight, .. } => {
                    weight.views.is_empty().then_some(())?;
                    self.weights.constant(&weight.tensor)
                }
                Source::Made(made) => self.out.ints(made).map(|ints| Constant::ints(&ints)),
            },
        }
    }

    /// Returns the integers of a parameter: at most a pair for each dimension.
    ///
    /// A longer list is not part of a shape, and every call that refers to it would have its own
    /// copy.
    pub(super) fn ints(&mut self, call: &Call<'_>, parameter: &str) -> Option<Vec<i64>> {
        ints(&self.known(call, parameter)?).filter(|ints| ints.len() <= 2 * MAX_RANK)
    }

    /// Returns the integers of a parameter, or `default` if the parameter is missing.
    pub(super) fn ints_or(
        &mut self,
        call: &Call<'_>,
        parameter: &str,
        default: &[i64],
    ) -> Option<Vec<i64>> {
        if call.has(parameter) { self.ints(call, parameter) } else { Some(default.to_vec()) }
    }

    pub(super) fn int(&mut self, call: &Call<'_>, parameter: &str) -> Option<i64> {
        match self.ints(call, parameter)?.as_slice() {
            [int] => Some(*int),
            _ => None,
        }
    }

    pub(super) fn int_or(&mut self, call: &Call<'_>, parameter: &str, default: i64) -> Option<i64> {
        if call.has(parameter) { self.int(call, parameter) } else { Some(default) }
    }

    pub(super) fn flag(&mut self, call: &Call<'_>, parameter: &str, default: bool) -> Option<bool> {
        self.int_or(call, parameter, default.into()).map(|int| int != 0)
    }

    /// One number, with a fraction or without.
    pub(super) fn number(&mut self, call: &Call<'_>, parameter: &str) -> Option<f32> {
        let constant = self.known(call, parameter)?;
        match floats(&constant).as_deref() {
            Some([float]) => Some(*float),
            Some(_) => None,
            None => match ints(&constant)?.as_slice() {
                [int] => Some(*int as f32),
                _ => None,
            },
        }
    }

    pub(super) fn number_or(
        &mut self,
        call: &Call<'_>,
        parameter: &str,
        default: f32,
    ) -> Option<f32> {
        if call.has(parameter) { self.number(call, parameter) } else { Some(default) }
    }

    pub(super) fn text(&mut self, call: &Call<'_>, parameter: &str) -> Option<String> {
        match self.known(call, parameter)?.data {
            ConstantData::Texts(texts) => match texts.as_slice() {
                [text] => String::from_utf8(text.clone()).ok(),
                _ => None,
            },
            ConstantData::Bytes(_) => None,
        }
    }

    pub(super) fn text_or(
        &mut self,
        call: &Call<'_>,
        parameter: &str,
        default: &str,
    ) -> Option<String> {
        if call.has(parameter) { self.text(call, parameter) } else { Some(default.to_owned()) }
    }

    /// A tensor of the checkpoint that a parameter is bound to, to be looked at in parts.
    pub(super) fn weight(
        &self,
        call: &Call<'_>,
        parameter: &str,
    ) -> Option<(WeightRef, ElementType, Vec<u64>)> {
        let Argument::Value(id) = call.one(parameter)? else { return None };
        match self.values[id.0 as usize].clone()? {
            Source::Weight { weight, element, dims } => Some((weight, element, dims)),
            _ => None,
        }
    }

    /// Returns integers of 64 bits, the type of ONNX's shapes and indices.
    pub(super) fn longs(&mut self, call: &Call<'_>, parameter: &str) -> Option<ValueId> {
        if let Some(known) = self.known(call, parameter)
            && known.shape.len() == 1
        {
            let known = ints(&known)?;
            (known.len() <= 2 * MAX_RANK).then_some(())?;
            return Some(self.out.main.ints(&known));
        }
        let x = self.tensor(call, parameter)?;
        Some(self.out.cast(x, ElementType::I64, &call.step(&format!("{parameter}/long"))))
    }
}
