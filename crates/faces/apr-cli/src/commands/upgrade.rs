//! `apr upgrade`: the conversion of older APR files, and what it changes.

use apr::job::Output;
use apr_core::counted;
use apr_ops::inline::ValidationConfig;
use apr_ops::job::Job;
use apr_registry::{CheckpointReader, Error};
use serde_json::Value;

use super::convert::{Destination, Extras, write};
use crate::args::UpgradeArgs;
use crate::context::Context;
use crate::failure::Outcome;
use crate::model;

/// Writes an older file as an `.apr` file of the current version.
///
/// Problems of the model existed before: they are reported and recorded, and do not stop the
/// upgrade. Tensors whose stored checksum is wrong stop it, so that new checksums never certify
/// damaged bytes.
pub(super) fn run(args: &UpgradeArgs, context: &Context) -> Outcome {
    let model = model::open(&args.old, context)?;
    let changes = changes(&*model.reader).map_err(|error| error.in_file(&model.name))?;
    model::compare_tensors(&*model.reader)?;
    let target = Output::layout(&apr_registry::apr2::FORMAT, Some(&args.new));
    let job = Job { validation: ValidationConfig::relaxed(), ..Job::new(target) };
    write(
        &job,
        &model,
        Destination::at(&args.new, args.overwrite),
        Extras { changes, ..Extras::default() },
        context,
    )
}

/// Returns the changes that an upgrade makes to a file.
///
/// # Errors
/// E001 where there is nothing to upgrade.
fn changes(reader: &dyn CheckpointReader) -> Result<Vec<String>, Error> {
    let format = reader.format();
    let Some(successor) = format.successor else {
        let is_newest = apr_registry::formats().any(|older| older.successor == Some(format));
        let message = match is_newest {
            true => format!("already {}: nothing to upgrade", format.name),
            false => format!("{} is not an older APR format; `apr import` packs it", format.name),
        };
        return Err(Error::format(message));
    };

    let header = reader.container().header_fields();
    let program = header.get("program").and_then(Value::as_str);
    let program = program.map_or_else(String::new, |program| format!(" of {program}"));
    let mut changes = vec![format!("format: {}{program} -> {} 2.0.0", format.name, successor.name)];
    changes.extend(recoded(reader));
    let before = if reader.container().checksum().is_some() { "a CRC-32" } else { "no checksum" };
    changes.push(format!("integrity: {before} -> a CRC-32, and a BLAKE3 digest for each tensor"));
    Ok(changes)
}

/// Tensors that get another layout, by the dtype that they get.
fn recoded(reader: &dyn CheckpointReader) -> Vec<String> {
    if reader.format() == &apr_registry::aprn::FORMAT {
        // What is stored of its arrays is the packed payload; they are taken out as they are.
        return Vec::new();
    }

    let mut counts: Vec<(&str, u64)> = Vec::new();
    for (at, info) in reader.tensors().iter().enumerate() {
        if info.byte_len().is_ok_and(|len| len == reader.stored(at).range.len)
            && !info.dtype.is_quantized()
        {
            continue;
        }
        match counts.iter_mut().find(|(dtype, _)| *dtype == info.dtype.name()) {
            Some((_, count)) => *count += 1,
            None => counts.push((info.dtype.name(), 1)),
        }
    }

    let line = |(dtype, count)| {
        format!(
            "layout: {} of older dtypes -> {dtype}, with the same values",
            counted(count, "tensor")
        )
    };

    counts.into_iter().map(line).collect()
}
