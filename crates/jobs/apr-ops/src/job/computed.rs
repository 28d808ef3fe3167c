//! A model for a format that says what it computes.

use std::collections::BTreeSet;

use apr_bind::{Binder, Storage};
use apr_core::counted;
use apr_graph::{
    Body, ElementType, Graph, Operator, Value as GraphValue, ValueOrigin, check, infer, inline,
    upgrade,
};
use apr_registry::onnx::write::{Model, Properties};
use apr_registry::{CheckpointReader, Error, Loss, Metadata, PlanOptions, keys, onnx};
use apr_source::Source;
use apr_source::naming::canonical;
use apr_view::{Base, Unpacked, View};
use serde_json::Value;

use super::description::Job;
use super::error::JobError;
use super::planned::{Parts, Planned};
use super::quantized::{in_blocks, quantized as in_types};
use super::simplified::Reworked;
use super::wishes::WITH_BLOCKS;

use crate::convert::Fixed;
use crate::graph::{BoundGraphs, bound_graphs, without_family};
use crate::import::{Foreign, Prepared};
use crate::inline::ValidationError;
use crate::own_graph::{OwnGraphs, check_inputs, is_skeleton, left_out, own_graphs_or_damage};
use crate::products::as_integers;

/// The first version of ONNX's format in which weights need not be inputs.
pub(super) const WITH_FREE_WEIGHTS: i64 = 4;

/// Bytes of tensors that are kept so that transposed ones are read in long pieces; twice as many
/// are in memory.
const WINDOW: u64 = 64 << 20;

impl Job {
    /// Plans a file that holds what the model computes.
    pub(super) fn plan_computed<'a>(
        &self,
        selected: View<'a>,
        source: &Source<'a>,
    ) -> Result<Planned<'a>, JobError> {
        self.check_blocks()?;
        let Foreign {
            prepared: Prepared { view: restored, family, misfits, warnings: said, .. },
            mut losses,
            ..
        } = self.foreign(&source.through(&selected))?.stating_configuration();
        let metadata = restored.metadata().clone();
        let mut storage = Storage::default();
        storage.precision = self.weights.precision;
        storage.dequantize = self.weights.dequantize;
        storage.blocks = self.graph.blocks;
        let known = source.through(&restored);
        let own = match own_graphs_or_damage(&known)? {
            Ok(own) => own,
            Err(error) if known.family()?.is_none() => return Err(error.into()),
            // What the family computes can be written, if damage is let pass.
            Err(_) => None,
        };
        let graph_misfits = self.misfits_of(own.as_ref());
        let settings = own.as_ref().map(|own| own.settings(known.reader())).unwrap_or_default();
        let Computation { mut view, models, is_own, mut warnings } =
            self.computation(&known, own, &storage)?;
        let (models, idle) = self.graph.merge(models)?;
        warnings.extend(idle);
        let reworked = self.rework(models, &mut view, &metadata, source.name())?;
        let Reworked { mut models, extracted, renamed, reports, warnings: unchecked, replaced } =
            reworked;
        warnings.extend(unchecked);
        let fixed = Fixed::of(&restored);
        let mut infos = restored.tensors().iter().enumerate();
        let decodes = infos.any(|(at, info)| fixed.is_decoded(at, info));
        warnings.extend(self.weights.idle_dequantize(decodes, source.reader()));
        let (halves, kept) = self.halve(&mut models, &view, is_own)?.unzip();
        let quantized = self.quantize_products(&mut models, &view)?;
        let multiplies_integers = quantized.is_some();

        // A graph's file has no place for them: `lost_metadata` tells what is lost.
        *view.metadata_mut() = Metadata::new();

        // The graph is written anew; the old one's skeleton is of no use.
        view.keep_companions(|name| !is_skeleton(name));
        let asked = self.weights.quantize.as_ref().filter(|_| !multiplies_integers);
        let in_blocks = asked.map(|asked| in_blocks(&view, known.reader(), known.family()?, asked));
        let in_blocks = in_blocks.transpose()?;
        let named = view.into_mapping();
        let restored = restored.into_mapping().over(Base::owning(selected));
        let named = Base::owning(named.over(Base::owning(restored)));
        let base = match in_blocks {
            Some((tensors, more)) => {
                warnings.extend(more);
                Base::owning(in_types(named, tensors))
            }
            None => named,
        };
        let (products, integers) = quantized.unzip();
        let base = match integers {
            Some(integers) => Base::owning(as_integers(base, integers)),
            None => base,
        };
        let (unpacked, parts) = Unpacked::beside(base);
        let binder = Binder::new(&unpacked, &parts, storage);
        let mut binder = binder.keeping(kept.unwrap_or_default());
        let mut bound_models = Vec::with_capacity(models.len());
        let mut numbers = BTreeSet::new();
        let mut properties = properties(&metadata);
        for (name, graph) in models {
            // The binder does not look into functions.
            let mut graph = inline(&graph)?;
            let before = first_error(&mut graph.clone());
            let is_old = properties.ir_version < WITH_FREE_WEIGHTS;
            if is_old || storage.precision.is_some() || multiplies_integers {
                let released = release_weights(&mut graph.body);
                warnings.extend((released > 0 && !is_old).then(|| no_inputs_any_more(released)));
            }
            binder.bind(&mut graph)?;

            // The nodes that were added make values of unknown types.
            match (first_error(&mut graph), before) {
                (Some(error), None) => return Err(invalid(&name, &error)),
                (_, Some(error)) => {
                    warnings.push(format!("the graph was not valid before: {error}"));
                }
                (None, None) => {}
            }
            numbers.extend(float_constants(&graph.body));
            bound_models.push((name, graph));
        }

        let (mut bound, unused) = binder.finish();
        bound.warnings.extend(warnings);
        bound.warnings.extend(self.graph.idle_past(&bound_models));
        bound.warnings.extend(self.graph.idle_blocks(&bound_models));
        // The graph has their numbers itself.
        let is_setting = |name: &String| is_own && settings.contains(name);
        let is_lost = |loss: &Loss| !replaced.contains(&loss.name) && !is_setting(&loss.name);
        losses.extend(unused.into_iter().filter(is_lost));
        losses.extend(lost_metadata(&metadata));
        note(&mut properties, onnx::TRANSPOSED, &bound.transposed);
        note(&mut properties, onnx::CONSTANTS, &numbers.into_iter().collect::<Vec<_>>());
        let job = Self { target: self.target_of(bound_models, &properties)?, ..self.clone() };
        let bound_view = View::of(&unpacked, bound.tensors).read_in_order(WINDOW);
        let warnings = said.into_iter().chain(bound.warnings).collect();
        let tensors = (bound_view.tensors(), bound.targets);
        let parts = Parts {
            graph_misfits,
            ..Parts::with_program(self, (family, misfits), tensors, losses, warnings)
        };
        let content = bound_view.into_mapping().over(Base::owning(unpacked));
        let planned = Planned::new(&job, source, content, parts)?;
        let planned =
            planned.after_renaming(renamed).after_extracting(extracted).after_simplifying(reports);
        Ok(planned.with_products(products).with_halves(halves))
    }

    /// Returns the errors in the graphs that planning has read.
    ///
    /// Returns `None` if the graphs must be read from the file. The graphs of a selection of
    /// tensors are not checked: it lacks tensors that a graph names.
    pub(super) fn misfits_of(&self, own: Option<&OwnGraphs>) -> Option<Vec<ValidationError>> {
        let is_whole = self.prefix.is_none();
        own.filter(|_| is_whole && self.validation.structure).map(OwnGraphs::misfits)
    }

    /// Rejects options that can't be combined with quantizing to blocks.
    fn check_blocks(&self) -> Result<(), JobError> {
        if self.integer_quantization().is_some() {
            return self.check_products();
        }
        let Some(quantize) = &self.weights.quantize else { return Ok(()) };
        let scheme = quantize.choices.scheme;
        let message = if self.weights.precision.is_some() {
            format!("`precision` and {scheme} are two types for the same tensors")
        } else if self.weights.gate.is_some() {
            "graph formats report no quantization error: quantize into an .apr or .gguf file \
             first, and export that"
                .to_owned()
        } else if self.graph.opset.is_some_and(|opset| opset < WITH_BLOCKS) {
            format!("blocks need `opset` {WITH_BLOCKS} or later")
        } else {
            return Ok(());
        };
        Err(JobError::Request(message))
    }

    /// Returns the computation of the model: the graphs in its original file or of its family.
    fn computation<'v>(
        &self,
        source: &Source<'v>,
        own: Option<OwnGraphs>,
        storage: &Storage,
    ) -> Result<Computation<'v>, JobError> {
        if let Some(own) = own {
            let may_lack_shapes = own.may_lack_shapes();
            let widened = own.widened();
            let is_translated = own.is_translated();
            match own.in_onnx(source.reader()) {
                Ok(graphs) => {
                    if may_lack_shapes {
                        check_inputs(&graphs).map_err(|error| error.in_file(source.name()))?;
                    }
                    let mut made = self.own_computation(source, graphs, is_translated, storage)?;
                    made.warnings.extend(widened);
                    return Ok(made);
                }
                Err(error) if source.family()?.is_none() => {
                    return Err(error.in_file(source.name()).into());
                }
                // The family says the same in operators of ONNX.
                Err(_) => {}
            }
        }
        let Some(family) = source.family()? else {
            return Err(without_family(source).into());
        };
        if self.weights.ranges.is_some() {
            let message = "the graph of a model family can't be calibrated: write the ONNX file \
                           first (`apr export`), and quantize that";
            return Err(JobError::Request(message.to_owned()));
        }
        let in_blocks = self.weights.quantize.is_some() && self.integer_quantization().is_none();
        let opset = self.graph.opset(source.reader(), storage, in_blocks)?;
        let options = self.graph.options(opset.version);
        let BoundGraphs { graphs: found, warnings } = bound_graphs(source, family, &options)?;
        let idle = self.graph.idle_latent_cache(&found);
        let models =
            found.parts.into_iter().map(|part| (part.name.to_owned(), part.graph)).collect();
        let view = canonical(source.reader(), family);
        let warnings = opset.raised.into_iter().chain(warnings).chain(idle).collect();
        Ok(Computation { view, models, is_own: false, warnings })
    }

    /// Returns the graphs of the model's original file, with the requested operators.
    fn own_computation<'v>(
        &self,
        source: &Source<'v>,
        graphs: Vec<(String, Graph)>,
        is_translated: bool,
        storage: &Storage,
    ) -> Result<Computation<'v>, JobError> {
        self.graph.check_own()?;

        let stem = self.target.file_name.rsplit_once('.').map_or("model", |(stem, _)| stem);
        let is_one = graphs.len() == 1;
        let mut models = Vec::with_capacity(graphs.len());
        let mut warnings: Vec<String> = left_out(source.reader()).into_iter().collect();
        for (name, mut graph) in graphs {
            // A graph of other operators alone has no version of ONNX's.
            let own = graph.opset("");
            let usual = match own {
                Some(own) if is_translated && self.graph.opset.is_none() => fitting(&graph, own),
                _ => own.or(self.graph.opset).unwrap_or_else(Operator::newest),
            };
            let raised = self.least_opset().filter(|(least, _)| usual < *least);
            let usual = raised.as_ref().map_or(usual, |(least, _)| *least);
            let opset = self.graph.at_least(usual, source.reader(), storage)?;
            if own.is_some_and(|own| own != opset.version) {
                // Some operators are changed by the types of what they read.
                infer(&mut graph);
                graph = upgrade(&graph, opset.version)?;
            }
            if is_translated && let Some(error) = first_error(&mut graph.clone()) {
                return Err(inexact(source.name(), &error));
            }
            let name = if is_one { stem.to_owned() } else { name };
            models.push((name, graph));
            warnings.extend(raised.map(|(_, why)| why).into_iter().chain(opset.raised));
        }
        warnings.dedup();
        Ok(Computation { view: View::new(source.reader()), models, is_own: true, warnings })
    }

    /// The layout of the output with these models in it.
    fn target_of(
        &self,
        models: Vec<(String, Graph)>,
        properties: &Properties,
    ) -> Result<PlanOptions, JobError> {
        let is_one = models.len() == 1;
        if !is_one && !self.target.folder {
            let names: Vec<String> =
                models.iter().map(|(name, _)| format!("{name}.onnx")).collect();
            let message = format!(
                "the model has several parts ({}): the output must be a folder",
                names.join(", ")
            );
            return Err(JobError::Request(message));
        }

        let extension =
            self.target.format.target.and_then(|target| target.extensions.first().copied());
        let models = models.into_iter().map(|(name, graph)| {
            let file_name = if is_one && !self.target.folder {
                self.target.file_name.clone()
            } else {
                format!("{name}.{}", extension.unwrap_or("onnx"))
            };
            Model { properties: properties.clone(), ..Model::new(&file_name, graph) }
        });

        Ok(PlanOptions { models: models.collect(), ..self.target.clone() })
    }
}

/// Graphs of a model, and its tensors under the names that the graphs use.
struct Computation<'v> {
    view: View<'v>,
    /// Names of the parts, and their graphs.
    models: Vec<(String, Graph)>,
    /// The graphs are those of the file, instead of the family's.
    is_own: bool,
    /// Warnings about deviations from the defaults or from the source.
    warnings: Vec<String>,
}

/// Removes the weights from the inputs and returns how many were removed.
///
/// The older format requires weights to be inputs, but callers do not pass them.
pub(super) fn release_weights(body: &mut Body) -> usize {
    let mut inputs = std::mem::take(&mut body.inputs);
    let before = inputs.len();
    inputs.retain(|input| body.value(*input).origin == ValueOrigin::Input);
    body.inputs = inputs;
    before - body.inputs.len()
}

/// Returns the warning about weights that callers can no longer replace by inputs.
fn no_inputs_any_more(count: usize) -> String {
    let weights = counted(count as u64, "weight");
    format!("{weights} can't be given as inputs any more: the type was changed")
}

/// The first thing that makes a graph one that ONNX does not allow. Types of values are inferred.
fn first_error(graph: &mut Graph) -> Option<String> {
    let inferred = infer(graph).findings;
    let checked = check(graph);
    let mut errors = checked.errors().chain(inferred.errors());
    errors.next().map(ToString::to_string)
}

/// Returns the first opset version from `own` on in which the graph is valid.
///
/// Later versions accept more types. If no version fits, returns `own`.
fn fitting(graph: &Graph, own: i64) -> i64 {
    let mut typed = graph.clone();
    if first_error(&mut typed).is_none() {
        return own;
    }
    let fits = |version: &i64| {
        upgrade(&typed, *version).is_ok_and(|mut graph| first_error(&mut graph).is_none())
    };
    (own + 1..=Operator::newest()).find(fits).unwrap_or(own)
}

/// Returns the error for a translated graph that no runtime would load.
fn inexact(file: &str, error: &str) -> JobError {
    let message = format!("the graph can't be expressed in ONNX operators: {error}");
    Error::version(message).in_file(file).into()
}

/// Returns the error for a graph that became invalid.
fn invalid(name: &str, error: &str) -> JobError {
    let message = format!(
        "with these weights the graph would not be valid: {error}; another `opset` or \
         `precision` may help"
    );
    Error::version(message).in_file(name).into()
}

/// Returns the file properties besides graph and tensors, as in the model's original file.
pub(super) fn properties(metadata: &Metadata) -> Properties {
    let Some(entry) = metadata.object(onnx::METADATA) else { return Properties::default() };
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = |key: &str| entry.get(key).and_then(Value::as_i64);
    let pairs = entry.get("metadata").and_then(Value::as_object).into_iter().flatten();
    let pairs = pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    Properties {
        ir_version: number("ir_version").unwrap_or_default(),
        domain: text("domain"),
        model_version: number("model_version"),
        doc: text("doc"),
        metadata: pairs.collect(),
        ..Properties::default()
    }
}

/// Records names in the properties, so that readers of the file need not guess them.
fn note(properties: &mut Properties, key: &str, names: &[String]) {
    properties.metadata.retain(|(other, _)| other != key);
    if !names.is_empty() {
        properties.metadata.push((key.to_owned(), Value::from(names.to_vec()).to_string()));
    }
}

/// Returns the names of float constants of the graph that are not weights.
fn float_constants(body: &Body) -> impl Iterator<Item = String> {
    let is_constant = |value: &&GraphValue| {
        let is_float = value.element().is_some_and(ElementType::is_float);
        is_float && matches!(value.origin, ValueOrigin::Constant(_))
    };
    body.values.iter().filter(is_constant).map(|value| value.name.clone())
}

/// Returns metadata that the output does not contain.
fn lost_metadata(metadata: &Metadata) -> Vec<Loss> {
    // These say what the format implies, or the caller stores them elsewhere.
    const CARED_FOR: [&str; 9] = [
        onnx::METADATA,
        keys::APR_VERSION,
        keys::MODEL_TYPE,
        keys::ARCHITECTURE,
        keys::SOURCE,
        keys::LOSS,
        keys::FILES,
        keys::TIED,
        apr_source::naming::NAMES,
    ];

    let lost = |(key, value): &(&str, &Value)| {
        !(CARED_FOR.contains(key) || *key == keys::SAFETENSORS && is_format(value))
    };
    let loss = |(key, _): (&str, &Value)| Loss {
        name: key.into(),
        what: "metadata".into(),
        why: "the format stores the graph and its weights only".into(),
    };
    metadata.iter().filter(lost).map(loss).chain(unsaid(metadata)).collect()
}

/// Returns entries of the ONNX file that a graph can't represent.
fn unsaid(metadata: &Metadata) -> impl Iterator<Item = Loss> {
    let entry = metadata.object(onnx::METADATA).and_then(|entry| entry.get(onnx::UNSAID));
    let counts = entry.and_then(Value::as_object).into_iter().flatten();
    counts.map(|(what, count)| Loss {
        name: what.clone(),
        what: format!("{count} in the ONNX file"),
        why: "the graph is rebuilt without them".into(),
    })
}

/// Returns `true` if the text in a safetensors header states only the format.
fn is_format(safetensors: &Value) -> bool {
    let text = safetensors.get("metadata").and_then(Value::as_object);
    text.is_none_or(|text| text.keys().all(|key| key == "format"))
}
