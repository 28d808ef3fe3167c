//! A family applied to one checkpoint.

mod description;
mod gguf;
mod member;
mod mismatch;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use apr_core::{Metadata, Shape, TensorInfo};

use crate::dimensions::{Dimensions, Told};
use crate::family::{Family, GGUF, Naming};
use crate::gguf::TensorLayout;
use crate::kind::{Range, TensorExpectation};
use crate::layer_stack::LayerStack;
use crate::names::NameGroups;
use crate::text_part::is_of_others;
use member::{counts, inputs, member, renumber, tell_namesakes};

pub use description::Description;
use mismatch::without_outer_ones;

pub(crate) use member::{Member, numbers};
pub use mismatch::Mismatch;

/// A checkpoint, seen as a member of a family.
#[derive(Debug)]
pub struct FamilyModel<'a> {
    pub(crate) family: &'a Family,
    naming: Naming,
    /// The family's tensor for each tensor of the checkpoint.
    members: Vec<Option<Member>>,
    pub(crate) dimensions: Dimensions<'a>,
    counts: BTreeMap<&'a str, u64>,
    /// Number of inputs for each output, for each tensor of the checkpoint.
    inputs: Vec<u64>,
    /// Dimensions of the family's tensors that have the same dimensions in every layer.
    shapes: BTreeMap<usize, Option<Vec<u64>>>,
    /// Name of the tensor that an import added and that belongs to no family.
    auxiliary: Option<&'a str>,
    /// `true` if values are in GGUF's layout.
    in_gguf_layout: bool,
    is_guessed: bool,
    /// The same checkpoint as the part for images beside the language model.
    vision: Option<Box<FamilyModel<'a>>>,
}

/// Form of images in the prompts of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageText<'a> {
    /// Placeholder of an image in a prompt or a chat.
    ///
    /// In both texts below, `{image}` is the text of the image token. The vector of a piece of an
    /// image takes the place of this token.
    pub placeholder: &'a str,
    /// Text that replaces the placeholder.
    ///
    /// `{images}` is `{image}`, repeated for each vector of the image.
    pub prompt: &'a str,
    /// Text for a tile of a split image, before the text of the whole image.
    ///
    /// `{row}` and `{column}` count from 1. `None` if the vectors of tiles are part of `{images}`.
    pub tile: Option<&'a str>,
    /// Text that stands in front of a prompt without a placeholder, once for each image: the
    /// placeholder, with what the model's chats have around it.
    pub alone: &'a str,
    /// The id of that token.
    pub token: u64,
    /// Text between the rows of an image's vectors.
    pub row_break: Option<&'a str>,
    /// Side in pixels of the square that a vector of an image is of, if images have any size.
    pub cell: Option<u64>,
    /// `true` if the language model reads the row and the column of each vector.
    pub has_places: bool,
    /// `true` if all tokens of a prompt see each other.
    pub sees_prompt: bool,
    /// `true` if vectors of tiles are put together row by row, without those of padding, and the
    /// last vector of a picture is one that stands behind each row.
    pub joins_rows: bool,
    /// Text behind the last image: the beginning of the text, which no tokenizer adds.
    pub behind: Option<&'a str>,
    /// Text at the end of a prompt.
    pub end: &'a str,
}

impl<'a> FamilyModel<'a> {
    /// Applies a family to tensors with a naming.
    pub(crate) fn new(
        family: &'a Family,
        naming: Naming,
        names: &NameGroups<'_>,
        tensors: &[TensorInfo],
        metadata: &'a Metadata,
    ) -> Self {
        let matches = names.matches(family, &naming).into_iter();
        let mut members: Vec<Option<Member>> =
            matches.map(|matched| member(family, matched?)).collect();
        let mut dimensions = Dimensions::new(family, Told::by(metadata, family));
        // What was imported has other names, but values as they were.
        let in_gguf_layout = naming.convention == GGUF || gguf_values(metadata);
        if naming.convention == GGUF {
            tell_namesakes(family, &mut members, &dimensions);
            renumber(family, &mut members, &dimensions);
        }

        // Shapes that GGUF changes would show other dimensions.
        let is_same = |tensor: usize| {
            !in_gguf_layout
                || !match family.layout(tensor) {
                    Some(
                        TensorLayout::Transposed
                        | TensorLayout::SkipRows(_)
                        | TensorLayout::Rows(_),
                    ) => true,
                    Some(TensorLayout::Arranged(arranged)) => arranged.shape.is_some(),
                    _ => false,
                }
        };
        let known = members
            .iter()
            .zip(tensors)
            .filter_map(|(member, info)| Some((member.as_ref()?.tensor, &info.shape)))
            .filter(|(tensor, _)| is_same(*tensor))
            .map(|(tensor, shape)| (&family.tensors[tensor], shape));
        dimensions.observe(known, in_gguf_layout);
        let counts = counts(family, &members, &dimensions);
        let is_turned = |member: &Option<Member>| {
            let member = member.as_ref().filter(|_| !in_gguf_layout);
            member.is_some_and(|member| {
                matches!(family.layout(member.tensor), Some(TensorLayout::Transposed))
            })
        };

        let inputs = members
            .iter()
            .zip(tensors)
            .map(|(member, info)| inputs(&info.shape, is_turned(member)))
            .collect();
        let auxiliary = metadata.auxiliary_tensor();
        let mut model = Self {
            family,
            naming,
            members,
            dimensions,
            counts,
            inputs,
            shapes: BTreeMap::new(),
            auxiliary,
            in_gguf_layout,
            is_guessed: false,
            vision: None,
        };

        model.compute_shapes();
        model
    }

    /// Computes the shapes that are the same in every layer, once for all of them.
    fn compute_shapes(&mut self) {
        let present: BTreeSet<usize> =
            self.members.iter().flatten().map(|member| member.tensor).collect();
        for tensor in present {
            let Some(shape) = &self.family.tensors[tensor].shape else { continue };
            let indices = self.family.tensors[tensor].pattern.indices();
            if !indices.iter().any(|index| shape.iter().any(|dim| dim.mentions(index))) {
                self.shapes.insert(tensor, self.computed_dims(tensor, &[]));
            }
        }
    }

    /// The same beside its part for images.
    pub(crate) fn with_vision(self, vision: Option<Self>) -> Self {
        Self { vision: vision.map(Box::new), ..self }
    }

    /// The same checkpoint as the part for images beside the language model: its family is the
    /// table of the tower and what leads from there to the language model. `None` where no table
    /// describes the part, or there is none.
    #[must_use]
    pub fn vision(&self) -> Option<&Self> {
        self.vision.as_deref()
    }

    /// Returns the role of the tensor at this position.
    #[must_use]
    pub fn role(&self, tensor: usize) -> Option<String> {
        match self.canonical(tensor) {
            Some(canonical) => self.family.role(canonical),
            None => self.vision()?.role(tensor),
        }
    }

    /// Returns the form of images in prompts, if the table of the part for images states it.
    #[must_use]
    pub fn image_text(&self) -> Option<ImageText<'_>> {
        let vision = self.vision()?;
        let images = vision.family.file.images.as_ref()?;
        let settings = vision.graph_settings(None)?;
        let size = |option: &str| settings.option("", option, &[])?.as_u64();
        let is = |option: &str| settings.option("", option, &[]) == Some(true.into());
        let token = size("image_token")?;
        Some(ImageText {
            placeholder: &images.placeholder,
            prompt: &images.prompt,
            tile: images.tile.as_deref(),
            alone: images.alone.as_deref().unwrap_or(&images.placeholder),
            token,
            row_break: images.row_break.as_deref(),
            cell: size("image_cell"),
            has_places: is("image_places"),
            sees_prompt: is("image_prompt"),
            joins_rows: is("image_rows"),
            behind: images.behind.as_deref(),
            end: images.end.as_deref().unwrap_or_default(),
        })
    }

    /// Marks the model as one whose family was guessed from the names of the tensors alone.
    pub(crate) fn guessed(self) -> Self {
        Self { is_guessed: true, ..self }
    }

    /// Returns `true` if the family was guessed from the names of the tensors alone.
    #[must_use]
    pub fn is_guessed(&self) -> bool {
        self.is_guessed
    }

    /// Returns `true` if the checkpoint has a configuration.
    #[must_use]
    pub fn has_configuration(&self) -> bool {
        self.dimensions.has_configuration()
    }

    /// Returns the family of the model.
    #[must_use]
    pub fn family(&self) -> &'a Family {
        self.family
    }

    /// Returns the naming of the checkpoint's tensors.
    #[must_use]
    pub fn naming(&self) -> &Naming {
        &self.naming
    }

    /// Returns `true` if a tensor's matrices have one row for each input in this layout.
    ///
    /// Examples are the matrices of GPT-2, and the stacked experts of gpt-oss.
    #[must_use]
    pub fn has_inputs_first(&self, tensor: usize) -> bool {
        let member = self.members.get(tensor).and_then(Option::as_ref);
        member
            .filter(|_| !self.in_gguf_layout)
            .is_some_and(|member| self.family.has_inputs_first(member.tensor))
    }

    /// Returns the layers that can be removed: all layers of a single stack, or the layers of a
    /// decoder.
    ///
    /// Returns `None` for models with several towers or stages, and if the checkpoint has no tensor
    /// of these layers.
    #[must_use]
    pub fn layer_stack(&self) -> Option<LayerStack> {
        let stack = self.family.layer_stack()?;
        self.indices().any(|index| index == stack.index()).then_some(stack)
    }

    /// Returns `true` if the checkpoint has the layers of an encoder and of a decoder.
    #[must_use]
    pub fn has_encoder_and_decoder(&self) -> bool {
        let is_of_encoder =
            |index: &str| index.ends_with("layer") && index != LayerStack::Decoder.index();
        self.layer_stack() == Some(LayerStack::Decoder) && self.indices().any(is_of_encoder)
    }

    /// Indices of the names of all tensors, such as `layer`.
    fn indices(&self) -> impl Iterator<Item = &str> {
        let of = |member: &Member| self.family.tensors[member.tensor].pattern.indices();
        self.members.iter().flatten().flat_map(of).map(String::as_str)
    }

    /// The canonical name of the tensor at this position of the checkpoint.
    #[must_use]
    pub fn canonical(&self, tensor: usize) -> Option<&str> {
        Some(self.member(tensor)?.canonical.as_str())
    }

    /// The canonical name of the tensor at this position, with `#` for the number of its layer:
    /// the tensors that share it have the same place in their layers. `None` for a tensor of no
    /// layer.
    #[must_use]
    pub fn place_in_layer(&self, tensor: usize) -> Option<String> {
        let member = self.member(tensor)?;
        let is_layer = |index: &str| index.ends_with("layer");
        self.family.tensors[member.tensor].pattern.without(&member.canonical, is_layer)
    }

    /// Returns the family's tensor for the checkpoint's tensor at this position.
    pub(crate) fn member(&self, tensor: usize) -> Option<&Member> {
        self.members.get(tensor)?.as_ref()
    }

    /// Returns `true` if the family has experts but the checkpoint has no tensor of an expert.
    pub(crate) fn lacks_experts(&self) -> bool {
        let is_theirs = |member: &Member| member.canonical.contains("experts");
        self.family.indices.contains_key("expert") && !self.members.iter().flatten().any(is_theirs)
    }

    /// Returns `true` if an import added a tensor of this name, which no family has: a filterbank.
    #[must_use]
    pub fn is_auxiliary(&self, name: &str) -> bool {
        self.auxiliary == Some(name)
    }

    /// Statistics that the tensor at this position should have.
    #[must_use]
    pub fn expectation(&self, tensor: usize) -> Option<TensorExpectation> {
        let Some(member) = self.member(tensor) else { return self.vision()?.expectation(tensor) };
        let member = member.tensor;
        let mut expectation =
            self.family.tensors[member].expectation.for_width(self.inputs[tensor]);

        // GGUF has the constant added to every value, so the range of means is shifted there; the
        // family's own files leave the addition to the model.
        if let Some(TensorLayout::Add(constant)) = self.family.layout(member) {
            let constant = f64::from(*constant);
            if self.in_gguf_layout {
                let shifted = |mean: Range| Range::new(mean.low + constant, mean.high + constant);
                expectation.mean = expectation.mean.map(shifted);
            } else {
                expectation.offset = constant;
            }
        }
        Some(expectation)
    }

    /// Returns `true` if a tensor of this name belongs to a part for images or audio.
    ///
    /// The family describes only the language model, and text does not pass through other parts.
    #[must_use]
    pub fn is_of_other_part(&self, name: &str) -> bool {
        self.dimensions.has_other_parts() && is_of_others(name)
    }

    /// Returns the number of tensors that match the family.
    #[must_use]
    pub fn known(&self) -> usize {
        self.members.iter().flatten().count()
    }

    /// Returns the number of values of a placeholder in names, such as `layer`.
    pub(crate) fn index_count(&self, index: &str) -> Option<u64> {
        self.counts.get(index).copied()
    }

    /// A dimension of the family file, such as `hidden` or `vocab`.
    #[must_use]
    pub fn dimension(&self, name: &str) -> Option<u64> {
        self.dimensions.named(name)
    }

    /// Returns the shape that the tensor at this position should have, if known, and its formula:
    /// `[vocab, hidden]`.
    #[must_use]
    pub fn expected_shape(&self, tensor: usize) -> Option<(Shape, String)> {
        if self.member(tensor).is_none() {
            return self.vision()?.expected_shape(tensor);
        }
        let dims = self.expected_dims(tensor)?.into_owned();
        let member = self.members.get(tensor)?.as_ref()?;
        let mut formula = self.family.file.tensors[member.tensor].shape.clone()?;
        if self.in_gguf_layout {
            match self.family.layout(member.tensor) {
                Some(TensorLayout::Transposed) => formula.reverse(),
                Some(TensorLayout::Arranged(arranged)) if arranged.shape.is_some() => {
                    formula.clone_from(&arranged.formula);
                }
                Some(TensorLayout::SkipRows(_)) if !formula.is_empty() => {
                    formula[0].push_str(" minus the rows that GGUF omits");
                }
                Some(TensorLayout::Rows(_)) if !formula.is_empty() => {
                    formula[0].push_str(" with the rows that GGUF adds");
                }
                _ => {}
            }
        }
        Some((dims.into(), format!("[{}]", formula.join(", "))))
    }

    fn expected_dims(&self, tensor: usize) -> Option<Cow<'_, [u64]>> {
        let member = self.members.get(tensor)?.as_ref()?;
        match self.shapes.get(&member.tensor) {
            Some(dims) => dims.as_deref().map(Cow::Borrowed),
            None => {
                let numbers = numbers(&self.family.tensors[member.tensor], member);
                self.computed_dims(member.tensor, &numbers).map(Cow::Owned)
            }
        }
    }

    /// The dimensions of a tensor of the family, in the layout that the checkpoint has.
    fn computed_dims(&self, tensor: usize, numbers: &[(&str, u64)]) -> Option<Vec<u64>> {
        let shape = self.family.tensors[tensor].shape.as_ref()?;
        let dims = shape.iter().map(|dim| self.dimensions.value(dim, numbers)?.as_size());
        let mut dims = dims.collect::<Option<Vec<u64>>>()?;
        if self.in_gguf_layout {
            match (self.family.layout(tensor), dims.first_mut()) {
                (Some(TensorLayout::Transposed), _) => dims.reverse(),
                (Some(TensorLayout::Arranged(arranged)), _) => {
                    if let Some([rows, columns]) = &arranged.shape {
                        dims = vec![self.dimensions.size(rows)?, self.dimensions.size(columns)?];
                    }
                }
                (Some(TensorLayout::SkipRows(skipped)), Some(rows)) => {
                    *rows = rows.checked_sub(self.dimensions.size(skipped)?)?;
                }
                (Some(TensorLayout::Rows(count)), Some(rows)) => {
                    *rows = self.dimensions.size(count)?;
                }
                _ => {}
            }
        }
        Some(dims)
    }

    /// Returns the shape of the tensor with this canonical name in Hugging Face's layout, if known.
    #[must_use]
    pub fn shape_of(&self, canonical: &str) -> Option<Shape> {
        let found = self.family.find_canonical(canonical)?;
        let shape = self.family.tensors[found.tensor].shape.as_ref()?;
        let dims = shape.iter().map(|dim| self.dimensions.value(dim, &found.numbers)?.as_size());
        dims.collect::<Option<Vec<u64>>>().map(Into::into)
    }

    /// Returns the shape of the tensor with this canonical name, if `shape` lacks only outermost
    /// dimensions of 1.
    ///
    /// The result is in Hugging Face's layout. GGML tensors do not store outermost dimensions of 1.
    #[must_use]
    pub fn with_outer_ones(&self, canonical: &str, shape: &Shape) -> Option<Shape> {
        let whole = self.shape_of(canonical)?;
        let is_same = without_outer_ones(whole.dims()) == without_outer_ones(shape.dims());
        (is_same && whole != *shape).then_some(whole)
    }
}

/// Returns `true` if an import copied the values from a GGUF file unchanged.
fn gguf_values(metadata: &Metadata) -> bool {
    let convention = metadata.object("names").and_then(|names| names.get("convention")?.as_str());
    convention == Some(GGUF)
}
