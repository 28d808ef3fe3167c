//! Arrays of zarr 2: what `.zarray` says, and how a range of elements lies in chunks.

use apr_core::{DType, Error, Escaped, Metadata, Result};
use serde_json::Value;

/// Dimensions of an array.
const MAX_RANK: usize = 64;

/// Compression of the bytes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compressor {
    None,
    Zlib,
    Gzip,
    Zstd,
}

/// An array, cut into chunks of one shape.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) compressor: Compressor,
    /// `true` if elements without a chunk are zero.
    pub(crate) fills_zeros: bool,
    chunk: Vec<u64>,
    separator: char,
}

/// A contiguous piece of an array: its chunk, its offset there, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) chunk: usize,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Array {
    /// # Errors
    /// E002 for a damaged description, E003 for arrays that are not read.
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::corrupt(format!("the description of an array {what}"));
        let described = Metadata::parse(json)?;
        let of = |name: &str| described.get(name).unwrap_or(&Value::Null);
        let sizes = |name: &str| {
            let sizes = of(name).as_array().filter(|sizes| sizes.len() <= MAX_RANK);
            sizes.and_then(|sizes| sizes.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>())
        };
        let (dims, chunk) = sizes("shape")
            .zip(sizes("chunks"))
            .ok_or_else(|| damaged("has no shape of the array and of its chunks"))?;
        if dims.len() != chunk.len() || chunk.contains(&0) {
            return Err(damaged("has chunks that are not the array's"));
        }
        if of("zarr_format").as_u64() != Some(2) {
            return Err(Error::version("arrays of another version of zarr than 2"));
        }
        if of("order").as_str() != Some("C") && dims.len() > 1 {
            return Err(Error::version("it is laid out by columns"));
        }
        if of("filters").as_array().is_some_and(|filters| !filters.is_empty()) {
            return Err(Error::version("its chunks are filtered"));
        }
        let spelled = of("dtype").as_str().unwrap_or_default();
        let dtype = dtype(spelled).ok_or_else(|| {
            let spelled = Escaped::short(spelled);
            Error::version(format!("no format here holds elements of {spelled}"))
        })?;
        let compressor = match of("compressor")["id"].as_str() {
            None => Compressor::None,
            Some("zlib") => Compressor::Zlib,
            Some("gzip") => Compressor::Gzip,
            Some("zstd") => Compressor::Zstd,
            Some(other) => {
                let other = Escaped::short(other);
                return Err(Error::version(format!("its chunks are compressed with {other}")));
            }
        };
        let separator = match of("dimension_separator").as_str() {
            Some("/") => '/',
            _ => '.',
        };
        let found = Self {
            dtype,
            fills_zeros: is_zero(of("fill_value")),
            dims,
            compressor,
            chunk,
            separator,
        };
        found.byte_len().and(found.chunk_len()).ok_or_else(|| damaged("takes over 2^64 bytes"))?;
        Ok(found)
    }

    /// Bytes of all elements.
    pub(crate) fn byte_len(&self) -> Option<u64> {
        product(&self.dims, self.dtype.block_bytes())
    }

    /// Returns the length of a chunk in bytes. Chunks at the end of a dimension also have elements
    /// past it.
    pub(crate) fn chunk_len(&self) -> Option<u64> {
        product(&self.chunk, self.dtype.block_bytes())
    }

    /// Returns the number of chunks along each dimension.
    fn grid(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        self.dims.iter().zip(&self.chunk).map(|(dim, chunk)| dim.div_ceil(*chunk))
    }

    /// Number of chunks.
    pub(crate) fn chunks(&self) -> Option<u64> {
        self.grid().try_fold(1_u64, u64::checked_mul)
    }

    /// The key of a chunk: its place along each dimension.
    pub(crate) fn key(&self, mut chunk: u64) -> String {
        let places = self.grid().rev().map(|count| {
            let place = chunk % count.max(1);
            chunk /= count.max(1);
            place.to_string()
        });
        let mut places: Vec<String> = places.collect();
        places.reverse();
        if places.is_empty() { "0".to_owned() } else { places.join(&self.separator.to_string()) }
    }

    /// The pieces that the bytes from `offset` on are, of which there must be `len`.
    pub(crate) fn runs(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(Run) -> Result<()>,
    ) -> Result<()> {
        let width = self.dtype.block_bytes();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let run = self.run(at / width, at % width, end - at);
            each(run)?;
            at += run.len;
        }
        Ok(())
    }

    /// Returns the longest contiguous piece from an element on, or from a byte within it.
    fn run(&self, element: u64, within: u64, most: u64) -> Run {
        let width = self.dtype.block_bytes();
        let (mut rest, mut chunk, mut offset) = (element, 0, 0);
        let (mut chunks, mut stride) = (1, 1);
        // Elements that lie together: dimensions that one chunk has whole, and a part of the next.
        let (mut together, mut goes_on) = (1, true);
        for ((dim, size), count) in self.dims.iter().zip(&self.chunk).zip(self.grid()).rev() {
            let place = rest % dim;
            rest /= dim;
            let inner = place % size;
            if goes_on {
                let here = (size - inner).min(dim - place);
                // What is before this dimension is at its first element where it goes on.
                let before = offset;
                together = here * stride - before;
                goes_on = size == dim;
            }
            offset += inner * stride;
            chunk += place / size * chunks;
            chunks *= count;
            stride *= size;
        }
        let len = (together * width - within).min(most);
        Run {
            chunk: usize::try_from(chunk).unwrap_or(usize::MAX),
            offset: offset * width + within,
            len,
        }
    }
}

fn product(dims: &[u64], width: u64) -> Option<u64> {
    dims.iter().try_fold(width, |product, dim| product.checked_mul(*dim))
}

/// Returns `true` if a fill value is zero. A missing value counts as zero, as in TensorStore.
fn is_zero(value: &Value) -> bool {
    value.is_null() || value.as_f64() == Some(0.0) || value.as_bool() == Some(false)
}

/// Returns the dtype with this name in NumPy or TensorStore.
fn dtype(spelled: &str) -> Option<DType> {
    Some(match spelled {
        "|b1" => DType::BOOL,
        "|i1" => DType::I8,
        "<i2" => DType::I16,
        "<i4" => DType::I32,
        "<i8" => DType::I64,
        "|u1" => DType::U8,
        "<u2" => DType::U16,
        "<u4" => DType::U32,
        "<u8" => DType::U64,
        "<f2" => DType::F16,
        "<f4" => DType::F32,
        "<f8" => DType::F64,
        "<c8" => DType::C64,
        "bfloat16" => DType::BF16,
        "float8_e4m3fn" => DType::F8_E4M3,
        "float8_e5m2" => DType::F8_E5M2,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dims: &[u64], chunk: &[u64]) -> Array {
        let json = serde_json::json!({
            "shape": dims, "chunks": chunk, "dtype": "<i2", "order": "C", "compressor": null,
            "fill_value": null, "filters": null, "zarr_format": 2,
        });
        Array::parse(json.to_string().as_bytes()).expect("an array")
    }

    #[test]
    fn keys_are_places_along_each_dimension() {
        let cut = array(&[5, 7], &[2, 3]);
        assert_eq!(cut.chunks(), Some(9));
        assert_eq!([cut.key(0), cut.key(5), cut.key(8)], ["0.0", "1.2", "2.2"]);
        assert_eq!(array(&[], &[]).key(0), "0");
    }

    #[test]
    fn runs_are_what_lies_together() {
        let runs = |array: &Array, offset, len| {
            let mut found = Vec::new();
            array
                .runs(offset, len, |Run { chunk, offset, len }| {
                    found.push((chunk, offset, len));
                    Ok(())
                })
                .expect("in range");
            found
        };
        // Rows of whole chunks lie together, of two bytes an element.
        assert_eq!(runs(&array(&[4, 3], &[2, 3]), 0, 24), [(0, 0, 12), (1, 0, 12)]);
        assert_eq!(runs(&array(&[4, 3], &[2, 3]), 7, 6), [(0, 7, 5), (1, 0, 1)]);
        // Chunks past the end have elements that the array has not.
        let cut = array(&[3, 5], &[2, 3]);
        assert_eq!(runs(&cut, 0, 20), [(0, 0, 6), (1, 0, 4), (0, 6, 6), (1, 6, 4)]);
        assert_eq!(runs(&cut, 21, 2), [(2, 1, 2)]);
        assert_eq!(runs(&array(&[], &[]), 0, 2), [(0, 0, 2)]);
        assert_eq!(runs(&array(&[2, 2, 2], &[1, 2, 2]), 2, 14), [(0, 2, 6), (1, 0, 8)]);
    }
}
