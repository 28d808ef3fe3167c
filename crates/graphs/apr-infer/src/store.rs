//! Bytes of a checkpoint's tensors, kept or read, and the elements in them.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use apr_core::{CheckpointReader, Coding, DType, DTypeKind, Error, KeepCodes, KeptCodes, Result};
use apr_tensor::{block, element};

use crate::Arithmetic;
use crate::matrix::{Precision, can_multiply};

/// Tensors of a checkpoint. Kept tensors are read once, the others at each use.
pub(crate) struct Store<'a> {
    pub(crate) reader: &'a dyn CheckpointReader,
    /// Arithmetic for products with the tensors.
    pub(crate) arithmetic: Arithmetic,
    /// Data kept for each tensor. Empty if no tensor is kept.
    kept: Vec<Kept<'a>>,
}

/// Products with a weight in codes that are slow to decode, after which its values are kept.
///
/// Decoding all weights to keep them takes as long as values then save in two to nine tokens. So
/// short answers are computed from codes, and long ones take little more time than from values.
const USES: u32 = 8;

/// Number of tokens over which the weights of a model change from codes to values, so that no token
/// waits for all of them.
const SPREAD: usize = 8;

/// Data of a tensor that is kept from its first use on.
enum Kept<'a> {
    /// Bytes of the tensor.
    Bytes(OnceLock<Vec<u8>>),
    /// Codes of the tensor, which are decoded at each use.
    Codes(CodedWeight<'a>),
}

/// The codes of a weight.
#[derive(Default)]
enum Codes {
    #[default]
    Unread,
    Kept(Arc<dyn KeptCodes>),
    /// They could not be read, or values are kept.
    Absent,
}

/// A coded weight whose codes are kept.
struct CodedWeight<'a> {
    coding: Coding<'a>,
    codes: RwLock<Codes>,
    /// Number of uses after which values are kept; `None` if codes are as fast, or if values don't
    /// fit.
    until: Option<u32>,
    uses: AtomicU32,
    values: OnceLock<Vec<u8>>,
}

impl CodedWeight<'_> {
    /// Returns `true` if it was used so often that its values are kept.
    fn has_values(&self) -> bool {
        self.until.is_some_and(|until| self.uses.load(Ordering::Relaxed) > until)
    }

    /// Returns the codes, which are read at the first use.
    fn codes(&self, reader: &dyn CheckpointReader, tensor: usize) -> Option<Arc<dyn KeptCodes>> {
        match &*self.codes.read().unwrap_or_else(PoisonError::into_inner) {
            Codes::Unread => {}
            Codes::Kept(codes) => return Some(Arc::clone(codes)),
            Codes::Absent => return None,
        }
        let mut codes = self.codes.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*codes, Codes::Unread) {
            let keep = || {
                // What was read by nobody yet is compared with its checksum first.
                reader.read_tensor(tensor, 0, &mut [0]).ok()?;
                self.coding.in_memory?.keep(self.coding.base).ok()
            };
            *codes = keep().map_or(Codes::Absent, |codes| Codes::Kept(codes.into()));
        }
        match &*codes {
            Codes::Kept(codes) => Some(Arc::clone(codes)),
            _ => None,
        }
    }

    /// Drops the codes, because values are kept.
    fn drop_codes(&self) {
        *self.codes.write().unwrap_or_else(PoisonError::into_inner) = Codes::Absent;
    }
}

impl Kept<'_> {
    /// Returns the place of the bytes, if the bytes are kept.
    fn bytes(&self) -> Option<&OnceLock<Vec<u8>>> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Codes(weight) => weight.has_values().then_some(&weight.values),
        }
    }
}

impl<'a> Store<'a> {
    pub(crate) fn new(reader: &'a dyn CheckpointReader, arithmetic: Arithmetic) -> Self {
        Self { reader, arithmetic, kept: Vec::new() }
    }

    /// Returns the precision to which activations are converted before they are multiplied with a
    /// tensor, or `None` if they are unchanged.
    pub(crate) fn precision(&self, tensor: usize) -> Option<Precision> {
        match self.reader.tensors()[tensor].dtype {
            _ if self.arithmetic == Arithmetic::Exact => None,
            DType::F16 => Some(Precision::F16),
            DType::BF16 => Some(Precision::Bf16),
            dtype => can_multiply(dtype).then_some(Precision::Blocks),
        }
    }

    /// Keeps the tensors that are read from now on, up to `most` bytes in all, and returns their
    /// size in bytes.
    ///
    /// It keeps the codes of coded weights. After some uses, it keeps the values instead if the
    /// codes are [slow to decode](KeepCodes::is_slow) and all values fit. If the codes do not fit,
    /// it keeps nothing.
    pub(crate) fn keep(&mut self, tensors: &[usize], most: u64) -> u64 {
        let in_memory = |tensor: &usize| match self.reader.tensor_slice(*tensor) {
            // Floats that lie askew would have to be copied at every use.
            Some(bytes) => {
                self.reader.tensors()[*tensor].dtype != DType::F32 || as_floats(bytes).is_some()
            }
            None => false,
        };

        let read = || tensors.iter().filter(|tensor| !in_memory(tensor));
        let values = |tensor: &usize| self.reader.tensors()[*tensor].byte_len().unwrap_or(u64::MAX);
        let codes = |tensor: &usize| match codes_of(self.reader, *tensor) {
            Some((_, codes)) => codes.kept_len(),
            None => values(tensor),
        };
        let is_slow = |tensor: usize| {
            codes_of(self.reader, tensor).is_some_and(|(of, codes)| codes.is_slow(of.base))
        };
        let of_codes = read().map(codes).fold(0_u64, u64::saturating_add);
        // Codes are dropped when the values are there.
        let either = |tensor: &usize| match is_slow(*tensor) {
            true => codes(tensor).max(values(tensor)),
            false => codes(tensor),
        };
        let of_values = read().map(either).fold(0_u64, u64::saturating_add);
        let (keeps_values, total) =
            if of_values <= most { (true, of_values) } else { (false, of_codes) };
        if total > most {
            return 0;
        }

        let count = self.reader.tensors().len();
        let kept = |tensor| match codes_of(self.reader, tensor) {
            Some((coding, _)) => {
                let place = u32::try_from(tensor * SPREAD / count).unwrap_or_default();
                Kept::Codes(CodedWeight {
                    coding,
                    codes: RwLock::default(),
                    until: (keeps_values && is_slow(tensor)).then_some(USES + place),
                    uses: AtomicU32::new(0),
                    values: OnceLock::new(),
                })
            }
            None => Kept::Bytes(OnceLock::new()),
        };
        self.kept = (0..count).map(kept).collect();
        total
    }

    /// Counts a use of a tensor. Returns `true` if it is kept as codes and decoded from them.
    pub(crate) fn uses_codes(&self, tensor: usize) -> bool {
        let Some(Kept::Codes(weight)) = self.kept.get(tensor) else { return false };
        if !weight.has_values() {
            weight.uses.fetch_add(1, Ordering::Relaxed);
        }
        !weight.has_values()
    }

    /// Fills `out` with rows of a tensor whose codes are kept, from a column on. Returns `false` if
    /// they could not be decoded, or if values are kept by now: the values are read then, where an
    /// error occurs again.
    pub(crate) fn decode_codes(
        &self,
        tensor: usize,
        rows: Range<usize>,
        first_column: usize,
        out: &mut [f32],
    ) -> bool {
        let Some(Kept::Codes(weight)) = self.kept.get(tensor) else { return false };
        let Some(codes) = weight.codes(self.reader, tensor) else { return false };
        codes.decode(weight.coding.base, rows, first_column, out).is_ok()
    }

    /// Returns `true` if the bytes of a tensor are in memory, now or from the first use on.
    pub(crate) fn is_in_memory(&self, tensor: usize) -> bool {
        !self.kept.is_empty() || self.reader.tensor_slice(tensor).is_some()
    }

    /// Returns bytes of a tensor. They are borrowed if they are in memory, and read otherwise.
    pub(crate) fn bytes(&self, tensor: usize, offset: usize, len: usize) -> Result<Bytes<'_>> {
        let part = |bytes: &'_ [u8]| -> Option<std::ops::Range<usize>> {
            let end = offset.checked_add(len)?;
            (end <= bytes.len()).then_some(offset..end)
        };
        if let Some((bytes, range)) =
            self.reader.tensor_slice(tensor).and_then(|bytes| Some((bytes, part(bytes)?)))
        {
            return Ok(Bytes::Borrowed(&bytes[range]));
        }
        if let Some(kept) = self.kept.get(tensor).and_then(Kept::bytes)
            && let bytes = self.kept_bytes(tensor, kept)?
            && let Some(range) = part(bytes)
        {
            return Ok(Bytes::Borrowed(&bytes[range]));
        }
        let mut bytes = vec![0; len];
        self.reader.read_tensor(tensor, offset as u64, &mut bytes)?;
        Ok(Bytes::Read(bytes))
    }

    /// Returns all elements of an `f32` tensor in memory, if they are stored in the processor's own
    /// format.
    pub(crate) fn floats(&self, tensor: usize) -> Option<&[f32]> {
        if let Some(floats) = self.reader.tensor_slice(tensor).and_then(as_floats) {
            return Some(floats);
        }
        let kept = self.kept.get(tensor)?.bytes()?;
        // An error comes up again where the elements are read.
        as_floats(self.kept_bytes(tensor, kept).ok()?)
    }

    /// All bytes of a tensor that is kept.
    fn kept_bytes<'k>(&self, tensor: usize, kept: &'k OnceLock<Vec<u8>>) -> Result<&'k [u8]> {
        if let Some(bytes) = kept.get() {
            return Ok(bytes);
        }
        let mut bytes = vec![0; size(self.reader.tensors()[tensor].byte_len()?)?];
        self.reader.read_tensor(tensor, 0, &mut bytes)?;
        // Another thread may have been faster, with the same bytes.
        let bytes = kept.get_or_init(|| bytes);
        if let Some(Kept::Codes(weight)) = self.kept.get(tensor) {
            weight.drop_codes();
        }
        Ok(bytes)
    }
}

/// Returns the coding with which a tensor can be kept as codes, if there is one.
fn codes_of(
    reader: &dyn CheckpointReader,
    tensor: usize,
) -> Option<(Coding<'_>, &'_ dyn KeepCodes)> {
    let coding = reader.stored(tensor).coding()?;
    Some((coding, coding.in_memory?))
}

/// Returns bytes as little-endian floats, if they are aligned and the processor is little-endian.
#[allow(unsafe_code, reason = "any four bytes are a float")]
fn as_floats(bytes: &[u8]) -> Option<&[f32]> {
    if cfg!(target_endian = "big") {
        return None;
    }
    // SAFETY: every pattern of bits is a float, and the middle is aligned.
    let (before, floats, after) = unsafe { bytes.align_to::<f32>() };
    (before.is_empty() && after.is_empty()).then_some(floats)
}

/// Bytes of a tensor.
pub(crate) enum Bytes<'a> {
    Borrowed(&'a [u8]),
    Read(Vec<u8>),
}

impl Bytes<'_> {
    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Read(bytes) => bytes,
        }
    }
}

/// Replaces the contents of `out` by the elements of whole rows of any dtype.
pub(crate) fn decode(dtype: DType, bytes: &[u8], row_len: usize, out: &mut Vec<f32>) -> Result<()> {
    match dtype {
        _ if block::can_dequantize(dtype) => block::dequantize(dtype, bytes, row_len, out),
        DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
            let mut doubles = Vec::new();
            element::widen_f64(dtype, bytes, &mut doubles);
            out.clear();
            out.extend(doubles.iter().map(|&value| value as f32));
        }
        DType::C64 => return Err(Error::format("complex numbers are not computed with")),
        _ if dtype.kind() != DTypeKind::Quantized => element::widen_f32(dtype, bytes, out),
        _ => return Err(Error::version(format!("dtype {dtype} is not decoded"))),
    }
    Ok(())
}

/// A number of elements or bytes that memory can hold.
pub(crate) fn size(value: u64) -> Result<usize> {
    usize::try_from(value)
        .map_err(|_| Error::memory(format!("{value} elements do not fit the memory")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use apr_core::Limits;
    use apr_testkit::FolderInMemory;
    use apr_testkit::locate::shared_case;

    use super::*;

    #[test]
    fn codes_are_kept_and_values_of_slow_codes_after_some_uses_if_they_fit() {
        let fast = ["fp8-block", "bnb-int8", "modelopt-fp8"];
        let slow = ["gptq4", "ct-w8a8-int", "ct-nvfp4", "ct-fp8-channel", "gptq4-actorder"];
        for name in fast.into_iter().chain(slow) {
            let Some(path) = shared_case(&format!("codes/{name}")) else { return };
            let mut folder = FolderInMemory::default();
            for entry in fs::read_dir(path).expect("a folder") {
                let entry = entry.expect("an entry");
                let file = entry.file_name().into_string().expect("text");
                folder.0.insert(file, fs::read(entry.path()).expect("a file"));
            }
            let model = apr_registry::open_folder(&folder, &Limits::default()).expect("a model");
            let model = apr_view::Coded::over(Box::new(model));
            let coded = |tensor: &usize| codes_of(&*model, *tensor).is_some();
            let tensors: Vec<usize> = (0..model.tensors().len()).filter(coded).collect();
            let is_slow = |&&at: &&usize| {
                codes_of(&*model, at).is_some_and(|(of, codes)| codes.is_slow(of.base))
            };
            assert_eq!(tensors.iter().any(|at| is_slow(&at)), slow.contains(&name), "{name}");
            let lens = tensors.iter().map(|&at| model.tensors()[at].byte_len().expect("a length"));
            let values: u64 = lens.sum();
            let of_slow = tensors.iter().filter(is_slow);
            let of_slow: u64 =
                of_slow.map(|&at| model.tensors()[at].byte_len().expect("a length")).sum();
            let codes: u64 =
                tensors.iter().filter_map(|&at| Some(codes_of(&*model, at)?.1.kept_len())).sum();
            assert!(0 < codes && codes < values, "{name}: {codes} of {values}");

            let &[rows, columns] = model.tensors()[tensors[0]].shape.dims() else {
                panic!("{name}")
            };
            let (rows, columns) = (size(rows).unwrap(), size(columns).unwrap());
            let rows_of = |most: u64, kept: u64, uses: u32, uses_codes: bool| {
                let mut store = Store::new(&*model, Arithmetic::Exact);
                assert_eq!(store.keep(&tensors, most), kept, "{name}");
                (1..uses).for_each(|_| _ = store.uses_codes(tensors[0]));
                assert_eq!(store.uses_codes(tensors[0]), uses_codes, "{name}: {uses} uses");
                let mut out = vec![f32::NAN; rows * columns];
                if uses_codes {
                    assert!(store.decode_codes(tensors[0], 0..rows, 0, &mut out), "{name}");
                    return out;
                }
                let info = &model.tensors()[tensors[0]];
                let len = size(info.byte_len().expect("a length")).unwrap();
                let bytes = store.bytes(tensors[0], 0, len).expect("bytes");
                decode(info.dtype, bytes.get(), columns, &mut out).expect("values");
                out
            };
            let expected = rows_of(codes - 1, 0, 1, false);
            let same = |rows: Vec<f32>| {
                rows.iter().zip(&expected).all(|(left, right)| left.to_bits() == right.to_bits())
            };
            let (most, many) = (codes.max(of_slow), 2 * USES + 2);
            assert!(same(rows_of(most, most, 1, true)), "{name}");
            assert!(same(rows_of(most, most, many, of_slow == 0)), "{name}");
            assert!(same(rows_of(codes, codes, many, true)), "{name}");
        }
    }

    #[test]
    fn every_dtype_that_is_decoded_gives_as_many_elements_as_it_stores() {
        for &dtype in DType::ALL {
            let shape = apr_core::Shape::from([2, 256]);
            let Some(len) = dtype.stored_len(&shape) else { continue };
            let mut out = Vec::new();
            if decode(dtype, &vec![0; size(len).unwrap()], 256, &mut out).is_ok() {
                assert_eq!(out.len(), 512, "{dtype}");
            }
        }
    }
}
