//! What the pipeline of `apr convert` and `apr quantize` writes.

use apr_arch::Families;
use apr_io::open_model_with_companions;
use apr_ops::convert::{ConvertOptions, plan};
use apr_ops::import::{Foreign, Prepared, restore};
use apr_ops::inline::ValidationConfig;
use apr_quantize::{Casts, Choices, Quantization, Scheme, TensorTarget};
use apr_registry::{CheckpointReader, DType, OpenOptions, PlanOptions, Serial};
use apr_source::{Architecture, Source, family_of};
use apr_testkit::locate::fixture;

use crate::Outcome;

/// tiny-llama in a GGUF file, quantized.
pub(crate) fn gguf(scheme: Scheme) -> Outcome<Vec<u8>> {
    gguf_of(Choices::new(scheme))
}

/// Returns tiny-llama in a GGUF file, quantized to the bare type instead of the mix.
pub(crate) fn pure_gguf(scheme: Scheme) -> Outcome<Vec<u8>> {
    gguf_of(Choices { pure: true, ..Choices::new(scheme) })
}

fn gguf_of(choices: Choices) -> Outcome<Vec<u8>> {
    let model = open_model_with_companions(&fixture("tiny-llama"), &OpenOptions::default())?;
    let families = Families::builtin();
    let mut foreign = foreign(&*model, &families, &apr_registry::gguf::FORMAT)?;
    let view = &mut foreign.prepared.view;
    let quantization =
        Quantization { choices: Choices { casts: Casts::Weights, ..choices }, weighting: None };
    let planned = apr_quantize::plan(
        view,
        family_of(view, &families, &Architecture::Auto)?.as_ref(),
        &quantization,
    )?;
    let planned = planned.targets.into_iter().zip(view.tensors());
    // What the scheme leaves alone still gets the type that GGUF wants.
    let changed = planned.map(|(target, info)| target.filter(|target| target.dtype != info.dtype));
    let due =
        std::mem::take(&mut foreign.dtypes).into_iter().map(|dtype| dtype.map(TensorTarget::from));
    let targets = changed.zip(due).map(|(changed, due)| changed.or(due)).collect();
    apr_quantize::record(view, &quantization, None, &apr_registry::gguf::FORMAT)?;
    run(
        foreign.prepared,
        targets,
        &PlanOptions::new(&apr_registry::gguf::FORMAT, "tiny-llama.gguf"),
    )
}

/// A GGUF file under the names and in the layout of Hugging Face.
pub(crate) fn restored(
    gguf: Vec<u8>,
    format: &'static apr_registry::Format,
    file_name: &str,
) -> Outcome<Vec<u8>> {
    let model = apr_registry::open(gguf, "tiny-llama.gguf", OpenOptions::default())?;
    let families = Families::builtin();
    let Foreign { prepared, .. } = foreign(&*model, &families, format)?;
    run(prepared, Vec::new(), &PlanOptions::new(format, file_name))
}

fn foreign<'a>(
    model: &'a dyn CheckpointReader,
    families: &'a Families,
    format: &'static apr_registry::Format,
) -> Outcome<Foreign<'a>> {
    let foreign = restore(&Source::new(model, families), format, ValidationConfig::strict())?;
    assert!(foreign.prepared.misfits.is_empty(), "{:?}", foreign.prepared.misfits);
    Ok(foreign)
}

fn run(
    prepared: Prepared<'_>,
    targets: Vec<Option<TensorTarget>>,
    target: &PlanOptions,
) -> Outcome<Vec<u8>> {
    let Prepared { view, validator, .. } = prepared;
    let options = ConvertOptions { targets, ..ConvertOptions::default() };
    let mut file = Vec::new();
    plan(&view, &options, target)?.validated_by(validator).run(&view, &mut file, &Serial, &())?;
    Ok(file)
}

/// Bytes and values of every tensor of a file, as this workspace reads it.
pub(crate) struct Decoded {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) values: Vec<f32>,
}

/// Reads a file that was written.
pub(crate) fn decoded(file: &[u8]) -> Outcome<Vec<Decoded>> {
    let reader = apr_registry::open(file.to_vec(), "written", OpenOptions::default())?;
    let infos = reader.tensors().iter().enumerate();
    infos
        .map(|(position, info)| {
            let mut bytes = vec![0; info.byte_len()?.try_into()?];
            reader.read_tensor(position, 0, &mut bytes)?;
            let shape = info.shape.dims().iter().map(|&dimension| usize::try_from(dimension));
            let shape = shape.collect::<Result<_, _>>()?;
            let values = values(info.dtype, &bytes, info.shape.row_len().try_into()?);
            Ok(Decoded { name: info.name.clone(), shape, bytes, values })
        })
        .collect()
}

fn values(dtype: DType, bytes: &[u8], row_len: usize) -> Vec<f32> {
    let mut values = Vec::new();
    if dtype.is_quantized() {
        apr_tensor::block::dequantize(dtype, bytes, row_len, &mut values);
    } else {
        apr_tensor::element::widen_f32(dtype, bytes, &mut values);
    }
    values
}
