//! Weights in codes and scales, as other programs quantize them.

use apr_arch::Families;
use apr_core::{CheckpointReader, Result};
use apr_ops::session::Session;
use apr_ops::validate::{Level, ValidateOptions};
use apr_registry::Serial;
use apr_source::Source;
use apr_testkit::FolderInMemory;
use apr_testkit::safetensors::{self, SafeTensor};
use apr_view::{Apart, Base, Coded};

use crate::{NAME, bytes, limits};

/// Maximum number of tensors, and maximum number of bytes of a tensor.
const TENSORS: usize = 32;
const BYTES: u64 = 1 << 16;

/// Maximum number of bytes of a decoded weight, which can be longer than its codes.
const VALUES: u64 = 1 << 22;

/// Reads the input as a model with weights in codes and scales: its first line is `config.json`,
/// its second lists the tensors, `[["up.weight", "I8", [2, 2]], ..]`, and the rest are bytes, with
/// which each tensor is filled in turn.
pub fn read_coded(data: &[u8]) {
    let Some(folder) = folder(data) else { return };
    let Ok(model) = apr_registry::open_folder(&folder, &limits()) else { return };
    let plain = apr_registry::open_folder(&folder, &limits()).expect("it was opened before");
    let model = Coded::over(Box::new(model));
    let mut all_read = true;
    for (tensor, info) in model.tensors().iter().enumerate() {
        if info.byte_len().is_ok_and(|len| len <= VALUES) {
            all_read &= check_pieces(&*model, tensor).is_ok();
        }
    }

    let apart = Apart::new(Base::from(&*model)).expect("companions can be read");
    assert_eq!(apart.tensors().len(), plain.tensors().len(), "no part is lost or made up");
    for (tensor, info) in apart.tensors().iter().enumerate() {
        let same = plain.tensors().iter().position(|other| other == info);
        let same = same.unwrap_or_else(|| panic!("{} keeps its name, dtype and shape", info.name));
        // A part that can't be decoded is not read by itself.
        let mut part = vec![0; usize::try_from(info.byte_len().expect("checked")).expect("small")];
        if apart.read_tensor(tensor, 0, &mut part).is_ok() {
            assert_eq!(part, bytes(&plain, same), "{} keeps its bytes", info.name);
        }
    }

    let families = Families::builtin();
    let session = Session::of(Source::new(&*model, &families).named(NAME));
    std::hint::black_box((session.inspect().is_ok(), session.lint().is_ok()));
    if model.tensors().iter().all(|info| info.byte_len().is_ok_and(|len| len <= VALUES)) {
        let validated = session.validate(ValidateOptions::default(), &Serial, &());
        let finds = |report: apr_ops::validate::ValidateReport| {
            report.findings.iter().any(|finding| finding.level == Level::Error)
        };
        assert!(all_read || validated.map_or(true, finds), "what cannot be read is not valid");
    }
}

/// Reads a tensor whole and in pieces that split elements and rows: both are the same, or an error.
fn check_pieces(model: &dyn CheckpointReader, tensor: usize) -> Result<()> {
    let info = &model.tensors()[tensor];
    let mut whole = vec![0; usize::try_from(info.byte_len()?).expect("small")];
    let read = model.read_tensor(tensor, 0, &mut whole);
    let len = whole.len().div_ceil(7).max(61);
    for (number, piece) in whole.clone().chunks_mut(len).enumerate() {
        piece.fill(0);
        let start = number * len;
        let of_piece = model.read_tensor(tensor, start as u64, piece);
        assert!(read.is_err() || of_piece.is_ok(), "{}: what can be read whole", info.name);
        if read.is_ok() {
            assert_eq!(piece, &whole[start..start + piece.len()], "{} in pieces", info.name);
        }
    }
    read
}

fn folder(data: &[u8]) -> Option<FolderInMemory> {
    let mut lines = data.splitn(3, |byte| *byte == b'\n');
    let (config, list) = (lines.next()?, lines.next()?);
    let data = lines.next().unwrap_or_default();
    let list: Vec<(String, String, Vec<u64>)> = serde_json::from_slice(list).ok()?;
    if list.len() > TENSORS {
        return None;
    }
    let mut at = 0;
    let mut tensors = Vec::new();
    for (name, dtype, shape) in list {
        // What is used up begins anew.
        let rest = data.get(at..).filter(|rest| !rest.is_empty()).unwrap_or(data);
        let tensor = SafeTensor { name, dtype, shape, bytes: rest.to_vec() };
        let tensor = tensor.filled(BYTES);
        if tensor.bytes.len() as u64 != tensor.wanted_len()? {
            return None;
        }
        at = if at < data.len() { at + tensor.bytes.len() } else { tensor.bytes.len() };
        tensors.push(tensor);
    }
    Some(FolderInMemory::from([
        ("config.json", config.to_vec()),
        ("model.safetensors", safetensors::file(None, &tensors)),
    ]))
}
