//! Scales that are all zero, beside codes that are not.
//!
//! A single zero among scales is what libraries write: of a row or group of zeros (bitsandbytes,
//! quanto), or of weights that are too small for the dtype of the scales. A whole weight of zeros
//! has codes that are all alike. Where all scales of a weight are zero and its codes differ, the
//! scales are lost.

use apr_core::{CheckpointReader, DType, Error, Result};

use super::read::{bytes_of, usize_of};

/// Bytes that are read at a time.
const AT_ONCE: u64 = 1 << 16;

/// Tensors of scales and of the codes that they multiply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scaling {
    pub(super) scales: usize,
    pub(super) codes: usize,
}

impl Scaling {
    /// Checks that not all scales are zero, unless the codes are all alike.
    ///
    /// Of scales that are not lost, only the first ones are read.
    ///
    /// # Errors
    /// E002 with the name of the scales, E007 when reading fails.
    pub(super) fn check(self, base: &dyn CheckpointReader) -> Result<()> {
        let info = &base.tensors()[self.scales];
        let width = usize_of(info.dtype.block_bytes())?;
        let is_exponent = matches!(info.dtype, DType::U8 | DType::F8_E8M0);
        let is_zero = |element: &[u8]| match element.split_last() {
            // The highest bit is the sign.
            Some((last, rest)) if !is_exponent => last & 0x7f == 0 && rest.iter().all(|&b| b == 0),
            _ => element.iter().all(|&byte| byte == 0),
        };
        let are_zero = |bytes: &[u8]| bytes.chunks_exact(width.max(1)).all(is_zero);
        if info.shape.elements() == Some(0) || !pieces(base, self.scales, AT_ONCE, are_zero)? {
            return Ok(());
        }

        let codes = &base.tensors()[self.codes];
        let mut first = None;
        let are_alike = |bytes: &[u8]| {
            let first = *first.get_or_insert(bytes.first().copied().unwrap_or_default());
            bytes.iter().all(|&byte| byte == first)
        };
        if pieces(base, self.codes, AT_ONCE, are_alike)? {
            return Ok(());
        }
        let message = format!(
            "all scales in '{}' are 0, but the codes in '{}' differ: the scales are lost",
            info.name, codes.name
        );
        Err(Error::corrupt(message))
    }
}

/// Returns `true` if a condition is met by all pieces of a tensor, of which the first is short.
fn pieces(
    base: &dyn CheckpointReader,
    tensor: usize,
    at_once: u64,
    mut is_met: impl FnMut(&[u8]) -> bool,
) -> Result<bool> {
    let len = base.tensors()[tensor].byte_len()?;
    let mut at = 0;
    while at < len {
        let most = if at == 0 { at_once / 1024 } else { at_once };
        let count = most.min(len - at);
        if !is_met(&bytes_of(base, tensor, at, usize_of(count)?)?) {
            return Ok(false);
        }
        at += count;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, f32s, first, u16s, u32s};

    fn parts<'a>(codes: &'a [u8], scales: &'a [u8]) -> [Part<'a>; 2] {
        [("up.weight", "I8", &[2, 2], codes), ("up.SCB", "F32", &[2], scales)]
    }

    #[test]
    fn zero_scales_of_all_codes_are_refused_unless_the_codes_are_alike() {
        let (zeros, some) = (f32s(&[0.0, -0.0]), f32s(&[0.0, 0.5]));
        let found = error(&parts(&[0, 0, 1, 2], &zeros), "");
        assert!(
            found.contains("E002") && found.contains("all scales in 'up.SCB' are 0"),
            "{found}"
        );
        assert!(found.contains("up.weight"), "{found}");
        // A row of zeros has the scale 0, and so have all rows of a weight of zeros.
        first(&parts(&[0, 0, 1, 2], &some), "").expect("a row of zeros");
        let read = first(&parts(&[0; 4], &zeros), "").expect("a weight of zeros");
        assert!(read.values.iter().all(|value| *value == 0.0));
    }

    #[test]
    fn packed_integers_and_biased_ones_are_checked_alike() {
        let words = u32s(&[0x7654_3210; 4]);
        let (zero, one) = (u16s(&[0]), u16s(&[0x3f80]));
        let config = r#"{"quantization":{"bits":4,"group_size":32}}"#;
        let parts: [Part<'_>; 3] = [
            ("up.weight", "U32", &[1, 4], &words),
            ("up.scales", "BF16", &[1, 1], &zero),
            ("up.biases", "BF16", &[1, 1], &one),
        ];
        let found = error(&parts, config);
        assert!(found.contains("E002") && found.contains("'up.scales'"), "{found}");
        let alike = u32s(&[0x7777_7777; 4]);
        let mut parts = parts;
        parts[0].3 = &alike;
        assert_eq!(first(&parts, config).expect("one value").values, [1.0; 32]);
    }
}
