//! A model for TorchScript: parameters as they are, and a program that looks at them as the graph
//! does.

use std::collections::HashMap;

use apr_core::counted;
use apr_graph::{
    AttributeValue, Body, Graph, ValueOrigin, View as Look, WeightRef, infer, inline, upgrade,
};
use apr_quantize::TensorTarget;
use apr_registry::onnx::write::Model;
use apr_registry::{CheckpointReader, Code, DType, Result as ModelResult, TensorInfo};
use apr_source::Source;
use apr_source::naming::canonical;
use apr_tensor::cast::can_cast;
use apr_view::{Base, View};

use super::description::Job;
use super::error::JobError;
use super::planned::{Parts, Planned};
use super::wishes::applying;

use crate::convert::Fixed;
use crate::graph::{bound_graphs, unknown_family, unreadable};
use crate::import::{Foreign, Prepared};
use crate::own_graph::{OwnGraphs, is_skeleton, own_graphs_or_damage};

/// Version of ONNX's operators that programs are written from, or a newer one.
const OPSET: i64 = 17;

impl Job {
    /// Plans a file that contains the computation of the model, if it is known.
    pub(super) fn plan_scripted<'a>(
        &self,
        selected: View<'a>,
        source: &Source<'a>,
    ) -> Result<Planned<'a>, JobError> {
        if let Some(quantize) = &self.weights.quantize {
            let message = format!(
                "TorchScript does not support {}: write an .apr or .gguf file",
                quantize.choices.scheme
            );
            return Err(JobError::Request(message));
        }

        let of_onnx = |name: &&str| ["opset", "matmul_nbits"].contains(name);
        let asked: Vec<_> = self.graph.asked().into_iter().filter(of_onnx).collect();
        if !asked.is_empty() {
            let message = applying(&asked, "ONNX only: TorchScript has operators of its own");
            return Err(JobError::Request(message));
        }
        if self.graph.merged {
            let message = "`merged` applies to ONNX only: a TorchScript program has all parts as \
                           methods";
            return Err(JobError::Request(message.to_owned()));
        }

        let Foreign {
            prepared: Prepared { mut view, family, misfits, mut warnings, .. },
            losses,
            ..
        } = self.foreign(&source.through(&selected))?.stating_configuration();
        let mut target = self.target.clone();
        let known = source.through(&view);
        let own = own_graphs_or_damage(&known)?;
        let graph_misfits = self.misfits_of(own.as_ref().ok().and_then(Option::as_ref));
        match self.program(&known, own, &mut warnings)? {
            Program::Graphs(graphs) => {
                warnings.extend(self.graph.idle_past(&graphs));
                let models = graphs.into_iter().map(|(name, graph)| Model::new(&name, graph));
                target.models = models.collect();
            }
            Program::Unknown(why) => {
                warnings.push(format!("the output has parameters only, no program: {why}"));
            }
        }

        // The program says what the graph's skeleton would.
        view.keep_companions(|name| !is_skeleton(name));
        let (targets, dequantized) = self.stored(&view);
        warnings.extend(dequantized);
        let job = Self { target, ..self.clone() };
        let tensors = (view.tensors(), targets);
        let parts = Parts {
            graph_misfits,
            ..Parts::with_program(self, (family, misfits), tensors, losses, warnings)
        };
        let content = view.into_mapping().over(Base::owning(selected));
        Planned::new(&job, source, content, parts)
    }

    /// Returns the target of each tensor, and a warning about conversions that were not requested.
    fn stored(&self, view: &View<'_>) -> (Vec<Option<TensorTarget>>, Option<String>) {
        let precision = |dtype: DType| {
            self.weights.precision.filter(|&to| dtype.is_float() && can_cast(dtype, to))
        };
        let fixed = Fixed::of(view);
        let target = |(at, info): (usize, &TensorInfo)| {
            let asked = self.weights.dequantize.filter(|_| fixed.is_decoded(at, info));
            match info.dtype.is_quantized() {
                true => Some(asked.unwrap_or(DType::F32)),
                false => asked.or_else(|| precision(info.dtype)),
            }
        };
        let targets = view.tensors().iter().enumerate();
        let targets = targets.map(|info| target(info).map(TensorTarget::from)).collect();
        let blocks = view.tensors().iter().filter(|info| info.dtype.is_quantized()).count();
        let unasked = (blocks > 0 && self.weights.dequantize.is_none()).then(|| {
            let count = counted(blocks as u64, "quantized tensor");
            format!(
                "{count} become f32: PyTorch has no such types; `dequantize` f16 halves the size"
            )
        });

        (targets, unasked)
    }

    /// Returns the computation of the model, with the names of its tensors.
    fn program(
        &self,
        source: &Source<'_>,
        own: ModelResult<Option<OwnGraphs>>,
        warnings: &mut Vec<String>,
    ) -> Result<Program, JobError> {
        let own = match own {
            Ok(own) => own,
            Err(error) if source.family()?.is_none() => {
                return Ok(Program::Unknown(unreadable(&error)));
            }
            Err(_) => None,
        };
        if let Some(own) = own {
            match own.in_onnx(source.reader()) {
                Ok(graphs) => return self.own_program(graphs),
                Err(error) if source.family()?.is_none() => {
                    return Ok(Program::Unknown(error.message().to_owned()));
                }
                // The family says the same in operators of ONNX.
                Err(_) => {}
            }
        }

        let Some(family) = source.family()? else {
            return Ok(Program::Unknown(unknown_family(source)));
        };
        let options = self.graph.options(self.graph.opset.unwrap_or(OPSET));
        let found = match bound_graphs(source, family, &options) {
            Ok(bound) => {
                warnings.extend(bound.warnings);
                bound.graphs
            }
            // A family without blocks, or an option that no block knows; not what was asked for.
            Err(error) if error.code() == Code::Version && self.graph.task.is_none() => {
                return Ok(Program::Unknown(error.message().to_owned()));
            }
            Err(error) => return Err(error.into()),
        };
        warnings.extend(self.graph.idle_latent_cache(&found));

        let known = canonical(source.reader(), family);
        let tensors = known.tensors().iter().zip(source.reader().tensors());
        let names: HashMap<String, String> =
            tensors.map(|(canonical, own)| (canonical.name.clone(), own.name.clone())).collect();
        let graphs = found.parts.into_iter().map(|part| {
            let mut graph = part.graph;
            rename(&mut graph.body, &names);
            Ok((part.name.to_owned(), written_out(&graph)?))
        });
        Ok(Program::Graphs(graphs.collect::<Result<_, JobError>>()?))
    }

    /// The program of the graphs that the model's file has.
    fn own_program(&self, graphs: Vec<(String, Graph)>) -> Result<Program, JobError> {
        self.graph.check_own()?;
        let is_one = graphs.len() == 1;
        let graphs = graphs.into_iter().map(|(name, mut graph)| {
            // The program is written for operators of this version on.
            if graph.opset("").is_some_and(|opset| opset < OPSET) {
                infer(&mut graph);
                graph = upgrade(&graph, OPSET)?;
            }
            let name = if is_one { "forward".to_owned() } else { name };
            Ok((name, written_out(&graph)?))
        });
        Ok(Program::Graphs(graphs.collect::<Result<_, JobError>>()?))
    }
}

/// The known computation of a model.
enum Program {
    /// Graphs, by the names of the parts.
    Graphs(Vec<(String, Graph)>),
    /// The computation is not known, for this reason.
    Unknown(String),
}

/// The graph without functions, and with the types of all values.
fn written_out(graph: &Graph) -> Result<Graph, JobError> {
    let mut graph = inline(graph)?;
    infer(&mut graph);
    Ok(graph)
}

/// Gives the tensors that a body names other names.
fn rename(body: &mut Body, names: &HashMap<String, String>) {
    for value in &mut body.values {
        if let ValueOrigin::Weight(weight) = &mut value.origin {
            rename_weight(weight, names);
        }
    }

    for attribute in body.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
        match &mut attribute.value {
            AttributeValue::Weight(weight) => rename_weight(weight, names),
            AttributeValue::Body(body) => rename(body, names),
            AttributeValue::Bodies(bodies) => {
                bodies.iter_mut().for_each(|body| rename(body, names));
            }
            _ => {}
        }
    }
}

fn rename_weight(weight: &mut WeightRef, names: &HashMap<String, String>) {
    let change = |name: &mut String| {
        if let Some(new) = names.get(name) {
            name.clone_from(new);
        }
    };
    change(&mut weight.tensor);
    for look in &mut weight.views {
        if let Look::Joined { with, .. } | Look::Stacked(with) = look {
            with.iter_mut().for_each(change);
        }
    }
}
