//! Operations that normalize.

use apr_graph::ValueId;

use super::super::call::Call;
use super::super::length::by_length;
use super::{Lowering, position};

impl Lowering<'_> {
    /// Lowers an operation of this kind; `None` for another, and for one that can't be.
    pub(super) fn normalization(&mut self, call: &Call<'_>) -> Option<ValueId> {
        match call.op {
            "batch_norm" => self.batch_norm(call),
            "instance_norm" => self.instance_norm(call),
            "layer_norm" => self.layer_norm(call),
            "l2_norm" => {
                let epsilon = self.number_or(call, "epsilon", 1e-6)?;
                let x = self.tensor(call, "x")?;
                Some(by_length(&mut self.out.main, x, epsilon, &call.name))
            }
            "local_response_norm" => {
                let size = self.int(call, "size")?;
                let (alpha, beta) =
                    (self.number_or(call, "alpha", 1e-4)?, self.number_or(call, "beta", 0.75)?);
                let k = self.number_or(call, "k", 1.0)?;
                let x = self.tensor(call, "x")?;
                // A window of even size has no middle.
                (size % 2 == 1).then_some(())?;
                let node = self.out.main.op("LRN", [x]).attribute("size", size);
                let node = node.attribute("alpha", alpha).attribute("beta", beta);
                Some(node.attribute("bias", k).output(&call.name))
            }
            _ => None,
        }
    }

    /// A parameter, or as many times a number as another has elements.
    fn or_filled(
        &mut self,
        call: &Call<'_>,
        parameter: &str,
        number: f32,
        count: Option<u64>,
    ) -> Option<ValueId> {
        match self.maybe(call, parameter)? {
            Some(own) => Some(own),
            None => self.filled(number, &[count?], &call.step(parameter)),
        }
    }

    /// A number in every place of a shape.
    fn filled(&mut self, number: f32, sizes: &[u64], name: &str) -> Option<ValueId> {
        let sizes: Option<Vec<i64>> = sizes.iter().map(|size| i64::try_from(*size).ok()).collect();
        let (number, shape) = (self.out.main.float(number), self.out.main.ints(&sizes?));
        Some(self.out.main.op("Expand", [number, shape]).output(name))
    }

    fn batch_norm(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let (mean, variance) = (self.tensor(call, "mean")?, self.tensor(call, "variance")?);
        let count = self.out.size(mean, 0);
        let gamma = self.or_filled(call, "gamma", 1.0, count)?;
        let beta = self.or_filled(call, "beta", 0.0, count)?;
        let epsilon = self.number_or(call, "epsilon", 1e-5)?;
        let node = self.out.main.op("BatchNormalization", [x, gamma, beta, mean, variance]);
        Some(node.attribute("epsilon", epsilon).output(&call.name))
    }

    fn instance_norm(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let count = self.out.size(x, 1);
        let gamma = self.or_filled(call, "gamma", 1.0, count)?;
        let beta = self.or_filled(call, "beta", 0.0, count)?;
        let epsilon = self.number_or(call, "epsilon", 1e-5)?;
        let node = self.out.main.op("InstanceNormalization", [x, gamma, beta]);
        Some(node.attribute("epsilon", epsilon).output(&call.name))
    }

    fn layer_norm(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let rank = self.out.rank(x)?;
        let axes = self.ints(call, "axes")?;
        let mut axes: Vec<usize> =
            axes.iter().map(|axis| position(*axis, rank)).collect::<Option<_>>()?;
        axes.sort_unstable();
        let epsilon = self.number_or(call, "epsilon", 1e-5)?;
        // ONNX normalizes the last dimensions.
        let first = *axes.first()?;
        axes.iter().copied().eq(first..rank).then_some(())?;
        let gamma = match self.maybe(call, "gamma")? {
            Some(gamma) => gamma,
            None => {
                let sizes: Option<Vec<u64>> =
                    axes.iter().map(|axis| self.out.size(x, *axis)).collect();
                self.filled(1.0, &sizes?, &call.step("gamma"))?
            }
        };
        let beta = self.maybe(call, "beta")?;
        let node = apr_lower::with(self.out.main.op("LayerNormalization", [x, gamma]), beta);
        let node = node.attribute("axis", i64::try_from(first).ok()?);
        Some(node.attribute("epsilon", epsilon).output(&call.name))
    }
}
