//! What GGUF has in place of a family's tensors, and the layers that its tensors are of.

use std::collections::BTreeSet;

use super::{Family, FamilyTensor};
use crate::gguf::{GgufTurned, TensorLayout};
use crate::layer_stack::LayerStack;

impl Family {
    /// The layout that GGUF has for a tensor.
    pub(crate) fn layout(&self, tensor: usize) -> Option<&TensorLayout> {
        let name = &self.file.tensors.get(tensor)?.name;
        self.gguf.as_ref()?.layouts.iter().find(|(of, _)| of == name).map(|(_, layout)| layout)
    }

    /// Returns `true` if frameworks store the tensor with one row for each input.
    ///
    /// GGUF stores such a tensor transposed, or transposes it before it cuts other tensors out of
    /// it.
    pub(crate) fn has_inputs_first(&self, tensor: usize) -> bool {
        if matches!(self.layout(tensor), Some(TensorLayout::Transposed)) {
            return true;
        }
        let (Some(entry), Some(gguf)) = (self.file.tensors.get(tensor), &self.gguf) else {
            return false;
        };
        gguf.layouts.iter().any(|(_, layout)| match layout {
            TensorLayout::Cut(cut) => cut.of == entry.name && cut.turned == GgufTurned::Before,
            _ => false,
        })
    }

    /// The tensor in which GGUF has this one together with its like, such as all experts of a
    /// layer.
    pub(crate) fn stack_of(&self, tensor: usize) -> Option<&FamilyTensor> {
        let name = &self.file.tensors.get(tensor)?.name;
        let is_stack =
            |layout: &TensorLayout| matches!(layout, TensorLayout::Stack(part) if part == name);
        let (stack, _) = self.gguf.as_ref()?.layouts.iter().find(|(_, layout)| is_stack(layout))?;
        let position = self.file.tensors.iter().position(|entry| entry.name == *stack)?;
        self.tensors.get(position)
    }

    /// Canonical name of the tensor in which GGUF stacks the one with this canonical name, and its
    /// place there.
    #[must_use]
    pub fn stack(&self, canonical: &str) -> Option<(String, u64)> {
        let found = self.find_canonical(canonical)?;
        let stack = self.stack_of(found.tensor)?;
        let index = self.stacked_index(found.tensor, stack)?;
        Some((stack.pattern.name("", |index| found.number(index))?, found.number(index)?))
    }

    /// Canonical name of the part at this place of a tensor that GGUF stacks; `None` for other
    /// tensors.
    #[must_use]
    pub fn part(&self, stack: &str, place: u64) -> Option<String> {
        let found = self.find_canonical(stack)?;
        let TensorLayout::Stack(part) = self.layout(found.tensor)? else { return None };
        let part = &self.tensors[self.file.tensors.iter().position(|entry| entry.name == *part)?];

        // The index that the stack lacks is the place of the part.
        part.pattern.name("", |index| found.number(index).or(Some(place)))
    }

    /// Canonical names of the tensors that GGUF has in place of the one with this canonical name;
    /// none where it has that one, or nothing.
    #[must_use]
    pub fn cuts(&self, canonical: &str) -> Vec<String> {
        let (Some(gguf), Some(found)) = (&self.gguf, self.find_canonical(canonical)) else {
            return Vec::new();
        };
        let whole = &self.file.tensors[found.tensor].name;
        let is_cut =
            |layout: &TensorLayout| matches!(layout, TensorLayout::Cut(cut) if cut.of == *whole);
        let names = gguf.layouts.iter().filter(|(_, layout)| is_cut(layout)).map(|(name, _)| name);
        let tensors =
            names.filter_map(|name| self.file.tensors.iter().position(|entry| entry.name == *name));
        tensors
            .filter_map(|tensor| self.tensors[tensor].pattern.name("", |index| found.number(index)))
            .collect()
    }

    /// Canonical name of the tensor that the one with this canonical name is cut out of in GGUF.
    #[must_use]
    pub fn cut_from(&self, canonical: &str) -> Option<String> {
        let found = self.find_canonical(canonical)?;
        let TensorLayout::Cut(cut) = self.layout(found.tensor)? else { return None };
        let whole = self.file.tensors.iter().position(|entry| entry.name == cut.of)?;
        self.tensors[whole].pattern.name("", |index| found.number(index))
    }

    /// The index that a part has and its stack lacks.
    pub(crate) fn stacked_index(&self, part: usize, stack: &FamilyTensor) -> Option<&str> {
        let stacked = stack.pattern.indices();
        self.tensors[part]
            .pattern
            .indices()
            .iter()
            .find(|index| !stacked.contains(index))
            .map(String::as_str)
    }

    /// The layers that the family's models can have fewer of.
    pub(crate) fn layer_stack(&self) -> Option<LayerStack> {
        let indices = self.tensors.iter().flat_map(|tensor| tensor.pattern.indices());
        let is_of_layers = |index: &&String| index.ends_with("layer") || *index == "stage";
        let of_layers: BTreeSet<&str> = indices.filter(is_of_layers).map(String::as_str).collect();
        match of_layers.len() {
            1 if of_layers.contains(LayerStack::Only.index()) => Some(LayerStack::Only),
            2 if of_layers.contains(LayerStack::Decoder.index()) => Some(LayerStack::Decoder),
            _ => None,
        }
    }

    /// The layer that the tensor with this canonical name belongs to.
    #[must_use]
    pub fn layer(&self, canonical: &str) -> Option<u64> {
        self.layer_of(LayerStack::Only, canonical)
    }

    /// The layer of a stack that the tensor with this canonical name belongs to.
    #[must_use]
    pub fn layer_of(&self, stack: LayerStack, canonical: &str) -> Option<u64> {
        self.find_canonical(canonical)?.number(stack.index())
    }

    /// Canonical name of the same tensor of another layer of its stack.
    #[must_use]
    pub fn in_layer(&self, stack: LayerStack, canonical: &str, layer: u64) -> Option<String> {
        let found = self.find_canonical(canonical)?;
        let number =
            |index: &str| if index == stack.index() { Some(layer) } else { found.number(index) };
        self.tensors[found.tensor].pattern.name("", number)
    }
}
