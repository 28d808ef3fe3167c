//! Layers that bring values to one scale, and those over a dimension.

use apr_graph::ValueId;

use super::Lowering;
use super::call::Call;

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn normalization(&mut self, call: &Call<'_>) -> Option<ValueId> {
        match call.op {
            "SoftMax" | "Softmax" | "LogSoftmax" => {
                let x = self.input(call, 0)?;
                let axis = call.int_or("axis", 1)?;
                let op = if call.op == "LogSoftmax" { "LogSoftmax" } else { "Softmax" };
                Some(self.out.main.op(op, [x]).attribute("axis", axis).output(&call.name))
            }
            "MVN" => self.mvn(call),
            "NormalizeL2" => self.normalize(call),
            "BatchNormInference" => self.batch(call),
            "GroupNormalization" => self.groups(call),
            "RMS" => self.rms(call),
            "LRN" => self.local(call),
            _ => None,
        }
    }

    /// A number added to variances.
    fn with_epsilon(&mut self, call: &Call<'_>, x: ValueId, epsilon: f32) -> ValueId {
        let epsilon = self.out.main.float(epsilon);
        self.step(call, "above", "Add", &[x, epsilon])
    }

    fn mean(&mut self, call: &Call<'_>, step: &str, x: ValueId, axes: &[i64]) -> ValueId {
        let axes = self.out.main.ints(axes);
        let node = self.out.main.op("ReduceMean", [x, axes]).attribute("keepdims", 1);
        node.output(&call.step(step))
    }

    fn mvn(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let axes = self.known_ints(call, 1)?;
        let epsilon = call.number("eps")?;
        let mode = call.text_or("eps_mode", "inside_sqrt")?;
        let has_variance = call.flag_or("normalize_variance", true)?;
        let x = self.input(call, 0)?;
        let mean = self.mean(call, "mean", x, &axes);
        if !has_variance {
            return Some(self.op(call, "Sub", &[x, mean]));
        }
        let centred = self.step(call, "centred", "Sub", &[x, mean]);
        let squares = self.step(call, "squares", "Mul", &[centred, centred]);
        let variance = self.mean(call, "variance", squares, &axes);
        let deviation = match mode.to_ascii_lowercase().as_str() {
            "inside_sqrt" => {
                let above = self.with_epsilon(call, variance, epsilon);
                self.step(call, "deviation", "Sqrt", &[above])
            }
            "outside_sqrt" => {
                let root = self.step(call, "deviation", "Sqrt", &[variance]);
                self.with_epsilon(call, root, epsilon)
            }
            _ => return None,
        };
        Some(self.op(call, "Div", &[centred, deviation]))
    }

    fn rms(&mut self, call: &Call<'_>) -> Option<ValueId> {
        call.ignore("output_type");
        let epsilon = call.number("epsilon")?;
        let (x, gamma) = (self.input(call, 0)?, self.input(call, 1)?);
        let squares = self.step(call, "squares", "Mul", &[x, x]);
        let mean = self.mean(call, "mean", squares, &[-1]);
        let above = self.with_epsilon(call, mean, epsilon);
        let root = self.step(call, "root", "Sqrt", &[above]);
        let scaled = self.step(call, "scaled", "Div", &[x, root]);
        Some(self.op(call, "Mul", &[scaled, gamma]))
    }

    /// A vector along some dimensions, divided by its length.
    fn normalize(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let axes = self.known_ints(call, 1)?;
        let epsilon = call.number("eps")?;
        let mode = call.text_or("eps_mode", "add")?;
        let x = self.input(call, 0)?;
        // Over no dimension, each element is a vector.
        (!axes.is_empty()).then_some(())?;
        let axes = self.out.main.ints(&axes);
        let squares = self.out.main.op("ReduceSumSquare", [x, axes]).attribute("keepdims", 1);
        let squares = squares.output(&call.step("squares"));
        let least = self.out.main.float(epsilon);
        let op = match mode {
            "add" => "Add",
            "max" => "Max",
            _ => return None,
        };
        let above = self.step(call, "above", op, &[squares, least]);
        let length = self.step(call, "length", "Sqrt", &[above]);
        Some(self.op(call, "Div", &[x, length]))
    }

    fn batch(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let epsilon = call.number("epsilon")?;
        let mut inputs = self.inputs(call)?;
        (inputs.len() == 5).then_some(())?;
        if call.is_of(&["opset1"]) {
            // The scale and the bias come first there.
            let x = inputs.remove(2);
            inputs.insert(0, x);
        }
        let node = self.out.main.op("BatchNormalization", inputs).attribute("epsilon", epsilon);
        Some(node.output(&call.name))
    }

    /// Each group of channels by its mean and its variance; then a scale and a bias for each
    /// channel.
    fn groups(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let (count, epsilon) = (call.int("num_groups")?, call.number("epsilon")?);
        let (x, scale, bias) = (self.input(call, 0)?, self.input(call, 1)?, self.input(call, 2)?);
        let rank = self.out.rank(x)?;
        let shape = self.step(call, "sizes", "Shape", &[x]);
        let parts = self.out.main.ints(&[0, count, -1]);
        let grouped = self.step(call, "grouped", "Reshape", &[x, parts]);
        let mean = self.mean(call, "mean", grouped, &[2]);
        let centred = self.step(call, "centred", "Sub", &[grouped, mean]);
        let squares = self.step(call, "squares", "Mul", &[centred, centred]);
        let variance = self.mean(call, "variance", squares, &[2]);
        let above = self.with_epsilon(call, variance, epsilon);
        let deviation = self.step(call, "deviation", "Sqrt", &[above]);
        let normal = self.step(call, "normal", "Div", &[centred, deviation]);
        let normal = self.step(call, "whole", "Reshape", &[normal, shape]);
        let mut sizes = vec![1; rank.checked_sub(1)?];
        *sizes.first_mut()? = -1;
        let sizes = self.out.main.ints(&sizes);
        let scale = self.step(call, "scale", "Reshape", &[scale, sizes]);
        let bias = self.step(call, "bias", "Reshape", &[bias, sizes]);
        let scaled = self.step(call, "scaled", "Mul", &[normal, scale]);
        Some(self.op(call, "Add", &[scaled, bias]))
    }

    /// Each element by the squares of some channels around it.
    fn local(&mut self, call: &Call<'_>) -> Option<ValueId> {
        (self.known_ints(call, 1)? == [1]).then_some(())?;
        let (alpha, beta, bias) =
            (call.number("alpha")?, call.number("beta")?, call.number("bias")?);
        let size = call.int("size")?;
        let x = self.input(call, 0)?;
        let node = self.out.main.op("LRN", [x]).attribute("alpha", alpha).attribute("beta", beta);
        Some(node.attribute("bias", bias).attribute("size", size).output(&call.name))
    }
}
