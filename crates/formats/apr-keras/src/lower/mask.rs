//! Masks: which steps of a sequence count.
//!
//! A mask is `[batch, steps]`, goes with the value that a layer makes, and from layer to layer.
//! Layers that do not know masks compute with all steps and end the mask, as in Keras. Keras 3
//! also writes the functions that compute masks among the layers, and names the result as an
//! argument where it is read. Masks follow the program of Keras, not its documentation; a layer is
//! not translated if the order of two layers stays open.

use std::collections::HashMap;

use apr_graph::{ElementType, ValueId};
use apr_lower::{Order, Placed};

use super::Lowering;
use super::layer::Layer;

/// Layers that return a mask as they got it.
const PASSING: [&str; 22] = [
    "Activation",
    "ActivityRegularization",
    "AlphaDropout",
    "BatchNormalization",
    "Dense",
    "Dropout",
    "ELU",
    "GaussianDropout",
    "GaussianNoise",
    "GroupNormalization",
    "GRU",
    "LayerNormalization",
    "LeakyReLU",
    "LSTM",
    "PReLU",
    "ReLU",
    "SimpleRNN",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "TimeDistributed",
    "UnitNormalization",
];
/// Layers that pass on masks since Keras 3.
const PASSING_SINCE_3: [&str; 3] = ["Identity", "Normalization", "Rescaling"];

/// Layers that merge the masks of their inputs.
const MERGING: [&str; 6] = ["Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract"];
/// Layers that use or return masks in ways of their own.
const OTHERS: [&str; 6] = [
    "Attention",
    "Bidirectional",
    "Concatenate",
    "GlobalAveragePooling1D",
    "MultiHeadAttention",
    "Softmax",
];

/// Returns `true` if a layer uses the masks of its inputs.
pub(super) fn goes_by_masks(class: &str) -> bool {
    [&PASSING[..], &PASSING_SINCE_3, &MERGING, &OTHERS].iter().any(|list| list.contains(&class))
}

/// Position of a layer in Keras' execution order.
///
/// Layers of greater depth in the same model run first.
#[derive(Debug, Clone, Default)]
pub(super) struct Turn {
    pub(super) depth: usize,
    pub(super) model: String,
}

impl Turn {
    /// Returns `true` if the order of two layers is known.
    fn is_ordered(&self, other: &Self) -> bool {
        self.depth != other.depth && self.model == other.model
    }
}

/// The masks of lowered values.
///
/// Keras 3 keeps the masks on the tensors themselves. `MultiHeadAttention` removes the masks of its
/// inputs, so that later layers find none. Layers that return their input unchanged return the same
/// tensor.
#[derive(Debug, Default)]
pub(super) struct Masks {
    found: HashMap<ValueId, ValueId>,
    /// Positions of the layers that read the mask of a value.
    read: HashMap<ValueId, Vec<Turn>>,
    /// Position of the layer that removed the mask of a value.
    taken: HashMap<ValueId, Turn>,
}

/// Reason for rejecting a mask that cannot be determined.
const UNORDERED: &str = "a mask that depends on the order of layers";

impl Masks {
    /// The mask of a value.
    ///
    /// # Errors
    /// Where it is not known whether it is there still.
    pub(super) fn find(
        &mut self,
        id: ValueId,
        turn: &Turn,
    ) -> Result<Option<ValueId>, &'static str> {
        if let Some(mask) = self.found.get(&id) {
            self.read.entry(id).or_default().push(turn.clone());
            return Ok(Some(*mask));
        }
        let is_unordered = self.taken.get(&id).is_some_and(|taken| !taken.is_ordered(turn));
        if is_unordered { Err(UNORDERED) } else { Ok(None) }
    }

    pub(super) fn set(&mut self, id: ValueId, mask: ValueId) {
        self.found.insert(id, mask);
    }

    /// Takes the masks of a layer's inputs away.
    ///
    /// # Errors
    /// Where another layer may come before it or after it, and looks at them.
    pub(super) fn take_away(&mut self, inputs: &[Placed], turn: &Turn) -> Result<(), &'static str> {
        for id in inputs.iter().map(|placed| placed.id) {
            if self.found.remove(&id).is_none() {
                continue;
            }
            let own = inputs.iter().filter(|placed| placed.id == id).count();
            let read = self.read.remove(&id).unwrap_or_default();
            if read.iter().filter(|other| !turn.is_ordered(other)).count() > own {
                return Err(UNORDERED);
            }
            self.taken.insert(id, turn.clone());
        }
        Ok(())
    }
}

impl Lowering<'_> {
    /// Returns the mask of a layer's first output.
    ///
    /// `None` if the mask cannot be lowered, `Some(None)` if there is no mask.
    pub(super) fn mask_of(&mut self, layer: &Layer) -> Option<Option<ValueId>> {
        let own = self.mask_made.take();
        let first = layer.first_mask();
        Some(match layer.class.as_str() {
            "Embedding" | "Masking" => own,
            "LSTM" | "GRU" | "SimpleRNN" => first.filter(|_| layer.is_set("return_sequences")),
            "Bidirectional" => {
                let inner = layer.inner("layer", String::new(), |_| false)?;
                first.filter(|_| inner.is_set("return_sequences"))
            }
            "Attention" | "MultiHeadAttention" => layer.masks.first().copied().flatten(),
            class if MERGING.contains(&class) => self.merged_mask(layer),
            "Concatenate" => return self.joined_mask(layer),
            class if PASSING.contains(&class) => first,
            class if self.version >= 3 && PASSING_SINCE_3.contains(&class) => first,
            _ => None,
        })
    }

    /// Returns the mask of an element-wise merge of the inputs.
    fn merged_mask(&mut self, layer: &Layer) -> Option<ValueId> {
        // Since Keras 3 a step counts where it does in one of them, and always without a mask.
        let op = if self.version >= 3 {
            layer.masks.iter().all(Option::is_some).then_some("Or")?
        } else {
            "And"
        };
        self.masks_by(op, layer)
    }

    fn masks_by(&mut self, op: &str, layer: &Layer) -> Option<ValueId> {
        let mut masks = layer.masks.iter().copied().flatten();
        let first = masks.next()?;
        Some(masks.fold(first, |all, mask| match all == mask {
            true => all,
            false => self.out.main.op(op, [all, mask]).output(&format!("{}/mask", layer.name)),
        }))
    }

    fn joined_mask(&mut self, layer: &Layer) -> Option<Option<ValueId>> {
        if layer.masks.iter().all(Option::is_none) {
            return Some(None);
        }
        let rank = self.out.rank(layer.inputs.first()?.id)?;
        let axis = super::activation::position(layer.int("axis").unwrap_or(-1), rank)?;
        let is_full = layer.masks.iter().all(Option::is_some);
        match (axis, rank) {
            (1, 3) if is_full => {
                let masks: Vec<ValueId> = layer.masks.iter().copied().flatten().collect();
                let name = format!("{}/mask", layer.name);
                let mask = self.out.main.op("Concat", masks).attribute("axis", 1).output(&name);
                Some(Some(mask))
            }
            // The same steps with more features: counted as those of merged inputs are.
            (2, 3) => Some(self.merged_mask(layer)),
            _ => self.refuse("masks along this axis"),
        }
    }

    /// Steps that have one number in all places do not count, and become zeros.
    pub(super) fn masking(&mut self, layer: &Layer) -> Option<Placed> {
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let name = &layer.name;
        let same = self.equal(x, layer.float("mask_value").unwrap_or_default(), name)?;
        let other = self.out.main.op("Not", [same]).output(&format!("{name}/other"));
        let counts = self.any(other, -1, true, &format!("{name}/counts"));
        let zero = self.out.main.float(0.0);
        let y = self.out.main.op("Where", [counts, x, zero]).output(name);
        let axis = self.out.main.ints(&[-1]);
        let mask = self.out.main.op("Squeeze", [counts, axis]).output(&format!("{name}/mask"));
        self.mask_made = Some(mask);
        Some(Placed::natural(y))
    }

    /// Compares the elements of a value with a number.
    pub(super) fn equal(&mut self, x: ValueId, number: f32, name: &str) -> Option<ValueId> {
        let element = self.out.element(x)?;
        let number = self.out.main.float(number);
        let number = self.out.cast(number, element, &format!("{name}/number"));
        Some(self.out.main.op("Equal", [x, number]).output(&format!("{name}/equal")))
    }

    /// Returns the logical or of a value along a dimension.
    fn any(&mut self, x: ValueId, axis: i64, keeps: bool, name: &str) -> ValueId {
        let ints = self.out.cast(x, ElementType::I32, &format!("{name}/int"));
        let axis = self.out.main.ints(&[axis]);
        let node = self.out.main.op("ReduceMax", [ints, axis]);
        let most = node.attribute("keepdims", i64::from(keeps)).output(&format!("{name}/most"));
        self.out.cast(most, ElementType::Bool, name)
    }

    /// The functions of `keras.ops` that compute masks.
    pub(super) fn function(&mut self, layer: &Layer) -> Option<Placed> {
        let name = &layer.name;
        let ids: Option<Vec<ValueId>> =
            layer.inputs.iter().map(|one| self.out.ordered(*one, Order::Natural)).collect();
        let ids = ids?;
        let made = match (layer.class.as_str(), ids.as_slice()) {
            ("Equal", [x]) => self.equal(*x, layer.float("call_1")?, name)?,
            ("NotEqual", [x]) => {
                let same = self.equal(*x, layer.float("call_1")?, name)?;
                self.out.main.op("Not", [same]).output(name)
            }
            ("Any", [x]) => self.any(*x, layer.int("axis")?, layer.is_set("keepdims"), name),
            ("ConvertToTensor", [x]) if !layer.has("dtype") => *x,
            ("ExpandDims", [x]) => {
                let axis = self.out.main.ints(&[layer.int("axis")?]);
                self.out.main.op("Unsqueeze", [*x, axis]).output(name)
            }
            ("ZerosLike" | "OnesLike", [x]) if layer.text("dtype") == Some("bool") => {
                let shape = self.out.main.op("Shape", [*x]).output(&format!("{name}/shape"));
                let number = self.out.main.int(i64::from(layer.class == "OnesLike"));
                let truth = self.out.cast(number, ElementType::Bool, &format!("{name}/truth"));
                self.out.main.op("Expand", [truth, shape]).output(name)
            }
            ("Concatenate", [_, ..]) => {
                let node = self.out.main.op("Concat", ids);
                node.attribute("axis", layer.int("axis").unwrap_or_default()).output(name)
            }
            ("LogicalNot", [_]) => self.out.main.op("Not", ids).output(name),
            ("LogicalOr", [_, _]) => self.out.main.op("Or", ids).output(name),
            ("LogicalAnd", [_, _]) => self.out.main.op("And", ids).output(name),
            _ => return None,
        };
        Some(Placed::natural(made))
    }
}
