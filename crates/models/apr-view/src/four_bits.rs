//! Four-bit floats with an exponent for every 32 (MXFP4), as safetensors files have them and as
//! GGUF does.
//!
//! | | elements of a block | exponents |
//! |---|---|---|
//! | safetensors | 16 bytes of `X_blocks`, neighbours in one byte, the first in the low half | a byte of `X_scales` |
//! | GGUF | 16 bytes, elements `i` and `i + 16` in one byte | a byte in front |

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};

use crate::rows::Cut;

/// Bytes of a block's elements.
const ELEMENTS: usize = 16;
/// Bytes of a block in a GGUF file: its exponent, then its elements.
const BLOCK: usize = 1 + ELEMENTS;

/// Rows of four-bit floats, put together from their elements and their exponents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FourBits {
    /// Positions of the two tensors.
    blocks: usize,
    scales: usize,
    /// Rows of a group in the source.
    rows: u64,
    /// Blocks of a row.
    row_blocks: u64,
    cut: Cut,
}

impl FourBits {
    /// The rows that are cut out of four-bit floats, in GGUF's blocks; elements and exponents are
    /// at these positions of the base.
    ///
    /// # Errors
    /// E001 when the two tensors are not those of one of four-bit floats.
    pub(crate) fn of(
        (blocks, at): (&TensorInfo, usize),
        (scales, scales_at): (&TensorInfo, usize),
        cut: Cut,
        name: &str,
    ) -> Result<(TensorInfo, Self)> {
        let unfit = || {
            let (shape, other) = (&blocks.shape, &scales.shape);
            Error::format(format!(
                "its shape {shape} and the {other} of {} do not match MXFP4",
                scales.name
            ))
            .for_tensor(&blocks.name)
        };

        let &[groups, rows, row_blocks, 16] = blocks.shape.dims() else { return Err(unfit()) };
        let is_bytes = [blocks, scales].iter().all(|info| info.dtype == DType::U8);
        let last = cut
            .count
            .checked_sub(1)
            .and_then(|last| last.checked_mul(cut.step)?.checked_add(cut.first));
        let fits = last.is_some_and(|last| last < rows) && cut.groups == groups;
        if !is_bytes || !fits || scales.shape.dims() != [groups, rows, row_blocks] {
            return Err(unfit());
        }

        let columns = row_blocks.checked_mul(2 * ELEMENTS as u64).ok_or_else(unfit)?;
        let shape = [groups, cut.count, columns].into();
        let info = TensorInfo { name: name.to_owned(), dtype: DType::MXFP4, shape };
        Ok((info, Self { blocks: at, scales: scales_at, rows, row_blocks, cut }))
    }
}

impl FourBits {
    /// Positions of the tensors it is made of.
    pub(crate) fn sources(self) -> Vec<usize> {
        vec![self.blocks, self.scales]
    }

    pub(crate) const fn block() -> u64 {
        BLOCK as u64
    }

    /// Reads whole blocks from byte `offset` on.
    pub(crate) fn read(
        self,
        base: &dyn CheckpointReader,
        offset: u64,
        mut buf: &mut [u8],
    ) -> Result<()> {
        let (mut elements, mut exponents) = (Vec::new(), Vec::new());
        let mut at = offset / BLOCK as u64;
        while !buf.is_empty() {
            let (row, column) = (at / self.row_blocks, at % self.row_blocks);
            let count = (self.row_blocks - column).min((buf.len() / BLOCK) as u64);
            let Cut { first, step, count: rows, .. } = self.cut;
            let source =
                (row / rows * self.rows + first + row % rows * step) * self.row_blocks + column;
            let len = usize::try_from(count)
                .map_err(|_| Error::memory("a range is larger than memory can be"))?;
            elements.resize(len * ELEMENTS, 0);
            exponents.resize(len, 0);
            base.read_tensor(self.blocks, source * ELEMENTS as u64, &mut elements)?;
            base.read_tensor(self.scales, source, &mut exponents)?;
            let (here, rest) = std::mem::take(&mut buf).split_at_mut(len * BLOCK);
            let blocks = elements.as_chunks::<ELEMENTS>().0.iter().zip(&exponents);
            for (block, (elements, exponent)) in
                here.as_chunks_mut::<BLOCK>().0.iter_mut().zip(blocks)
            {
                block[0] = *exponent;
                halves_apart(elements, &mut block[1..]);
            }
            (buf, at) = (rest, at + count);
        }

        Ok(())
    }
}

/// Repacks 4-bit elements: pairs of neighbours become pairs half of all elements apart.
///
/// The number of bytes does not change.
pub(crate) fn halves_apart(neighbours: &[u8], apart: &mut [u8]) {
    let element = |at: usize| neighbours[at / 2] >> (4 * (at % 2)) & 0xf;
    let half = apart.len();
    for (at, byte) in apart.iter_mut().enumerate() {
        *byte = element(at) | element(at + half) << 4;
    }
}

#[cfg(test)]
mod tests {
    use apr_core::Limits;

    use super::*;
    use crate::Change;
    use crate::rows::Turned;

    fn model(rows: u8) -> Box<dyn CheckpointReader> {
        let blocks = usize::from(rows) * 16;
        let header = format!(
            r#"{{"w_blocks":{{"dtype":"U8","shape":[1,{rows},1,16],"data_offsets":[0,{blocks}]}},
            "w_scales":{{"dtype":"U8","shape":[1,{rows},1],"data_offsets":[{blocks},{}]}}}}"#,
            blocks + usize::from(rows)
        );
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        file.extend((0..rows * 16).map(|at| at.wrapping_mul(37)));
        file.extend((0..rows).map(|row| 100 + row));
        apr_registry::open(file, "model.safetensors", &Limits::default()).expect("a model")
    }

    fn cut(first: u64) -> Cut {
        Cut { groups: 1, first, step: 2, count: 2, turned: Turned::No }
    }

    #[test]
    fn every_element_is_where_gguf_has_it() {
        let base = model(4);
        let [blocks, scales] = base.tensors() else { panic!("two tensors") };
        let (info, change) =
            Change::four_bits((blocks, 0), (scales, 1), cut(1), "w").expect("MXFP4");
        assert_eq!((info.dtype, info.shape.dims()), (DType::MXFP4, &[1, 2, 32][..]));
        let mut whole = [0; 34];
        change.read(&*base, None, 0, &mut whole).expect("bytes");
        for (row, block) in [1_u8, 3].into_iter().zip(whole.chunks(17)) {
            assert_eq!(block[0], 100 + row);
            for element in 0..32_u8 {
                let byte = (row * 16 + element / 2).wrapping_mul(37);
                let expected = byte >> (4 * (element % 2)) & 0xf;
                let found = block[1 + usize::from(element % 16)] >> (4 * (element / 16)) & 0xf;
                assert_eq!(found, expected, "row {row}, element {element}");
            }
        }
        for offset in 0..34 {
            for end in offset..=34 {
                let mut part = vec![0; end - offset];
                change.read(&*base, None, offset as u64, &mut part).expect("bytes");
                assert_eq!(part, whole[offset..end]);
            }
        }
    }

    #[test]
    fn tensors_that_do_not_go_together_are_refused() {
        let base = model(4);
        let [blocks, scales] = base.tensors() else { panic!("two tensors") };
        assert!(Change::four_bits((blocks, 0), (blocks, 0), cut(0), "w").is_err());
        assert!(Change::four_bits((scales, 1), (scales, 1), cut(0), "w").is_err());
        for wrong in [
            cut(3),
            Cut { groups: 2, ..cut(0) },
            Cut { count: 0, ..cut(0) },
            Cut { step: u64::MAX, ..cut(0) },
        ] {
            assert!(Change::four_bits((blocks, 0), (scales, 1), wrong, "w").is_err(), "{wrong:?}");
        }
    }
}
