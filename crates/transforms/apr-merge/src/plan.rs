//! Which tensors a merge has, and what each is made of.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Error, Escaped, Result, TensorInfo};
use apr_view::check_decodable;

use crate::elements::Input;
use crate::grid::{promoted, resulting, working};
use crate::layers::{in_layer, is_before, only_stack, place, stacks};
use crate::merged::MergeOptions;
use crate::method::{Base, Method};
use crate::parameters::{Parameter, SCALE, Scope};
use crate::recipe::{Parts, Recipe, Settings, Slice, Source};
use crate::rules::Rule;

/// A model that takes part, opened.
#[derive(Clone)]
pub struct Model<'a> {
    /// Name of the model in the recipe.
    pub name: String,
    /// Reader of the tensors, under the names that all models share.
    pub reader: Arc<dyn CheckpointReader + 'a>,
}

/// Content of a tensor of the result.
pub(crate) enum Making<'a> {
    /// Tensor of an input.
    Copied(Input<'a>),
    /// Tensor merged from several inputs.
    Merged { rule: Rule, inputs: Vec<Input<'a>>, dtype: DType },
}

/// The tensors of a merge.
pub(crate) struct MergePlan<'a> {
    pub(crate) tensors: Vec<(TensorInfo, Making<'a>)>,
    /// The model that gives what is beside the tensors.
    pub(crate) main: usize,
    /// Source layers in the main model for each layer of the result, if the layers are rearranged.
    pub(crate) layers: Option<Vec<u64>>,
    pub(crate) warnings: Vec<String>,
    /// Tensors that can't be merged, and need not be: all models have the same elements.
    pub(crate) identical: usize,
}

/// A model among others, with its tensors by their names.
struct Opened<'a> {
    model: Model<'a>,
    label: Arc<str>,
    positions: HashMap<String, usize>,
}

/// Sources of a slice's parameters.
struct Levels<'r> {
    /// Parameters of each input.
    sources: Vec<&'r Settings>,
    slice: Option<&'r Settings>,
    merge: &'r Settings,
}

/// Inputs of a part of the merge.
struct Inputs<'r> {
    /// Positions in the models.
    models: Vec<usize>,
    base: Option<usize>,
    levels: Levels<'r>,
}

pub(crate) struct MergePlanner<'r, 'a> {
    recipe: &'r Recipe,
    models: Vec<Opened<'a>>,
    options: &'r MergeOptions<'a>,
    copied: Vec<String>,
    identical: usize,
    warnings: Vec<String>,
}

impl<'r, 'a> MergePlanner<'r, 'a> {
    pub(crate) fn new(
        recipe: &'r Recipe,
        models: &[Model<'a>],
        options: &'r MergeOptions<'a>,
    ) -> Self {
        let models = models.iter().map(|model| Opened {
            model: model.clone(),
            label: Arc::from(model.name.as_str()),
            positions: model
                .reader
                .tensors()
                .iter()
                .enumerate()
                .map(|(at, info)| (info.name.clone(), at))
                .collect(),
        });
        let (copied, warnings) = (Vec::new(), Vec::new());
        Self { recipe, models: models.collect(), options, copied, identical: 0, warnings }
    }

    /// Plans all tensors.
    ///
    /// # Errors
    /// E001 with the first thing that does not fit, E003 for weights in codes that nothing decodes.
    pub(crate) fn plan(mut self) -> Result<MergePlan<'a>> {
        for Opened { model, label, .. } in &self.models {
            check_decodable(&*model.reader).map_err(|error| error.in_file(&**label))?;
        }
        let recipe = self.recipe;
        let (tensors, main, layers) = match &recipe.parts {
            Parts::Models(sources) => {
                let inputs = self.inputs(sources, None, None)?;
                let main = inputs.base.map_or(inputs.models[0], |base| inputs.models[base]);
                (self.whole(&inputs, main)?, main, None)
            }
            Parts::Slices(slices) => {
                let first = slices.first().and_then(|slice| slice.sources.first());
                let first = first.ok_or_else(|| Error::format("missing slices"))?;
                let main = match &recipe.base {
                    Some(base) => self.position(base)?,
                    None => self.position(&first.model)?,
                };
                let tensors = self.sliced(slices)?;
                let layers = slices.iter().flat_map(|slice| {
                    slice.sources.first().map(|source| source.layers.clone()).unwrap_or_default()
                });
                (tensors, main, Some(layers.collect()))
            }
        };
        let mut seen = HashSet::new();
        if let Some((twice, _)) = tensors.iter().find(|(info, _)| !seen.insert(&info.name)) {
            return Err(Error::format("two tensors have this name").for_tensor(&twice.name));
        }
        if !self.copied.is_empty() {
            let (count, first) = (self.copied.len(), Escaped::short(&self.copied[0]).to_string());
            let rest = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            let name = &self.models[main].model.name;
            self.warnings.push(format!("copied from {name}: {first}{rest}"));
        }
        let (warnings, identical) = (self.warnings, self.identical);
        Ok(MergePlan { tensors, main, layers, warnings, identical })
    }

    fn position(&self, name: &str) -> Result<usize> {
        let found = self.models.iter().position(|opened| opened.model.name == name);
        found
            .ok_or_else(|| Error::format(format!("no model '{}' was opened", Escaped::short(name))))
    }

    /// The inputs that sources name, with the base.
    fn inputs<'s>(
        &self,
        sources: &'s [Source],
        slice: Option<&'s Slice>,
        place: Option<usize>,
    ) -> Result<Inputs<'s>>
    where
        'r: 's,
    {
        static NONE: Settings = Settings::new();

        let method = self.recipe.method;
        let in_slice = || place.map(|at| format!(" in slice {at}")).unwrap_or_default();
        let mut models = sources
            .iter()
            .map(|source| self.position(&source.model))
            .collect::<Result<Vec<usize>>>()?;
        let mut settings: Vec<&Settings> = sources.iter().map(|source| &source.settings).collect();
        let base = slice.and_then(|slice| slice.base.as_ref()).or(self.recipe.base.as_ref());
        let base = match (method.base(), base) {
            (Base::Required | Base::OfTwo, None) => {
                return Err(Error::format(format!(
                    "{method} needs a base model: name it as base_model in the configuration"
                )));
            }
            (Base::Ignored, _) | (_, None) => None,
            (_, Some(base)) => {
                let model = self.position(base)?;
                match models.iter().position(|&input| input == model) {
                    Some(input) => Some(input),
                    None if slice.is_some() => {
                        return Err(Error::format(format!(
                            "the base model is not among the sources{}",
                            in_slice()
                        )));
                    }
                    None => {
                        models.insert(0, model);
                        settings.insert(0, &NONE);
                        Some(0)
                    }
                }
            }
        };
        let (least, most) = method.inputs(base.is_some());
        if models.len() < least || models.len() > most {
            let wanted = match (least, most) {
                (least, most) if least == most => format!("{least}"),
                (least, _) => format!("at least {least}"),
            };
            let with_base = if base.is_some() { " with the base" } else { "" };
            return Err(Error::format(format!(
                "{method} takes {wanted} models{with_base}, not {}{}",
                models.len(),
                in_slice()
            )));
        }
        let levels = Levels {
            sources: settings,
            slice: slice.map(|slice| &slice.settings),
            merge: &self.recipe.settings,
        };
        levels.check(method)?;
        Ok(Inputs { models, base, levels })
    }

    /// A merge of whole models: the tensors of the main one.
    fn whole(&mut self, inputs: &Inputs<'_>, main: usize) -> Result<Vec<(TensorInfo, Making<'a>)>> {
        let reader = Arc::clone(&self.models[main].model.reader);
        self.check_names(inputs, main)?;
        let counts: BTreeMap<String, u64> =
            stacks(reader.tensors().iter().map(|info| info.name.as_str()))
                .into_iter()
                .map(|(stack, count)| (stack.to_owned(), count))
                .collect();
        reader
            .tensors()
            .iter()
            .map(|info| {
                let place = in_layer(&info.name).map_or(0.0, |found| {
                    place(found.layer, counts.get(found.stack).copied().unwrap_or_default())
                });
                let names = vec![info.name.clone(); inputs.models.len()];
                self.tensor(&info.name, &names, inputs, main, place)
            })
            .collect()
    }

    /// Tensors that the main model does not have.
    fn check_names(&mut self, inputs: &Inputs<'_>, main: usize) -> Result<()> {
        for &input in &inputs.models {
            let (other, main) = (&self.models[input], &self.models[main]);
            let auxiliary = other.model.reader.metadata().auxiliary_tensor();
            let more = other.model.reader.tensors().iter().find(|info| {
                !main.positions.contains_key(&info.name) && auxiliary != Some(info.name.as_str())
            });
            let Some(more) = more else { continue };
            let message = format!("it is missing in {}", main.label);
            if !self.options.relaxed {
                return Err(Error::format(message).for_tensor(&more.name).in_file(&*other.label));
            }
            let name = Escaped::short(&more.name).to_string();
            self.warnings.push(format!("{}: '{name}' is left out: {message}", other.label));
        }
        Ok(())
    }

    /// A merge of slices.
    fn sliced(&mut self, slices: &'r [Slice]) -> Result<Vec<(TensorInfo, Making<'a>)>> {
        let mut tensors = Vec::new();
        let mut next = 0;
        let (last, mut after) = (slices.len().saturating_sub(1), Vec::new());
        for (at, slice) in slices.iter().enumerate() {
            let inputs = self.inputs(&slice.sources, Some(slice), Some(at))?;
            let count = self.layers_of(slice, at)?;
            let main = inputs.models[0];
            let reader = Arc::clone(&self.models[main].model.reader);
            let first = &slice.sources[0].layers;
            for info in reader.tensors() {
                match in_layer(&info.name) {
                    Some(found) if first.contains(&found.layer) => {
                        let offset = found.layer - first.start;
                        let name = format!("{}.{}{}", found.stack, next + offset, found.rest);
                        let of = |source: &Source| {
                            let layer = source.layers.start + offset;
                            format!("{}.{layer}{}", found.stack, found.rest)
                        };
                        let names: Vec<String> = slice.sources.iter().map(of).collect();
                        let place = place(offset, count);
                        tensors.push(self.tensor(&name, &names, &inputs, main, place)?);
                    }
                    Some(_) => {}
                    None => {
                        let before = is_before(&info.name);
                        let names = vec![info.name.clone(); slice.sources.len()];
                        if before && at == 0 {
                            tensors.push(self.tensor(&info.name, &names, &inputs, main, 0.0)?);
                        } else if !before && at == last {
                            after.push(self.tensor(&info.name, &names, &inputs, main, 0.0)?);
                        }
                    }
                }
            }
            next += count;
        }
        tensors.extend(after);
        Ok(tensors)
    }

    /// The number of layers of a slice, of which every source has as many.
    fn layers_of(&self, slice: &Slice, at: usize) -> Result<u64> {
        let len = |source: &Source| source.layers.end - source.layers.start;
        let count = slice.sources.first().map(len).unwrap_or_default();
        let mut stack = None;
        for source in &slice.sources {
            let opened = &self.models[self.position(&source.model)?];
            let names = opened.model.reader.tensors().iter().map(|info| info.name.as_str());
            let (found, layers) = only_stack(names, &opened.model.name)?;
            if *stack.get_or_insert(found.to_owned()) != found {
                let found = Escaped::short(found);
                return Err(Error::format(format!("its layers are called '{found}'"))
                    .in_file(&*opened.label));
            }
            if source.layers.end > layers {
                let (first, end) = (source.layers.start, source.layers.end);
                return Err(Error::format(format!(
                    "slice {at} takes layers {first} to {end}, but there are {layers}"
                ))
                .in_file(&*opened.label));
            }
            if len(source) != count {
                return Err(Error::format(format!(
                    "slice {at} has {count} layers of one model and {} of {}",
                    len(source),
                    opened.label
                )));
            }
        }
        Ok(count)
    }

    /// A tensor of the result.
    fn tensor(
        &mut self,
        name: &str,
        names: &[String],
        inputs: &Inputs<'_>,
        main: usize,
        place: f64,
    ) -> Result<(TensorInfo, Making<'a>)> {
        let method = self.recipe.method;
        let main_input = inputs.models.iter().position(|&input| input == main).unwrap_or_default();
        let copied = |this: &Self| this.input(main, &names[main_input]);
        let source = copied(self)?;
        let info = source.reader.tensors()[source.tensor].clone();
        let auxiliary = source.reader.metadata().auxiliary_tensor() == Some(name);
        if !auxiliary && let Some(what) = unmergeable(&info) {
            self.check_same(names, inputs, &source, &what)?;
        }
        let is_number = !auxiliary && unmergeable(&info).is_none();
        let found = if is_number { self.found(names, inputs, &info)? } else { None };
        let Some(found) = found else {
            if is_number {
                self.copied.push(name.to_owned());
            }
            let info = TensorInfo { name: name.to_owned(), ..info };
            return Ok((info, Making::Copied(source)));
        };
        let values = inputs.levels.resolve(method, name, place, inputs.base, |input| {
            self.models[inputs.models[input]].model.name.clone()
        })?;
        let is_plain = method == Method::Passthrough && !values.contains_key(SCALE);
        let recast = self.recipe.dtype.is_some() || self.recipe.out_dtype.is_some();
        if is_plain && !recast {
            let info = TensorInfo { name: name.to_owned(), ..info };
            return Ok((info, Making::Copied(source)));
        }
        let dtype = self.recipe.dtype.unwrap_or_else(|| {
            let dtypes = found
                .iter()
                .filter_map(|input| working(input.reader.tensors()[input.tensor].dtype));
            dtypes.reduce(promoted).unwrap_or(DType::F32)
        });
        let mut rule = Rule {
            method,
            base: inputs.base,
            values,
            name: name.to_owned(),
            seed: self.recipe.seed,
        };
        if is_plain {
            rule.values.insert(SCALE, vec![1.0]);
        }
        // What was computed wider comes back to the dtype of the models, unless one is asked for.
        let out = self.recipe.out_dtype.unwrap_or_else(|| match self.recipe.dtype {
            Some(asked) => asked,
            None => {
                let inputs = found.iter().map(|input| input.reader.tensors()[input.tensor].dtype);
                resulting(inputs, dtype)
            }
        });
        let info = TensorInfo { name: name.to_owned(), dtype: out, shape: info.shape };
        Ok((info, Making::Merged { rule, inputs: found, dtype }))
    }

    fn input(&self, model: usize, name: &str) -> Result<Input<'a>> {
        let opened = &self.models[model];
        let tensor = opened.positions.get(name).copied().ok_or_else(|| {
            Error::format("it is missing").for_tensor(name).in_file(&*opened.label)
        })?;
        let reader = Arc::clone(&opened.model.reader);
        Ok(Input { reader, tensor, model: Arc::clone(&opened.label) })
    }

    /// Compares a tensor that can't be merged with the same tensor of the other models.
    ///
    /// # Errors
    /// E001 if the tensors differ. Also the errors of the readers.
    fn check_same(
        &mut self,
        names: &[String],
        inputs: &Inputs<'_>,
        source: &Input<'a>,
        what: &str,
    ) -> Result<()> {
        let mut compared = 0;
        for (&model, name) in inputs.models.iter().zip(names) {
            let label = &self.models[model].label;
            if *label == source.model {
                continue;
            }
            let same = match self.models[model].positions.get(name) {
                Some(&tensor) => {
                    let reader = Arc::clone(&self.models[model].model.reader);
                    let other = Input { reader, tensor, model: Arc::clone(label) };
                    source.is_same(&other, &*self.options.poll)?
                }
                // A buffer that only some versions of a library write.
                None => {
                    self.copied.push(name.clone());
                    return Ok(());
                }
            };
            if !same && !self.options.relaxed {
                let message = format!("{what} can't be merged, and {} has others", source.model);
                return Err(Error::format(message).for_tensor(name).in_file(&**label));
            }
            if !same {
                self.copied.push(name.clone());
                return Ok(());
            }
            compared += 1;
        }
        self.identical += usize::from(compared > 0);
        Ok(())
    }

    /// Returns the tensor in all models, or `None` if one does not fit and the main model's is
    /// copied.
    fn found(
        &self,
        names: &[String],
        inputs: &Inputs<'_>,
        info: &TensorInfo,
    ) -> Result<Option<Vec<Input<'a>>>> {
        let mut found = Vec::with_capacity(names.len());
        for (&model, name) in inputs.models.iter().zip(names) {
            let label = &self.models[model].label;
            let checked = self.input(model, name).and_then(|input| {
                let other = &input.reader.tensors()[input.tensor];
                if other.shape != info.shape {
                    let message = format!(
                        "expected {} as in the first model, found {}",
                        info.shape, other.shape
                    );
                    return Err(Error::format(message).for_tensor(name).in_file(&**label));
                }
                if let Some(what) = unmergeable(other) {
                    let message = format!("{what} can't be merged");
                    return Err(Error::format(message).for_tensor(name).in_file(&**label));
                }
                Ok(input)
            });
            match checked {
                Ok(input) => found.push(input),
                Err(_) if self.options.relaxed => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(found))
    }
}

impl Levels<'_> {
    /// Refuses what would be passed over in silence.
    fn check(&self, method: Method) -> Result<()> {
        let shared = |name: &str| {
            method
                .parameters()
                .iter()
                .any(|known| known.name == name && known.scope == Scope::Shared)
        };
        let name = self.sources.iter().flat_map(|settings| settings.keys());
        match name.clone().find(|name| shared(name)) {
            Some(name) => Err(Error::format(format!(
                "'{name}' is a parameter of the whole merge for {method}, not of one model"
            ))),
            None => Ok(()),
        }
    }

    /// All parameters of a method, for a tensor.
    fn resolve(
        &self,
        method: Method,
        tensor: &str,
        place: f64,
        base: Option<usize>,
        model: impl Fn(usize) -> String,
    ) -> Result<BTreeMap<&'static str, Vec<f64>>> {
        let mut values = BTreeMap::new();
        for parameter in method.parameters() {
            if parameter.scope == Scope::Shared {
                let found = self.find(parameter, None, tensor, place);
                let value = checked(parameter, found, method)?;
                values.insert(parameter.name, vec![value]);
                continue;
            }
            let mut all = Vec::with_capacity(self.sources.len());
            for input in 0..self.sources.len() {
                if parameter.scope == Scope::Others && Some(input) == base {
                    all.push(0.0);
                    continue;
                }
                let found = self.find(parameter, Some(input), tensor, place);
                if found.is_none() && parameter.name == SCALE {
                    continue;
                }
                let value = checked(parameter, found, method)
                    .map_err(|error| error.for_tensor(tensor).in_file(model(input)))?;
                all.push(value);
            }
            if !all.is_empty() {
                values.insert(parameter.name, all);
            }
        }
        Ok(values)
    }

    /// A value by precedence: of the source, of the slice, of the merge, by default.
    fn find(
        &self,
        parameter: &Parameter,
        input: Option<usize>,
        tensor: &str,
        place: f64,
    ) -> Option<f64> {
        let source = input.and_then(|input| self.sources.get(input).copied());
        let levels = source.into_iter().chain(self.slice).chain([self.merge]);
        levels
            .filter_map(|settings| settings.get(parameter.name))
            .find_map(|setting| setting.at(tensor, place))
            .or(parameter.default)
    }
}

fn checked(parameter: &Parameter, value: Option<f64>, method: Method) -> Result<f64> {
    let name = parameter.name;
    match value {
        Some(value) if parameter.domain.has(value) => Ok(value),
        Some(value) => Err(Error::format(format!(
            "{name} is {value}, but {method} takes {}",
            parameter.domain
        ))),
        None => Err(Error::format(format!("{method} needs the parameter '{name}'"))),
    }
}

/// Returns a description of the elements of a tensor that can't be merged; `None` if it can be
/// merged.
fn unmergeable(info: &TensorInfo) -> Option<String> {
    working(info.dtype).is_none().then(|| format!("elements of {}", info.dtype))
}
