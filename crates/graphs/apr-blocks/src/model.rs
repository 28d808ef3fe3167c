//! What a graph is built from: a family's settings and the tensors that the checkpoint has.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use apr_arch::{FamilyModel, GraphSettings};
use apr_core::{Error, Result, TensorInfo};
use apr_graph::Function;
use serde_json::Value as Json;

use crate::LatentCache;

/// Maximum number of layers in a graph; the deepest models have some 130.
const MAX_LAYERS: u64 = 4096;

/// A checkpoint of a family, while its graphs are built.
pub(crate) struct Model<'m> {
    pub(crate) settings: GraphSettings<'m>,
    /// Version of ONNX's operators that blocks are written in.
    pub(crate) opset: i64,
    /// Version that they are converted to.
    pub(crate) wanted_opset: i64,
    /// Dimensions of the tensors, by canonical name.
    tensors: BTreeMap<&'m str, Vec<u64>>,
    /// Heads that are not tied to the token table, even if the configuration declares it.
    untied: &'m [String],
    pub(crate) latent_cache: LatentCache,
    pub(crate) used: RefCell<BTreeSet<String>>,
    /// Functions of the graph that is being written.
    pub(crate) functions: RefCell<Vec<Function>>,
}

impl<'m> Model<'m> {
    /// `opsets` are the version that blocks are written in, and the one that they are converted to.
    pub(crate) fn new(
        settings: GraphSettings<'m>,
        tensors: &[TensorInfo],
        opsets: (i64, i64),
    ) -> Self {
        let family = settings.model();
        let dims = |name: &str, info: &TensorInfo| {
            // Shapes of GGUF may be others; the graph has Hugging Face's.
            let expected = family.is_in_gguf_layout().then(|| family.shape_of(name)).flatten();
            expected.as_ref().unwrap_or(&info.shape).dims().to_vec()
        };
        let named = tensors.iter().enumerate().filter_map(|(position, info)| {
            // What the configuration or the table excludes is not computed with, and remains
            // unused.
            let is_out = family.excluded(position).is_some() || settings.is_never_used(position);
            let name = family.canonical(position).filter(|_| !is_out)?;
            Some((name, dims(name, info)))
        });
        let tensors = named.collect();
        Self {
            settings,
            opset: opsets.0,
            wanted_opset: opsets.1,
            tensors,
            untied: &[],
            latent_cache: LatentCache::default(),
            used: RefCell::new(BTreeSet::new()),
            functions: RefCell::new(Vec::new()),
        }
    }

    /// Sets the heads that are used although the configuration ties them.
    pub(crate) fn with_untied(self, untied: &'m [String]) -> Self {
        Self { untied, ..self }
    }

    /// Sets the form of the cache of multi-head latent attention.
    pub(crate) fn with_latent_cache(self, latent_cache: LatentCache) -> Self {
        Self { latent_cache, ..self }
    }

    /// Returns `true` if the head is used although the configuration ties it.
    pub(crate) fn is_untied(&self, head: &str) -> bool {
        self.untied.iter().any(|name| name == head)
    }

    pub(crate) fn family(&self) -> &'m FamilyModel<'m> {
        self.settings.model()
    }

    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }

    /// Dimensions of a tensor that the graph uses.
    ///
    /// # Errors
    /// E001 when the checkpoint lacks it.
    pub(crate) fn using(&self, tensor: &str) -> Result<Vec<u64>> {
        let dims = self.tensors.get(tensor).ok_or_else(|| {
            Error::format(
                "the checkpoint lacks this tensor, and the model can't be computed without it",
            )
            .for_tensor(tensor)
        })?;
        self.used.borrow_mut().insert(tensor.to_owned());
        Ok(dims.clone())
    }

    /// Canonical names of the tensors that graphs use so far.
    pub(crate) fn used(&self) -> BTreeSet<String> {
        self.used.borrow().clone()
    }

    /// A place in a stack of layers, or outside of its layers.
    pub(crate) fn place<'p>(&'p self, stack: &'p str) -> BlockPosition<'p> {
        BlockPosition { model: self, stack, stage: None, layer: None }
    }

    /// Error about an option of the family's table.
    fn option_error(&self, stack: &str, option: &str, what: &str) -> Error {
        let family = self.family().family().name();
        let stack = if stack.is_empty() { String::new() } else { format!(" of the {stack}") };
        Error::format(format!("the graph of family {family}: option '{option}'{stack} {what}"))
    }
}

/// Position of a block: its stack, its stage if the stack has stages, and its layer.
#[derive(Clone, Copy)]
pub(crate) struct BlockPosition<'p> {
    pub(crate) model: &'p Model<'p>,
    pub(crate) stack: &'p str,
    stage: Option<u64>,
    layer: Option<u64>,
}

impl<'p> BlockPosition<'p> {
    /// Returns the position in this stage.
    pub(crate) fn stage(self, stage: u64) -> Self {
        Self { stage: Some(stage), ..self }
    }

    /// Returns the position in this layer.
    pub(crate) fn layer(self, layer: u64) -> Self {
        Self { layer: Some(layer), ..self }
    }

    /// Returns the values of the placeholders at this position.
    fn indices(self) -> Vec<(&'p str, u64)> {
        let index = self.model.settings.layer_index(self.stack);
        let stage = self.stage.map(|stage| ("stage", stage));

        // Expressions may say `layer`, whatever the stack calls its placeholder.
        let layer = self.layer.map(|layer| [(index, layer), ("layer", layer)]);
        stage.into_iter().chain(layer.into_iter().flatten()).collect()
    }

    fn json(self, option: &str) -> Option<Json> {
        self.model.settings.option(self.stack, option, &self.indices())
    }

    /// Returns `true` if the family's table has the option, with or without a value.
    pub(crate) fn states(self, option: &str) -> bool {
        self.model.settings.has_option(self.stack, option)
    }

    fn error(self, option: &str, what: &str) -> Error {
        self.model.option_error(self.stack, option, what)
    }

    fn required<T>(self, option: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| {
            let what = match self.model.family().has_configuration() {
                true => "can't be computed from the configuration",
                false => {
                    "can't be computed: the weights have no configuration, such as the config.json \
                     of their folder"
                }
            };
            self.error(option, what)
        })
    }

    /// Returns an option that is a number, or `None` if it has no value.
    pub(crate) fn number_or_none(self, option: &str) -> Result<Option<f64>> {
        let Some(json) = self.json(option) else { return Ok(None) };
        json.as_f64()
            .map(Some)
            .ok_or_else(|| self.error(option, &format!("is {json}, and not a number")))
    }

    pub(crate) fn number(self, option: &str) -> Result<f64> {
        self.required(option, self.number_or_none(option)?)
    }

    /// Returns an option that is a non-negative integer, or `None` if it has no value.
    pub(crate) fn size_or_none(self, option: &str) -> Result<Option<u64>> {
        let Some(json) = self.json(option) else { return Ok(None) };
        // Sizes beyond this make no tensor that anybody has, and would overflow on the way to one.
        let size = json.as_u64().filter(|size| *size < 1 << 40);
        size.map(Some).ok_or_else(|| self.error(option, &format!("is {json}, and not a size")))
    }

    pub(crate) fn size(self, option: &str) -> Result<u64> {
        self.required(option, self.size_or_none(option)?)
    }

    /// Returns option `head`, which the task requires.
    ///
    /// # Errors
    /// E003 when the family has none for the task.
    pub(crate) fn required_head(self) -> Result<String> {
        let lacks = || crate::task::lacks(self.model.family(), self.model.settings.task());
        self.text_or_none("head")?.ok_or_else(lacks)
    }

    /// Returns an option that is a text, or `None` if it has no value.
    pub(crate) fn text_or_none(self, option: &str) -> Result<Option<String>> {
        match self.json(option) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(json) => Err(self.error(option, &format!("is {json}, and not a text"))),
        }
    }

    pub(crate) fn text(self, option: &str) -> Result<String> {
        self.required(option, self.text_or_none(option)?)
    }

    /// Returns an option that is a list of numbers, or `None` if it has no value.
    pub(crate) fn numbers(self, option: &str) -> Result<Option<Vec<f64>>> {
        let Some(json) = self.json(option) else { return Ok(None) };
        let numbers = json.as_array().and_then(|items| items.iter().map(Json::as_f64).collect());
        let what = || self.error(option, &format!("is {json}, and not a list of numbers"));
        numbers.map(Some).ok_or_else(what)
    }

    /// Returns a boolean option; `false` if it has no value.
    pub(crate) fn truth(self, option: &str) -> Result<bool> {
        self.truth_or(option, false)
    }

    pub(crate) fn truth_or(self, option: &str, otherwise: bool) -> Result<bool> {
        match self.json(option) {
            None => Ok(otherwise),
            Some(Json::Bool(truth)) => Ok(truth),
            Some(json) => Err(self.error(option, &format!("is {json}, and not true or false"))),
        }
    }

    /// Sizes in a row.
    pub(crate) fn sizes(self, option: &str) -> Result<Vec<u64>> {
        let json = self.required(option, self.json(option))?;
        let sizes = json.as_array().and_then(|items| items.iter().map(Json::as_u64).collect());
        self.required(option, sizes)
    }

    /// Returns the error for an option with a value that no block supports.
    pub(crate) fn unknown(self, option: &str, value: &str) -> Error {
        Error::version(
            self.error(option, &format!("is '{value}', which no block supports")).message(),
        )
    }

    /// Returns the name of the function of a layer.
    pub(crate) fn function_name(self) -> String {
        let mut letters = self.stack.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        format!("{}{}Layer", first.map_or_else(String::new, String::from), letters.as_str())
    }

    /// Returns the number of layers of the stack.
    pub(crate) fn layers(self) -> Result<u64> {
        let layers = self.size("layers")?;
        if layers > MAX_LAYERS {
            return Err(Error::memory(format!(
                "the configuration has {layers} layers, and a graph has {MAX_LAYERS} at most"
            )));
        }
        Ok(layers)
    }

    /// Returns the canonical name of the tensor or module for a part, or `None` if the family has
    /// none.
    pub(crate) fn name(self, part: &str) -> Option<String> {
        self.numbered(part, &[])
    }

    /// Same as [`name`](Self::name), with numbers for placeholders other than stage and layer.
    pub(crate) fn numbered(self, part: &str, more: &[(&str, u64)]) -> Option<String> {
        let mut numbers = [more, &self.indices()].concat();

        // Layers that share their weights with others say which ones they have.
        let shared = ["group", "inner"].into_iter().filter(|_| self.layer.is_some());
        numbers.extend(shared.filter_map(|name| Some((name, self.json(name)?.as_u64()?))));
        let names = self.model.settings.weights(self.stack, part, &numbers);
        let is_there =
            |name: &&String| self.model.has(name) || self.model.has(&format!("{name}.weight"));

        // Where none is there, the first is named as missing.
        names.iter().find(is_there).or(names.first()).cloned()
    }

    /// Returns the module for a part, or `None` if the checkpoint does not have its weight.
    pub(crate) fn module_or_none(self, part: &str) -> Option<String> {
        self.name(part).filter(|name| self.model.has(&format!("{name}.weight")))
    }

    /// The module that plays a part.
    ///
    /// # Errors
    /// E001 when the family's table names none.
    pub(crate) fn module(self, part: &str) -> Result<String> {
        self.name(part).ok_or_else(|| {
            let family = self.model.family().family().name();
            Error::format(format!(
                "the graph of family {family}: [graph] does not name the weight of '{part}'"
            ))
        })
    }

    /// Returns the tensor for a part, or `None` if the checkpoint does not have it.
    pub(crate) fn tensor_or_none(self, part: &str) -> Option<String> {
        self.name(part).filter(|name| self.model.has(name))
    }
}
