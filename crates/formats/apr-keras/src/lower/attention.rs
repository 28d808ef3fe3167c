//! Attention, of several heads and without.
//!
//! ```text
//! query  [batch, steps, features]     kernels [features, heads, size]
//! output [batch, steps, features]     kernel  [heads, size, features]
//! ```

use apr_graph::{Dim, ElementType, ValueId, View};
use apr_lower::{Order, Placed};

use super::Lowering;
use super::layer::{Layer, Variable};

/// Value of masked attention scores.
const LEAST: f32 = -0.7 * f32::MAX;

/// Query, value and key of a call, with their masks.
struct Inputs {
    query: ValueId,
    value: ValueId,
    key: ValueId,
    query_mask: Option<ValueId>,
    /// Masks over the steps of values and keys.
    others: Vec<ValueId>,
}

impl Lowering<'_> {
    /// Lowers `MultiHeadAttention`.
    ///
    /// Returns its output, and the attention weights if the call requests them.
    pub(super) fn multi_head(&mut self, layer: &Layer) -> Option<Vec<Placed>> {
        let unknown = layer.has("sliding_window") || layer.is_set("use_gate");
        let one_axis = layer.ints("attention_axes").is_none_or(|axes| axes == [1] || axes == [-2]);
        if unknown || !one_axis {
            return self.refuse("with a window, a gate or other axes");
        }
        let inputs = self.attention_inputs(layer)?;
        let scored = layer.is_set("call_return_attention_scores");
        let name = &layer.name;
        let project = |this: &mut Self, x: ValueId, part: &str, order: [i64; 4]| {
            this.heads(layer, x, part, order)
        };
        let query = project(self, inputs.query, "query", [0, 2, 1, 3])?;
        let key = project(self, inputs.key, "key", [0, 2, 3, 1])?;
        let value = project(self, inputs.value, "value", [0, 2, 1, 3])?;
        #[expect(clippy::cast_precision_loss, reason = "a size of heads is small")]
        let size = layer.int("key_dim").filter(|size| *size > 0)? as f32;
        let scale = self.out.main.float(size.sqrt().recip());
        let main = &mut self.out.main;
        let products = main.op("MatMul", [query, key]).output(&format!("{name}/products"));
        let scores = main.op("Mul", [products, scale]).output(&format!("{name}/scores"));
        let mask = self.attention_mask(layer, &inputs, true)?;
        if scored && mask.is_some() {
            return self.refuse("scores that are returned, under a mask");
        }
        let probs = self.weighted(scores, mask, name);
        let main = &mut self.out.main;
        let context = main.op("MatMul", [probs, value]).output(&format!("{name}/context"));
        let context = main.op("Transpose", [context]).attribute("perm", [0, 2, 1, 3]);
        let context = context.output(&format!("{name}/rows"));

        let kernel = part(layer, &["attention_output", "output_dense"], "kernel")?.clone();
        let [heads, size, features] = kernel.dims.as_slice() else {
            return self.refuse("with an output of several dimensions");
        };
        let joined = heads.checked_mul(*size)?;
        let shape = self.out.main.ints(&[0, 0, i64::try_from(joined).ok()?]);
        let rows = self.out.main.op("Reshape", [context, shape]);
        let rows = rows.output(&format!("{name}/joined"));
        let w = self.matrix_of(&kernel, vec![joined, *features]);
        let bias = match layer.is_kept("use_bias") {
            true => {
                let bias = part(layer, &["attention_output", "output_dense"], "bias")?.clone();
                Some(self.matrix_of(&bias, vec![*features]))
            }
            false => None,
        };
        let y = self.affine(rows, w, bias, name);
        let mut outputs = vec![Placed::natural(y)];
        outputs.extend(scored.then(|| Placed::natural(probs)));
        Some(outputs)
    }

    /// Lowers `Attention`: dot products of queries and keys without projections.
    pub(super) fn attention(&mut self, layer: &Layer) -> Option<Vec<Placed>> {
        let is_dot = layer.text("score_mode").unwrap_or("dot") == "dot";
        if !is_dot || layer.is_set("call_return_attention_scores") || layer.mask.is_some() {
            return self.refuse("another score, or more than the output");
        }
        let [q, v, ..] = layer.inputs.as_slice() else { return None };
        let k = layer.inputs.get(2).unwrap_or(v);
        let natural = |this: &mut Self, one: &Placed| this.out.ordered(*one, Order::Natural);
        let inputs = Inputs {
            query: natural(self, q)?,
            value: natural(self, v)?,
            key: natural(self, k)?,
            query_mask: None,
            others: layer.masks.get(1).copied().flatten().into_iter().collect(),
        };
        (self.out.rank(inputs.query)? == 3).then_some(())?;
        let name = &layer.name;
        let main = &mut self.out.main;
        let turned = main.op("Transpose", [inputs.key]).attribute("perm", [0, 2, 1]);
        let turned = turned.output(&format!("{name}/keys"));
        let mut scores = main.op("MatMul", [inputs.query, turned]);
        scores = match layer.is_set("use_scale") {
            false => scores,
            true => {
                let products = scores.output(&format!("{name}/products"));
                let scale = layer.variable(&["scale"], 0)?.clone();
                let scale = self.matrix_of(&scale, Vec::new());
                self.out.main.op("Mul", [products, scale])
            }
        };
        let scores = scores.output(&format!("{name}/scores"));
        let mask = self.attention_mask(layer, &inputs, false)?;
        let probs = self.weighted(scores, mask, name);
        let Some(mask) = layer.masks.first().copied().flatten() else {
            let y = self.out.main.op("MatMul", [probs, inputs.value]).output(name);
            return Some(vec![Placed::natural(y)]);
        };
        let main = &mut self.out.main;
        let all = main.op("MatMul", [probs, inputs.value]).output(&format!("{name}/all"));
        let (axis, zero) = (main.ints(&[-1]), main.float(0.0));
        let counts = main.op("Unsqueeze", [mask, axis]).output(&format!("{name}/counts"));
        let y = main.op("Where", [counts, all, zero]).output(name);
        Some(vec![Placed::natural(y)])
    }

    /// Returns the inputs of a call of `MultiHeadAttention`, by their names or positions.
    fn attention_inputs(&mut self, layer: &Layer) -> Option<Inputs> {
        let known = ["", "query", "value", "key", "attention_mask"];
        if layer.arguments.iter().any(|argument| !known.contains(&argument.as_str())) {
            return self.refuse("with masks as arguments");
        }
        let unnamed = layer.arguments.iter().filter(|argument| argument.is_empty()).count();
        (unnamed <= 3).then_some(())?;
        let find = |name: &str, at: usize| {
            let named = layer.arguments.iter().position(|argument| argument == name);
            named.or((at < unnamed).then_some(at))
        };
        let (query, value) = (find("query", 0)?, find("value", 1)?);
        let key = find("key", 2);
        let mut natural = |at: usize| {
            let id = self.out.ordered(*layer.inputs.get(at)?, Order::Natural)?;
            (self.out.rank(id) == Some(3)).then_some(id)
        };
        let mask = |at: usize| layer.masks.get(at).copied().flatten();
        Some(Inputs {
            query: natural(query)?,
            value: natural(value)?,
            key: natural(key.unwrap_or(value))?,
            query_mask: mask(query),
            others: [Some(value), key].into_iter().flatten().filter_map(mask).collect(),
        })
    }

    /// Returns the mask of the steps that a query attends to, for broadcasting to the scores.
    fn attention_mask(
        &mut self,
        layer: &Layer,
        inputs: &Inputs,
        has_heads: bool,
    ) -> Option<Option<ValueId>> {
        let name = &layer.name;
        let mut masks = Vec::new();
        let (rows, columns): (&[i64], &[i64]) =
            if has_heads { (&[1, 3], &[1, 2]) } else { (&[2], &[1]) };
        let all = inputs.query_mask.map(|mask| (mask, rows));
        for (mask, axes) in all.into_iter().chain(inputs.others.iter().map(|one| (*one, columns))) {
            let axes = self.out.main.ints(axes);
            let node = self.out.main.op("Unsqueeze", [mask, axes]);
            masks.push(node.output(&format!("{name}/seen")));
        }
        if layer.is_set("call_use_causal_mask") {
            masks.push(self.causal(inputs, name));
        }
        let given = layer.arguments.iter().position(|argument| argument == "attention_mask");
        if let Some(given) = given {
            let mut mask = self.out.ordered(*layer.inputs.get(given)?, Order::Natural)?;
            mask = self.out.cast(mask, ElementType::Bool, &format!("{name}/given"));
            if self.out.rank(mask)? == 3 {
                let axis = self.out.main.ints(&[1]);
                let node = self.out.main.op("Unsqueeze", [mask, axis]);
                mask = node.output(&format!("{name}/given/heads"));
            }
            masks.push(mask);
        }
        let mut masks = masks.into_iter();
        let Some(first) = masks.next() else { return Some(None) };
        let all = |all, mask| self.out.main.op("And", [all, mask]).output(&format!("{name}/mask"));
        Some(Some(masks.fold(first, all)))
    }

    /// A query sees no later steps: `[queries, keys]`.
    fn causal(&mut self, inputs: &Inputs, name: &str) -> ValueId {
        let main = &mut self.out.main;
        let (zero, one, axis) = (main.int(0), main.int(1), main.ints(&[1]));
        let mut steps = |of: ValueId, name: String| {
            let shape = main.op("Shape", [of]).output(&format!("{name}/shape"));
            let count = main.op("Gather", [shape, one]).output(&format!("{name}/count"));
            main.op("Range", [zero, count, one]).output(&name)
        };
        let rows = steps(inputs.query, format!("{name}/rows_of"));
        let columns = steps(inputs.key, format!("{name}/columns_of"));
        let rows = main.op("Unsqueeze", [rows, axis]).output(&format!("{name}/row"));
        main.op("GreaterOrEqual", [rows, columns]).output(&format!("{name}/causal"))
    }

    /// Weights of the steps, which are 1 together.
    fn weighted(&mut self, scores: ValueId, mask: Option<ValueId>, name: &str) -> ValueId {
        let main = &mut self.out.main;
        let scores = match mask {
            Some(mask) => {
                let least = main.float(LEAST);
                main.op("Where", [mask, scores, least]).output(&format!("{name}/masked"))
            }
            None => scores,
        };
        main.op("Softmax", [scores]).attribute("axis", -1).output(&format!("{name}/probs"))
    }

    /// `[batch, steps, features]` as `[batch, steps, heads, size]`, transposed.
    fn heads(
        &mut self,
        layer: &Layer,
        x: ValueId,
        which: &str,
        order: [i64; 4],
    ) -> Option<ValueId> {
        let parts = [which, &format!("{which}_dense")];
        let kernel = part(layer, &parts, "kernel")?.clone();
        let [features, heads, size] = *kernel.dims.as_slice() else { return None };
        let all = heads.checked_mul(size)?;
        let w = self.matrix_of(&kernel, vec![features, all]);
        let bias = match layer.is_kept("use_bias") {
            true => {
                let bias = part(layer, &parts, "bias")?.clone();
                (bias.dims == [heads, size]).then_some(())?;
                Some(self.matrix_of(&bias, vec![all]))
            }
            false => None,
        };
        let name = format!("{}/{which}", layer.name);
        let (last, heads) = (Dim::fixed(features), i64::try_from(heads).ok()?);
        (self.out.shape(x)?.last() == Some(&last)).then_some(())?;
        let rows = self.affine(x, w, bias, &format!("{name}/projected"));
        let main = &mut self.out.main;
        let shape = main.ints(&[0, 0, heads, i64::try_from(size).ok()?]);
        let split = main.op("Reshape", [rows, shape]).output(&format!("{name}/heads"));
        Some(main.op("Transpose", [split]).attribute("perm", order).output(&name))
    }

    fn affine(&mut self, x: ValueId, w: ValueId, bias: Option<ValueId>, name: &str) -> ValueId {
        let main = &mut self.out.main;
        match bias {
            None => main.op("MatMul", [x, w]).output(name),
            Some(bias) => {
                let product = main.op("MatMul", [x, w]).output(&format!("{name}/product"));
                main.op("Add", [product, bias]).output(name)
            }
        }
    }

    /// A variable in another shape.
    fn matrix_of(&mut self, variable: &Variable, shape: Vec<u64>) -> ValueId {
        let mut views = variable.weight.views.clone();
        if variable.dims != shape {
            views.push(View::Reshaped(shape.clone()));
        }
        self.out.main.viewed(&variable.weight.tensor, views, ElementType::F32, shape)
    }
}

/// A variable of a part of the layer.
fn part<'l>(layer: &'l Layer, parts: &[&str], variable: &str) -> Option<&'l Variable> {
    layer.variables.iter().find(|own| {
        let mut names = own.name.rsplit('/');
        names.next() == Some(variable) && names.next().is_some_and(|name| parts.contains(&name))
    })
}
