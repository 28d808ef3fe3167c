//! The way back from GGUF: tensors under the names, and in the row order, of Hugging Face.

use std::collections::HashMap;
use std::fs;

use apr_quantize::Scheme;
use apr_testkit::locate::fixture;
use candle_core::{DType, Device, Tensor, pickle, safetensors};

use crate::Outcome;
use crate::written::{gguf, restored};

/// The model as it was trained, by candle.
fn trained() -> Outcome<HashMap<String, Tensor>> {
    Ok(safetensors::load(fixture("tiny-llama/model.safetensors"), &Device::Cpu)?)
}

/// Checks that the tensors are as trained, with matrices rounded to `dtype`.
///
/// GGUF keeps vectors in single precision.
fn assert_restored(theirs: &HashMap<String, Tensor>, dtype: DType) -> Outcome {
    let trained = trained()?;
    assert_eq!(theirs.len(), trained.len());
    for (name, trained) in trained {
        let theirs = theirs.get(&name).ok_or_else(|| format!("lacks {name}"))?;
        assert_eq!(theirs.dims(), trained.dims(), "{name}");
        assert_eq!(theirs.dtype(), if trained.rank() == 1 { DType::F32 } else { dtype }, "{name}");
        let bits = |tensor: &Tensor| -> Outcome<Vec<u32>> {
            let values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            Ok(values.into_iter().map(f32::to_bits).collect())
        };
        let rounded = trained.to_dtype(DType::F32)?.to_dtype(theirs.dtype())?;
        assert!(bits(theirs)? == bits(&rounded)?, "values of {name}");
    }
    Ok(())
}

#[test]
fn safetensors_hold_the_tensors_as_trained() -> Outcome {
    for (scheme, dtype) in
        [(Scheme::Bf16, DType::BF16), (Scheme::Fp16, DType::F16), (Scheme::Fp32, DType::F32)]
    {
        let file =
            restored(gguf(scheme)?, &apr_registry::safetensors::FORMAT, "model.safetensors")?;
        assert_restored(&safetensors::load_buffer(&file, &Device::Cpu)?, dtype)?;
    }
    Ok(())
}

#[test]
fn a_pytorch_state_dict_holds_the_tensors_as_trained() -> Outcome {
    let folder = tempfile::tempdir()?;
    for (scheme, dtype) in
        [(Scheme::Bf16, DType::BF16), (Scheme::Fp16, DType::F16), (Scheme::Fp32, DType::F32)]
    {
        let path = folder.path().join("pytorch_model.bin");
        fs::write(
            &path,
            restored(gguf(scheme)?, &apr_registry::pytorch::FORMAT, "pytorch_model.bin")?,
        )?;
        assert_restored(&pickle::read_all(&path)?.into_iter().collect(), dtype)?;
    }
    Ok(())
}
