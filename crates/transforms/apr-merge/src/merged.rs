//! The checkpoint that a merge is: computed as it is read.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use apr_core::{
    CheckpointReader, Companion, Container, DType, Error, FileInfo, Format, Metadata, Result,
    Stored, TensorInfo, torch_name,
};
use apr_tensor::cast::cast_float;
use apr_view::Companions;

use crate::elements::{Elements, Input};
use crate::plan::{Making, MergePlanner, Model};
use crate::recipe::{ChatTemplate, Recipe};
use crate::report::{MergeReport, MergedModel, Meter, Sums, changes};
use crate::rules::{Kernel, Rule};
use crate::vocabulary::Changed;
use crate::{beside, chat, compatible, vocabulary};

/// Options of a merge.
pub struct MergeOptions<'a> {
    /// `true` to copy tensors that do not fit from the base or first model, and to accept values
    /// that are not finite.
    pub relaxed: bool,
    /// Function that is called while tensors are measured; an error ends the merge.
    pub poll: Arc<dyn Fn() -> Result<()> + Send + Sync + 'a>,
}

impl Default for MergeOptions<'_> {
    fn default() -> Self {
        Self { relaxed: false, poll: Arc::new(|| Ok(())) }
    }
}

/// Models, merged.
///
/// ```
/// use std::sync::Arc;
///
/// use apr_merge::{MergeOptions, Merged, Method, Model, Recipe, Source};
/// use apr_registry::{CheckpointReader, Limits};
///
/// let file = |value: f32| {
///     let header = br#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
///     let mut file = (header.len() as u64).to_le_bytes().to_vec();
///     file.extend_from_slice(header);
///     file.extend_from_slice(&value.to_le_bytes());
///     file
/// };
/// let mut models = Vec::new();
/// for (name, value) in [("a", 1.0), ("b", 3.0)] {
///     let reader = apr_registry::open(file(value), "model.safetensors", &Limits::default())?;
///     models.push(Model { name: name.into(), reader: Arc::from(reader) });
/// }
/// let sources = ["a", "b"].map(|model| Source { model: model.into(), ..Source::default() });
/// let recipe = Recipe::new(Method::Average, sources.into());
/// let merged = Merged::plan(&recipe, &models, &MergeOptions::default())?;
/// let mut bytes = [0; 4];
/// merged.read_tensor(0, 0, &mut bytes)?;
/// assert_eq!(f32::from_le_bytes(bytes), 2.0);
/// # Ok::<(), apr_core::Error>(())
/// ```
pub struct Merged<'a> {
    recipe: Recipe,
    models: Vec<Model<'a>>,
    main: Arc<dyn CheckpointReader + 'a>,
    main_name: String,
    tensors: Vec<TensorInfo>,
    made: Vec<Made<'a>>,
    metadata: Metadata,
    files: Vec<FileInfo>,
    /// The first file of each model among them.
    first_files: HashMap<String, usize>,
    companions: Companions,
    /// Tensors that can't be merged and are the same in all models.
    identical: usize,
    warnings: Vec<String>,
}

/// A tensor of the result.
enum Made<'a> {
    Copied(Input<'a>),
    Merged(Box<Computed<'a>>),
}

/// A tensor that is computed.
struct Computed<'a> {
    rule: Rule,
    elements: Elements<'a>,
    /// The dtype of the result.
    out: DType,
    /// The input that the result is compared with.
    compared: usize,
    kernel: OnceLock<Result<Box<dyn Kernel>>>,
    meter: Meter,
}

impl<'a> Merged<'a> {
    /// Plans a merge of models that are open, by the names that the recipe has for them. Of their
    /// tensors, only those that can't be merged are read: they must be the same in all models.
    ///
    /// # Errors
    /// E001 with the first thing that does not fit: a parameter, tensor, shape or configuration;
    /// what reading says.
    pub fn plan(recipe: &Recipe, models: &[Model<'a>], options: &MergeOptions<'a>) -> Result<Self> {
        let mut warnings = compatible::check(recipe, models, options.relaxed)?;
        let vocabulary = vocabulary::align(recipe, models)?;
        warnings.extend(vocabulary.warnings);
        let models = &vocabulary.models;
        let plan = MergePlanner::new(recipe, models, options).plan()?;
        warnings.extend(plan.warnings);
        let main_model = &models[plan.main];
        let main = Arc::clone(&main_model.reader);
        let mut tensors = Vec::with_capacity(plan.tensors.len());
        let mut made = Vec::with_capacity(plan.tensors.len());
        for (info, making) in plan.tensors {
            made.push(match making {
                Making::Copied(input) => Made::Copied(input),
                Making::Merged { rule, inputs, dtype } => {
                    let compared = rule.base.unwrap_or_else(|| {
                        let is_main = |input: &Input<'_>| *input.model == *main_model.name;
                        inputs.iter().position(is_main).unwrap_or_default()
                    });
                    let elements = Elements {
                        inputs,
                        shape: info.shape.clone(),
                        dtype,
                        finite: !options.relaxed,
                        poll: Arc::clone(&options.poll),
                    };
                    let (kernel, meter) = (OnceLock::new(), Meter::default());
                    let out = info.dtype;
                    Made::Merged(Box::new(Computed {
                        rule,
                        elements,
                        out,
                        compared,
                        kernel,
                        meter,
                    }))
                }
            });
            tensors.push(info);
        }
        // Only of those that have a part in it: earlier merges bring all files of theirs.
        let named = recipe.models();
        let (mut files, mut first_files) = (Vec::new(), HashMap::new());
        for model in models.iter().filter(|model| named.contains(&model.name.as_str())) {
            first_files.insert(model.name.clone(), files.len());
            files.extend(model.reader.files().iter().cloned());
        }
        warnings.extend(main.warnings().iter().cloned());
        let mut merged = Self {
            recipe: recipe.clone(),
            models: models.clone(),
            main_name: main_model.name.clone(),
            metadata: main.metadata().clone(),
            companions: Companions::of(&*main),
            main,
            tensors,
            made,
            files,
            first_files,
            identical: plan.identical,
            warnings,
        };
        merged.adapt(plan.layers.as_deref(), vocabulary.changed.as_ref())?;
        if let Some(template) = &recipe.chat_template {
            merged.set_chat_template(template)?;
        }
        Ok(merged)
    }

    /// Fits configuration and metadata to the result.
    fn adapt(&mut self, layers: Option<&[u64]>, vocabulary: Option<&Changed>) -> Result<()> {
        let mut dtypes = self.tensors.iter().map(|info| info.dtype);
        let dtype = dtypes.find(|&dtype| torch_name(dtype).is_some());
        if let Some(bytes) = self.companion(beside::CONFIG)?
            && let Some(bytes) = beside::configuration(&bytes, layers, dtype, vocabulary)
        {
            self.companions.put(beside::CONFIG, bytes);
        }
        beside::fit_metadata(&mut self.metadata, layers, vocabulary);
        let Some(vocabulary) = vocabulary else { return Ok(()) };
        if let Some(bytes) = self.companion(beside::GENERATION)?
            && let Some(bytes) = beside::configuration(&bytes, None, None, Some(vocabulary))
        {
            self.companions.put(beside::GENERATION, bytes);
        }
        for (name, bytes) in &vocabulary.files {
            match bytes {
                Some(bytes) => self.companions.put(name, bytes.clone()),
                None => self.companions.keep(|other| other != name),
            }
        }
        Ok(())
    }

    /// Gives the tokenizer a chat template.
    fn set_chat_template(&mut self, template: &ChatTemplate) -> Result<()> {
        let text = match template {
            ChatTemplate::Text(text) => text.clone(),
            ChatTemplate::Auto => match chat::most_frequent(&self.models)? {
                Some(text) => text,
                None => {
                    let message = "the result does not have a chat template, because the models \
                                   do not have one";
                    self.warnings.push(message.to_owned());
                    return Ok(());
                }
            },
        };
        let config = self.companion(chat::CONFIG)?;
        match config.and_then(|bytes| chat::with_template(&bytes, &text)) {
            Some(bytes) => {
                // It would go before the configuration's.
                self.companions.keep(|name| name != chat::FILE);
                self.companions.put(chat::CONFIG, bytes);
            }
            None => self.companions.put(chat::FILE, text.into_bytes()),
        }
        Ok(())
    }

    /// The bytes of a companion, as far as it was fitted.
    fn companion(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.companions.read_named(&*self.main, name)
    }

    /// Replaces the main model's card by a model card that describes the merge.
    ///
    /// # Errors
    /// E007 and E008 when the main model's card can't be read.
    pub fn with_card(mut self, title: &str) -> Result<Self> {
        let card = self.companion(beside::CARD)?;
        let names: Vec<&str> = self.models.iter().map(|model| model.name.as_str()).collect();
        let bytes = beside::card(&self.recipe, &names, title, card.as_deref());
        self.companions.put(beside::CARD, bytes.into_bytes());
        Ok(self)
    }

    /// Adds a record of the merge to the metadata.
    ///
    /// The record is stored under the key `merge` of the native container, or as text in the header
    /// of a safetensors file.
    #[must_use]
    pub fn with_record(mut self, format: &'static Format) -> Self {
        let models: Vec<MergedModel> = self.merged_models();
        beside::record(&mut self.metadata, &self.recipe, &models, format);
        self
    }

    fn merged_models(&self) -> Vec<MergedModel> {
        let base = self.recipe.base.as_deref();
        let each = self
            .models
            .iter()
            .flat_map(|model| std::iter::repeat_n(model, self.recipe.times(&model.name)));
        let models = each.map(|model| MergedModel {
            name: model.name.clone(),
            bytes: model.reader.files().iter().map(|file| file.len).fold(0, u64::saturating_add),
            base: base == Some(model.name.as_str()),
        });
        models.collect()
    }

    /// Returns the report on the merge, with the change of the tensors that were read.
    #[must_use]
    pub fn report(&self) -> MergeReport {
        let measured = self.tensors.iter().zip(&self.made).filter_map(|(info, made)| match made {
            Made::Merged(computed) => Some((info.name.as_str(), &computed.meter)),
            Made::Copied(_) => None,
        });
        let merged = self.made.iter().filter(|made| matches!(made, Made::Merged(_))).count();
        let (tensors, worst, total) = changes(measured);
        MergeReport {
            method: self.recipe.method,
            models: self.merged_models(),
            compared_with: self.main_name.clone(),
            total,
            merged,
            copied: self.made.len() - merged,
            identical: self.identical,
            tensors,
            worst,
        }
    }

    /// The first file of a model among [`files`](CheckpointReader::files).
    fn first_file(&self, input: &Input<'_>) -> usize {
        self.first_files.get(&*input.model).copied().unwrap_or_default()
    }
}

impl Computed<'_> {
    fn kernel(&self) -> Result<&dyn Kernel> {
        let prepared = self.kernel.get_or_init(|| self.rule.prepare(&self.elements));
        match prepared {
            Ok(kernel) => Ok(&**kernel),
            Err(error) => Err(error.clone()),
        }
    }

    /// Calls `take` with the bytes of a range of elements, a block at a time.
    fn compute(&self, range: std::ops::Range<u64>, mut take: impl FnMut(&[u8])) -> Result<()> {
        let kernel = self.kernel()?;
        let (count, row) = (self.elements.count(), self.elements.row_len());
        let step = self.elements.step(kernel.by_row())?;
        let (mut values, mut wide, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = range.start;
        while start < range.end {
            // Blocks of whole rows, where the method needs them.
            let first = if kernel.by_row() { start / row * row } else { start };
            let end = (first + step).min(count);
            let last = end.min(range.end);
            let end = if kernel.by_row() { last.next_multiple_of(row).min(count) } else { last };
            let block = self.elements.read(first..end)?;
            values.clear();
            kernel.apply(&block, &mut values);
            let skip = usize::try_from(start - first).unwrap_or_default();
            let take_count = usize::try_from(last - start).unwrap_or_default();
            let wanted = skip..skip + take_count;
            let before =
                block.inputs.get(self.compared).and_then(|input| input.get(wanted.clone()));
            let (Some(before), Some(after)) = (before, values.get(wanted)) else {
                return Err(Error::corrupt("a block is shorter than its tensor"));
            };
            self.meter.add(start..last, count, Sums::of(before, after));
            wide.clear();
            wide.extend(after.iter().flat_map(|value| value.to_le_bytes()));
            if self.out == DType::F64 {
                take(&wide);
            } else {
                cast_float(DType::F64, self.out, &wide, &mut bytes);
                take(&bytes);
            }
            start = last;
        }
        Ok(())
    }

    fn read(&self, info: &TensorInfo, offset: u64, buf: &mut [u8]) -> Result<()> {
        let width = self.out.block_bytes();
        let end = offset
            .checked_add(buf.len() as u64)
            .filter(|end| self.elements.count().checked_mul(width).is_some_and(|len| *end <= len));
        let Some(end) = end else {
            return Err(Error::corrupt("the read ends past the tensor").at(offset));
        };
        let first = offset / width;
        let mut skip = usize::try_from(offset - first * width).unwrap_or_default();
        let mut at = 0;
        self.compute(first..end.div_ceil(width), |bytes| {
            let bytes = bytes.get(skip..).unwrap_or_default();
            skip = 0;
            let len = bytes.len().min(buf.len() - at);
            buf[at..at + len].copy_from_slice(&bytes[..len]);
            at += len;
        })
        .map_err(|error| error.for_tensor(&info.name))
    }
}

impl CheckpointReader for Merged<'_> {
    fn format(&self) -> &'static Format {
        self.main.format()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let inputs = match &self.made[tensor] {
            Made::Copied(input) => std::slice::from_ref(input),
            Made::Merged(computed) => &computed.elements.inputs[..],
        };
        let inputs = inputs.iter().map(|input| {
            let reader: &dyn CheckpointReader = &*input.reader;
            (reader, input.tensor, self.first_file(input))
        });
        let stored = Stored::derived_from_all(inputs);
        match &self.made[tensor] {
            Made::Merged(computed) => {
                let main = &computed.elements.inputs[computed.compared];
                stored.converted_from(&*main.reader, main.tensor, true)
            }
            Made::Copied(_) => stored,
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        match &self.made[tensor] {
            Made::Copied(input) => input.reader.read_tensor(input.tensor, offset, buf),
            Made::Merged(computed) => computed.read(&self.tensors[tensor], offset, buf),
        }
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        match &self.made[tensor] {
            Made::Copied(input) => input.reader.tensor_slice(input.tensor),
            Made::Merged(_) => None,
        }
    }

    fn container(&self) -> Container<'_> {
        self.main.container().altered()
    }

    fn files(&self) -> &[FileInfo] {
        &self.files
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(&*self.main, companion)
    }

    fn left_out(&self) -> &[String] {
        self.main.left_out()
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
