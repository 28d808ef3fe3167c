//! `apr explain`.

use std::io::{self, Write};
use std::path::Path;

use apr_arch::{Description, Resemblance};
use apr_core::{counted, number};
use apr_graph::Use;
use apr_ops::explain::{
    KnownTensor, ModelExplanation, StoredKind, StoredQuantization, TensorExplanation, error_code,
    known_tensor,
};
use apr_registry::{Code, Escaped};
use serde::Serialize;

use super::importance;
use super::tensors::unknown_tensor;
use crate::args::ExplainArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome, similar_file};
use crate::options::in_options;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD, strong};
use crate::progress::Bar;
use crate::{human, model};

impl Document for ModelExplanation {
    const SCHEMA: &'static str = "explain";
}

impl Document for TensorExplanation {
    const SCHEMA: &'static str = "explain.tensor";
}

/// Explains a model, a tensor or an error code.
pub(super) fn run(args: &ExplainArgs, context: &Context) -> Outcome {
    let subject = args.subject.as_ref().map(Path::new);
    if let (true, Some(model), Some(data)) = (args.importance, subject, &args.data) {
        return importance::run(model, data, context);
    }
    match (subject, &args.tensor) {
        (Some(subject), Some(tensor)) => explain_tensor_of(subject, tensor, context),
        (Some(subject), None) if is_code(subject) => {
            explain_code(&subject.to_string_lossy(), context)
        }
        (Some(subject), None) => explain_model_at(subject, context),
        (None, tensor) => explain_known_tensor(tensor.as_deref().unwrap_or_default(), context),
    }
}

/// Returns `true` if the subject can only be a code: a word that is not the name of a file.
fn is_code(subject: &Path) -> bool {
    let text = subject.to_string_lossy();
    !subject.exists() && text != "-" && !text.contains(['.', '/'])
}

/// Returns `true` for what looks like a code, or a part of one: the letter and a number.
fn is_like_code(text: &str) -> bool {
    let number = text.strip_prefix(['E', 'e']).unwrap_or(text);
    number.bytes().all(|byte| byte.is_ascii_digit())
}

fn explain_code(id: &str, context: &Context) -> Outcome {
    let Some(explanation) = error_code(id) else {
        let codes: Vec<_> = Code::ALL.iter().map(|code| code.id()).collect();
        let (id, codes) = (Escaped(id), codes.join(", "));
        return Err(Failure::General(match is_like_code(&id.to_string()) {
            true => format!("Unknown Error Code '{id}'; the codes are {codes}"),
            false => {
                let similar = similar_file(&id.to_string());
                let similar = similar.map(|similar| format!("; {similar}")).unwrap_or_default();
                format!("'{id}' is neither a file nor an error code ({codes}){similar}")
            }
        }));
    };
    let in_options = |texts: &[&str]| texts.iter().map(|text| in_options(text)).collect();
    let (causes, steps): (Vec<_>, Vec<_>) =
        (in_options(explanation.causes), in_options(explanation.steps));
    let first = command_about(explanation.code).map(str::to_owned);
    let page = CodePage {
        code: explanation.code,
        title: explanation.title,
        meaning: explanation.meaning,
        causes,
        steps: first.into_iter().chain(steps).collect(),
    };
    context.printer.report(&page, render_code)
}

/// An error code, explained to a user of the command line.
#[derive(Serialize)]
struct CodePage {
    /// The error code: `E001` to `E008`.
    code: &'static str,
    /// Title of the error.
    title: &'static str,
    /// Meaning of the error.
    meaning: &'static str,
    /// Common causes.
    causes: Vec<String>,
    /// Steps to find and remove the cause.
    steps: Vec<String>,
}

impl Document for CodePage {
    const SCHEMA: &'static str = "explain.code";
}

/// Returns the advice to run the command that gives details about a file with this error.
fn command_about(code: &str) -> Option<&'static str> {
    Some(match code {
        "E001" => {
            "Run `apr debug --hex FILE` to see the first bytes; for a folder, pass a file in it."
        }
        "E002" => "Run `apr validate --checksum FILE` to see which tensors are intact.",
        "E004" => "Run `apr validate FILE` to see which tensors are damaged.",
        "E005" => "Run `apr inspect --header FILE` to see how the file is encrypted.",
        _ => return None,
    })
}

fn explain_model_at(path: &Path, context: &Context) -> Outcome {
    let model = model::look_with_companions(path, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    context.printer.report(&context.session(&model)?.explain()?, render_model)
}

fn explain_tensor_of(path: &Path, name: &str, context: &Context) -> Outcome {
    let model = model::look_with_companions(path, context)?;
    let bar = Bar::new(&context.printer, 0);
    let explained = context.session(&model)?.explain_tensor(name, &context.pipeline()?, &bar)?;
    drop(bar);
    match explained {
        Ok(explanation) => context.printer.report(&explanation, render_tensor),
        Err(similar) => {
            Err(unknown_tensor(name, &similar.iter().map(String::as_str).collect::<Vec<_>>()))
        }
    }
}

/// Tensors that family tables know by a name.
#[derive(Serialize)]
struct KnownTensors {
    /// The tensor in each family that has it.
    tensors: Vec<KnownTensor>,
}

impl Document for KnownTensors {
    const SCHEMA: &'static str = "explain.known-tensor";
}

fn explain_known_tensor(name: &str, context: &Context) -> Outcome {
    match known_tensor(context.families()?, name) {
        Ok(known) => context.printer.report(&KnownTensors { tensors: known }, |out, known| {
            render_known_tensors(out, &known.tensors)
        }),
        Err(similar) => {
            Err(unknown_tensor(name, &similar.iter().map(String::as_str).collect::<Vec<_>>()))
        }
    }
}

/// Renders the roles of a tensor, each with the families that have it.
fn render_known_tensors(out: &mut dyn Write, tensors: &[KnownTensor]) -> io::Result<()> {
    let mut roles: Vec<((&str, &str), Vec<&str>)> = Vec::new();
    for KnownTensor { family, canonical, role } in tensors {
        let role = (canonical.as_str(), role.as_str());
        match roles.iter_mut().find(|(known, _)| *known == role) {
            Some((_, families)) => families.push(family),
            None => roles.push((role, vec![family.as_str()])),
        }
    }
    for ((canonical, role), families) in roles {
        let families = families.join(", ");
        writeln!(out, "{BOLD}{}{BOLD:#}: {}", Escaped(canonical), Escaped(role))?;
        writeln!(out, "  {DIM}in {}{DIM:#}", Escaped(&families))?;
    }
    Ok(())
}

fn render_code(out: &mut dyn Write, page: &CodePage) -> io::Result<()> {
    let CodePage { code, title, meaning, causes, steps } = page;
    writeln!(out, "{}", strong(&format!("{code}: {title}")))?;
    writeln!(out, "{meaning}")?;
    writeln!(out, "- {}: {}.", strong("Common Causes"), causes.join(", "))?;
    writeln!(out, "- {}:", strong("Troubleshooting"))?;
    for (number, step) in (1..).zip(steps) {
        writeln!(out, "  {number}. {step}")?;
    }
    Ok(())
}

fn render_model(out: &mut dyn Write, model: &ModelExplanation) -> io::Result<()> {
    if let Some(description) = &model.description {
        let size = description.size.as_ref().map_or_else(String::new, |size| format!(" ({size})"));
        let guessed = if description.guessed { ", guessed from tensor names" } else { "" };
        let name = strong(&format!("{}{size}", Escaped(&description.title)));
        writeln!(out, "This is a {name} model{guessed}.")?;
    } else if let Some(adapter) = &model.adapter {
        writeln!(out, "This is a {}.", strong(&Escaped(&adapter.to_string()).to_string()))?;
        writeln!(
            out,
            "It contains low-rank updates for the weights of a base model, and does not run \
             without it."
        )?;
    } else {
        let told = model.model_type.as_deref().filter(|told| *told != "unknown");
        let told =
            told.map_or_else(String::new, |told| format!(" (model_type '{}')", Escaped(told)));
        writeln!(out, "This is a model of an unknown family{told}.")?;
        if let Some(resembles) = &model.resembles {
            render_resemblance(out, resembles)?;
        }
    }

    model_facts(model).into_iter().try_for_each(|(label, fact)| {
        let fact = fact.as_str();
        writeln!(out, "- {}: {}", strong(label), Escaped(fact))
    })?;
    model.draft.iter().try_for_each(|draft| render_draft(out, draft))
}

/// Renders the most similar family of a model of an unknown family, and the differences.
fn render_resemblance(out: &mut dyn Write, nearest: &Resemblance) -> io::Result<()> {
    let Resemblance { title, known, total, .. } = nearest;
    writeln!(
        out,
        "{known} of {total} tensor names match {}, which may compute something else.",
        strong(&Escaped(title).to_string())
    )?;
    for (label, names) in [
        ("Tensors that it does not have", &nearest.unexpected),
        ("Tensors that it has, and this model not", &nearest.missing),
        ("Tensors of other shapes", &nearest.shapes),
        ("Entries of config.json that its class does not have", &nearest.entries),
    ] {
        if !names.is_empty() {
            writeln!(out, "- {}: {}", strong(label), Escaped(&names.join(", ")))?;
        }
    }
    Ok(())
}

/// Renders the beginning of a table for a model of an unknown family.
fn render_draft(out: &mut dyn Write, draft: &str) -> io::Result<()> {
    writeln!(out, "\nA table for --arch-file FILE can start like this (docs/families.md):\n")?;
    draft.lines().try_for_each(|line| writeln!(out, "{}", Escaped(line)))
}

fn model_facts(model: &ModelExplanation) -> Vec<(&'static str, String)> {
    let told = |label, text: fn(&Description) -> &Option<String>| {
        let text = text(model.description.as_ref()?).clone()?;
        Some((label, text))
    };
    let (parameters, tensors) =
        (counted(model.parameters, "parameter"), counted(model.tensor_count as u64, "tensor"));
    let mostly = model.dtype.map_or_else(String::new, |dtype| format!(", mostly {dtype}"));
    let dimension =
        |(name, size): &(&str, u64)| format!("{} {}", name.replace('_', " "), human::count(*size));
    let dimensions: Vec<String> = model.dimensions.iter().map(dimension).collect();
    [
        told("Purpose", |description| &description.purpose),
        told("Architecture", |description| &description.architecture),
        told("Input", |description| &description.input),
        told("Output", |description| &description.output),
        (!dimensions.is_empty()).then(|| ("Dimensions", dimensions.join(", "))),
        Some(("Size", format!("{parameters} in {tensors}{mostly}"))),
        Some(("Format", model.format.name.to_owned())),
    ]
    .into_iter()
    .flatten()
    .chain(model.quantization.iter().flat_map(quantization_facts))
    .collect()
}

fn quantization_facts(of: &StoredQuantization) -> Vec<(&'static str, String)> {
    const QUANTIZATION: &str = "Quantization";
    let kind = |kind: &StoredKind| {
        let bits = kind.bits_per_weight.map_or_else(String::new, |bits| format!("{bits:.2}"));
        let weights = counted(kind.weights as u64, "weight");
        (QUANTIZATION, format!("{} ({weights}, {bits} bits per weight)", kind.description))
    };
    let mut facts: Vec<_> = of.kinds.iter().map(kind).collect();
    facts.extend(of.undecodable.iter().map(|error| (QUANTIZATION, error.clone())));
    if facts.is_empty() {
        facts.push((QUANTIZATION, "none, the weights are plain tensors".to_owned()));
    }
    facts.extend(of.stated.iter().map(|method| ("Configuration", method.clone())));
    if !of.loaded_by.is_empty() {
        facts.push(("Loaded by", of.loaded_by.join(", ")));
    }
    facts
}

fn render_tensor(out: &mut dyn Write, tensor: &TensorExplanation) -> io::Result<()> {
    writeln!(out, "{}", strong(&Escaped(&tensor.name).to_string()))?;
    let mut item = |label: &str, value: &str| writeln!(out, "- {}: {value}", strong(label));
    if let Some(canonical) = &tensor.canonical {
        item("Canonical name", &Escaped(canonical).to_string())?;
    }

    match (&tensor.role, tensor.kind) {
        (Some(role), _) => item("Role", &Escaped(role).to_string())?,
        (None, Some(kind)) => item("Role", &format!("{}, by its name", kind.name()))?,
        (None, None) => {
            item("Role", "unknown: not a tensor of the model's family, or the family is unknown")?;
        }
    }

    let axes =
        tensor.axes.as_ref().map_or_else(String::new, |axes| format!(" ({})", axes.join(", ")));
    item("Shape", &format!("{}{axes}", tensor.shape))?;
    item("Dtype", &tensor.dtype.to_string())?;
    if let Some(uses) = &tensor.uses {
        item("Used by", &used_by(uses))?;
    }

    let Some(stats) = &tensor.stats else { return item("Stats", "quantized, not dequantized") };
    let (style, verdict) = if tensor.violations.is_empty() {
        (GOOD, "Healthy".to_owned())
    } else {
        let worst = tensor
            .violations
            .iter()
            .all(|violation| violation.level() == apr_ops::physics::Level::Warning);
        let found: Vec<String> = tensor.violations.iter().map(ToString::to_string).collect();
        (
            if worst { ODD } else { BAD },
            format!("{}: {}", if worst { "Odd" } else { "Unhealthy" }, found.join("; ")),
        )
    };

    let figure = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), number);
    let (mean, std) = (figure(stats.mean), figure(stats.std));
    item("Stats", &format!("Mean {mean}, Std {std} ({style}{verdict}{style:#})"))
}

/// The nodes that read a tensor, the first of them by name.
fn used_by(uses: &[Use]) -> String {
    const SHOWN: usize = 3;
    let nodes = uses
        .iter()
        .take(SHOWN)
        .map(|used| format!("{} ({})", Escaped(&used.node), Escaped(&used.op)));
    let nodes = nodes.collect::<Vec<_>>().join(", ");
    match uses.len() {
        0 => "not used by the model's graph".to_owned(),
        count if count > SHOWN => format!("{nodes} and {} more", count - SHOWN),
        _ => nodes,
    }
}
