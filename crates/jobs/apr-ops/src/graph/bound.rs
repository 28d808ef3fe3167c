//! The graphs of a family, bound to a checkpoint to be run or written.

use apr_arch::FamilyModel;
use apr_blocks::{GraphOptions, Graphs, graphs};
use apr_graph::{infer, upgrade};
use apr_registry::{Escaped, Result};
use apr_source::Source;
use apr_source::sentence::Sentence;
use apr_view::check_decodable;

use super::about;
use super::sentence::{SENTENCE_OUTPUT, add_sentence};
use crate::tied::with_untied;

/// The lowest version of operators that modules are written in; older ones are converted.
const OLDEST: i64 = 17;

/// Graphs that use every tensor of the checkpoint which the outputs depend on.
pub(crate) struct BoundGraphs {
    pub(crate) graphs: Graphs,
    /// Heads that are not tied although the configuration ties them, and tensors that are left out.
    pub(crate) warnings: Vec<String>,
}

/// The graphs of a model whose tensors have Hugging Face's names and layout.
///
/// # Errors
/// E001 when the graphs leave out tensors that the outputs depend on, and those of [`graphs`]; E002
/// and E007 when tensors that are tied can't be compared.
pub(crate) fn bound_graphs(
    source: &Source<'_>,
    family: &FamilyModel<'_>,
    options: &GraphOptions,
) -> Result<BoundGraphs> {
    let Some(sentence) = exported_sentence(source, options)? else {
        return run_graphs(source, family, options);
    };
    // The modules are written with operators of what their graph is written in.
    let own_task = options.task.clone().or_else(|| Some(sentence.task()?.to_owned()));
    let written = GraphOptions {
        opset: options.opset.max(OLDEST),
        is_own_task: options.is_own_task || options.task.is_none(),
        task: own_task,
        ..options.clone()
    };
    let mut bound = run_graphs(source, family, &written)?;
    if sentence.keeps_tokens() {
        let modules = match sentence.own_tensors().next() {
            Some(own) => format!("tensor '{own}' projects them, and is left out"),
            None => "the modules that compute the compared vectors remain in their folders".into(),
        };
        bound.warnings.push(format!("the graph ends with the model's token vectors: {modules}"));
        return Ok(bound);
    }
    for part in &mut bound.graphs.parts {
        if !add_sentence(&mut part.graph, source.reader(), &sentence)? {
            bound.warnings.push(format!(
                "the graph has no output {SENTENCE_OUTPUT}: it does not compute token vectors that \
                 match a mask"
            ));
        } else if !sentence.includes_prompt() {
            bound.warnings.push(format!(
                "{SENTENCE_OUTPUT} includes the tokens of prompts, which the model excludes \
                 (include_prompt): no input of the graph marks them"
            ));
        }
        if let Some(name) = sentence.default_prompt.as_deref()
            && sentence.prompts.get(name).is_some_and(|prompt| !prompt.is_empty())
        {
            bound.warnings.push(format!(
                "{SENTENCE_OUTPUT} covers only the given tokens: put the default prompt '{}' \
                 before each text",
                Escaped::short(name)
            ));
        }
        if written.opset != options.opset {
            infer(&mut part.graph);
            part.graph = upgrade(&part.graph, options.opset)?;
        }
    }
    Ok(bound)
}

/// Returns the modules of a sentence-transformers model, if the task is computing embeddings.
fn exported_sentence(source: &Source<'_>, options: &GraphOptions) -> Result<Option<Sentence>> {
    match options.task.as_deref() {
        None | Some("" | "feature-extraction" | "sentence-similarity") => {
            Ok(Sentence::of(source.reader())?.filter(Sentence::makes_embeddings))
        }
        Some(_) => Ok(None),
    }
}

/// The graphs of a model without what modules of sentence-transformers make of their outputs.
///
/// # Errors
/// Those of [`bound_graphs`].
pub(crate) fn run_graphs(
    source: &Source<'_>,
    family: &FamilyModel<'_>,
    options: &GraphOptions,
) -> Result<BoundGraphs> {
    let (options, mut warnings) = with_untied(source, options)?;
    let found = graphs(family, source.reader().tensors(), &options);
    let mut graphs = found.map_err(|error| about(source, error))?;
    check_decodable(source.reader()).map_err(|error| error.in_file(source.name()))?;
    if options.task.is_none() || options.is_own_task {
        let modules = Sentence::of(source.reader())?.unwrap_or_default();
        let is_of_module = |name: &str| modules.own_tensors().any(|own| own == name);
        graphs.unused.retain(|tensor| !is_of_module(&tensor.name));
    }
    graphs.check_complete().map_err(|error| error.in_file(source.name()))?;
    warnings.extend(graphs.left_out());
    Ok(BoundGraphs { graphs, warnings })
}
