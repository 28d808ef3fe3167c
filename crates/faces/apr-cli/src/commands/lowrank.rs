//! `apr convert --lowrank` and `apr factorize`: the model that a job reads, with factors in place
//! of matrices.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use apr_core::{StoredForm, counted};
use apr_io::io_error;
use apr_lowrank::{
    FactorReport, FactorStore, Factorization, FactorizedTensor, Left, RoundedTensor,
    RoundingReport, plan,
};
use apr_ops::job::Job;
use apr_platform::{read_exact_at, write_all_at};
use apr_quantize::SchemeKind;
use apr_registry::{Error, Escaped};
use apr_view::parse_filter;

use crate::args::ConvertArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::printer::{DIM, ODD};
use crate::progress::Bar;
use crate::{human, signals};

/// Tensors with the largest errors that are shown.
const SHOWN: usize = 10;

/// Factors in an unnamed file, because the factors of a large model can exceed its memory limit.
pub(super) struct FactorFile {
    file: File,
    end: Mutex<u64>,
}

impl FactorFile {
    pub(super) fn create() -> Outcome<Self> {
        let file = tempfile::tempfile().map_err(|error| io_error(&error, &std::env::temp_dir()))?;
        Ok(Self { file, end: Mutex::new(0) })
    }
}

impl FactorStore for FactorFile {
    fn append(&self, bytes: &[u8]) -> apr_core::Result<u64> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let written = write_all_at(&self.file, bytes, *end);
        written.map_err(|error| io_error(&error, &std::env::temp_dir()))?;
        let start = *end;
        *end += bytes.len() as u64;
        Ok(start)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> apr_core::Result<()> {
        let read = read_exact_at(&self.file, buf, offset);
        read.map_err(|error| io_error(&error, &std::env::temp_dir()))
    }
}

/// Returns the model that a job reads, factorized if factorization is requested.
pub(super) fn factorized(
    args: &ConvertArgs,
    (mut job, mut model): (Job, Model),
    context: &Context,
) -> Outcome<(Job, Model, Option<FactorReport>)> {
    job.weights.dense = args.lowrank.dense;
    if args.lowrank.dense {
        let has_layouts = (0..model.reader.tensors().len())
            .filter_map(|tensor| model.reader.stored(tensor).form())
            .any(|form| form.flags & StoredForm::LAYOUT != 0);
        let idle = match (job.target.target()?.seals, has_layouts) {
            (true, true) => None,
            (true, false) => Some("the model has no sparse tensors and no factors"),
            (false, _) => Some("other formats than .apr have dense tensors only"),
        };
        let idle = idle.map(|why| format!("--dense has no effect: {why}"));
        job.weights.warnings.extend(idle);
    }

    if !args.lowrank.is_asked() {
        return Ok((job, model, None));
    }
    check(args)?;
    let Some(amount) = args.lowrank.amount() else {
        return Err(Failure::Usage("--lowrank needs --rank R or --energy E".to_owned()));
    };

    let mut wanted = Factorization::new(amount);
    wanted.method = args.lowrank.method();
    wanted.targets =
        args.prune.target.as_deref().map(parse_filter).transpose().map_err(unsuited)?;
    wanted.dequantize = job.weights.dequantize;
    wanted.precision = job.weights.precision;
    wanted.memory = context.max_memory();
    wanted.threads = context.threads().get();

    let blocks = job.weights.quantize.as_ref().map(|quantize| quantize.choices.scheme);
    if let Some(scheme) = blocks.filter(|scheme| scheme.kind() == SchemeKind::Cast) {
        wanted.precision = Some(scheme.dtype());
    }
    let source = context.source(&*model.reader, &model.name)?;
    let planned = plan(&source, wanted).map_err(|error| unsuited_weights(error, &model))?;
    drop(source);

    signals::stop_cleanly(&context.interrupt)?;
    let bytes = model.reader.tensors().iter().map(|info| info.byte_len().unwrap_or_default());
    let bar = Bar::new(&context.printer, bytes.fold(0, u64::saturating_add));
    let store = Box::new(FactorFile::create()?);
    let (reader, report) = planned.apply(model.reader, store, &context.pipeline()?, &bar)?;
    drop(bar);
    model.reader = reader;

    if !model.reader.tensors().iter().any(|info| info.dtype.is_quantized()) {
        job.weights.dequantize = None;
    }
    job.weights.warnings.extend(idle(&job, &report)?);
    Ok((job, model, Some(report)))
}

/// Returns the warning for a job that stores no factors.
fn idle(job: &Job, report: &FactorReport) -> Outcome<Option<String>> {
    let scheme = job.weights.quantize.as_ref().map(|quantize| quantize.choices.scheme);
    let scheme = scheme.filter(|scheme| scheme.kind() != SchemeKind::Cast);
    Ok(if report.tensors.is_empty() {
        Some("no weight changes: no tensor is smaller as factors".to_owned())
    } else if !job.target.target()?.seals {
        let format = job.target.format.name;
        Some(format!("{format} stores no factors: their products are written, at full size"))
    } else {
        scheme.map(|scheme| format!("{scheme} stores no factors: their products are quantized"))
    })
}

/// Rejects options that would have no effect.
fn check(args: &ConvertArgs) -> Outcome {
    let options = &args.requantize.options;
    let has_use = args.prune.has_zeros() || args.requantize.quantize.is_some();
    if options.calibration.is_some() && !has_use {
        return Err(Failure::Usage(
            "--calibration applies to quantization and pruning, not to factors".to_owned(),
        ));
    }
    Ok(())
}

/// Turns errors about the model as a whole into usage errors; errors that name a tensor stay model
/// errors.
pub(super) fn unsuited(error: Error) -> Failure {
    match error.tensor() {
        Some(_) => Failure::Model(error),
        None => Failure::Usage(error.message().to_owned()),
    }
}

/// Same as [`unsuited`], but advises `--dequantize` for quantized weights, which must be floats to
/// be factorized.
fn unsuited_weights(error: Error, model: &Model) -> Failure {
    let tensors = model.reader.tensors().iter();
    let mut quantized = tensors.filter(|info| info.dtype.is_quantized());
    match error.tensor() {
        Some(name) if quantized.any(|info| info.name == *name) => {
            Failure::Usage(format!("{error}; pass --dequantize f16"))
        }
        _ => unsuited(error),
    }
}

/// Renders the factorized tensors and their error.
pub(super) fn render(out: &mut dyn Write, report: &FactorReport) -> io::Result<()> {
    let wanted = match (report.rank, report.energy) {
        (Some(rank), _) => format!("of rank {rank}"),
        (None, energy) => {
            format!("with {} % of the energy", 100.0 * energy.unwrap_or_default())
        }
    };
    writeln!(
        out,
        "  {} as factors {wanted} ({}): {} instead of {}, relative error {:.2} %",
        counted(report.tensors.len() as u64, "tensor"),
        report.method,
        human::bytes(report.total.bytes),
        human::bytes(report.total.bytes_before),
        100.0 * report.total.relative_error
    )?;
    let mut worst: Vec<&FactorizedTensor> = report.tensors.iter().collect();
    worst.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
    if !worst.is_empty() {
        writeln!(out, "  {DIM}largest errors:{DIM:#}")?;
    }
    for tensor in worst.into_iter().take(SHOWN) {
        let [rows, columns] = tensor.shape;
        writeln!(
            out,
            "    {:>7.2}%  energy {:>6.2} %  rank {} of {rows} x {columns}  {}",
            100.0 * tensor.relative_error,
            100.0 * tensor.energy,
            tensor.rank,
            Escaped::short(&tensor.name)
        )?;
    }
    render_left(out, "not factorized", &report.left)
}

/// Renders the weights with calibrated rounding, and the error of each matrix's outputs.
pub(super) fn render_rounding(out: &mut dyn Write, report: &RoundingReport) -> io::Result<()> {
    writeln!(
        out,
        "  rounded {} by {}, with {} of inputs; the error of outputs:",
        counted(report.tensors.len() as u64, "weight"),
        report.method,
        counted(report.rows, "row")
    )?;
    let mut worst: Vec<&RoundedTensor> = report.tensors.iter().collect();
    worst.sort_by(|a, b| b.output_error.total_cmp(&a.output_error));
    for tensor in worst.into_iter().take(SHOWN) {
        let (error, name) = (100.0 * tensor.output_error, Escaped::short(&tensor.name));
        writeln!(out, "    {error:>7.2}%  {name}")?;
    }
    render_left(out, "rounded to the nearest code", &report.left)
}

/// Tensors that were left alone.
pub(super) fn render_left(out: &mut dyn Write, what: &str, left: &[Left]) -> io::Result<()> {
    let more = match left.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = left.iter().take(SHOWN).map(|left| format!("{} ({})", left.name, left.why));
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {ODD}{what}{ODD:#}: {}{more}", Escaped(&named.join(", ")))
}
