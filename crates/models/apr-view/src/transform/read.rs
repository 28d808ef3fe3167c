//! Ranges of a tensor that is made of others.

use apr_core::{CheckpointReader, DType, Result};
use apr_tensor::cast::{can_cast, cast_float};

use super::{Change, ChangeKind, Piece, Rows};
use crate::decoded::Decoded;
use crate::four_bits::FourBits;
use crate::strided::usize_of;
use crate::windows::Windows;

/// Bytes of scratch that a read may use: a head's rows of the largest models are 2 MiB.
pub(crate) const SCRATCH: usize = 4 << 20;

impl Change {
    /// Returns all bytes if they are one piece of the base.
    pub(crate) fn slice<'b>(&self, base: &'b dyn CheckpointReader) -> Option<&'b [u8]> {
        let ChangeKind::Pieces(pieces) = &self.0 else { return None };
        let [Piece { from: Some((tensor, offset)), len }] = pieces[..] else { return None };
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        base.tensor_slice(tensor)?.get(offset..)?.get(..len)
    }

    /// Fills `buf` with bytes from `offset` on; the range must be within the tensor.
    pub(crate) fn read(
        &self,
        base: &dyn CheckpointReader,
        windows: Option<&Windows>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        self.0.read(base, windows, offset, buf)
    }
}

impl ChangeKind {
    pub(crate) fn read(
        &self,
        base: &dyn CheckpointReader,
        windows: Option<&Windows>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        match self {
            Self::Pieces(pieces) => read_pieces(pieces, base, offset, buf),
            Self::Rows(rows) => rows.read(base, offset, buf),
            Self::Sum { tensor, from, constant } => aligned(4, offset, buf, |offset, buf| {
                read_sum(base, (*tensor, *from), *constant, offset, buf)
            }),
            Self::Gathered(gather) => aligned(gather.element, offset, buf, |offset, buf| {
                gather.read(base, windows, offset, buf)
            }),
            Self::Affine(affine) => aligned(affine.to.block_bytes(), offset, buf, |offset, buf| {
                affine.read(base, offset, buf)
            }),
            Self::FourBits(rows) => {
                aligned(FourBits::block(), offset, buf, |offset, buf| rows.read(base, offset, buf))
            }
            Self::Woven(woven) => {
                aligned(woven.element(), offset, buf, |offset, buf| woven.read(base, offset, buf))
            }
            Self::Mapped(mapped) => aligned(mapped.to.block_bytes(), offset, buf, |offset, buf| {
                mapped.read(base, windows, offset, buf)
            }),
            Self::Decoded(kind, dtype) => {
                kind.read(&Decoded { base, dtype: *dtype }, windows, offset, buf)
            }
        }
    }
}

/// Reads a range whose ends split elements of `element` bytes through one that does not.
fn aligned(
    element: u64,
    offset: u64,
    buf: &mut [u8],
    read: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let before = offset % element;
    let end = offset + buf.len() as u64;
    if before == 0 && end.is_multiple_of(element) {
        return read(offset, buf);
    }

    // The whole elements in between need no detour.
    let first_whole = offset.next_multiple_of(element);
    let last_whole = end - end % element;
    if first_whole >= last_whole {
        let start = offset - before;
        let mut scratch = vec![0; usize_of(end.next_multiple_of(element) - start)?];
        read(start, &mut scratch)?;
        buf.copy_from_slice(&scratch[usize_of(before)?..][..buf.len()]);
        return Ok(());
    }

    let (head, rest) = buf.split_at_mut(usize_of(first_whole - offset)?);
    let (whole, tail) = rest.split_at_mut(usize_of(last_whole - first_whole)?);
    let mut scratch = vec![0; usize_of(element)?];
    if !head.is_empty() {
        read(offset - before, &mut scratch)?;
        head.copy_from_slice(&scratch[usize_of(before)?..]);
    }

    read(first_whole, whole)?;
    if !tail.is_empty() {
        read(last_whole, &mut scratch)?;
        let len = tail.len();
        tail.copy_from_slice(&scratch[..len]);
    }

    Ok(())
}

fn read_pieces(
    pieces: &[Piece],
    base: &dyn CheckpointReader,
    offset: u64,
    mut buf: &mut [u8],
) -> Result<()> {
    let mut skipped = offset;
    for piece in pieces {
        if buf.is_empty() {
            break;
        }

        if skipped >= piece.len {
            skipped -= piece.len;
            continue;
        }

        let len = usize_of((piece.len - skipped).min(buf.len() as u64))?;
        let (here, rest) = std::mem::take(&mut buf).split_at_mut(len);
        match piece.from {
            Some((tensor, start)) => base.read_tensor(tensor, start + skipped, here)?,
            None => here.fill(0),
        }

        (buf, skipped) = (rest, 0);
    }

    Ok(())
}

fn read_sum(
    base: &dyn CheckpointReader,
    (tensor, from): (usize, DType),
    constant: f32,
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    debug_assert!(can_cast(from, DType::F32), "only floats are added to");
    let element = from.block_bytes();
    let mut at = offset / 4 * element;
    let (mut input, mut wide) = (Vec::new(), Vec::new());
    for sums in buf.chunks_mut(SCRATCH / 8 * 4) {
        input.resize(sums.len() / 4 * usize_of(element)?, 0);
        base.read_tensor(tensor, at, &mut input)?;
        at += input.len() as u64;
        cast_float(from, DType::F32, &input, &mut wide);
        for (sum, value) in sums.as_chunks_mut::<4>().0.iter_mut().zip(wide.as_chunks::<4>().0) {
            *sum = (f32::from_le_bytes(*value) + constant).to_le_bytes();
        }
    }

    Ok(())
}

impl Rows {
    fn read(self, base: &dyn CheckpointReader, offset: u64, buf: &mut [u8]) -> Result<()> {
        let [a, b, inner] = self.order;
        let block = a * b * inner * self.row_bytes;
        let mut scratch = Vec::new();
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let here = usize_of((block - at % block).min((buf.len() - filled) as u64))?;
            let target = &mut buf[filled..filled + here];

            // Rows that are mixed among few are read together: one by one they cost a call each.
            if block <= SCRATCH as u64
                && here as u64 >= block / 4
                && inner * self.row_bytes < 1 << 16
            {
                scratch.resize(usize_of(block)?, 0);
                base.read_tensor(self.tensor, at - at % block, &mut scratch)?;
                self.runs(at % block, target, |from, run| {
                    let from = usize_of(from)?;
                    run.copy_from_slice(&scratch[from..from + run.len()]);
                    Ok(())
                })?;
            } else {
                let start = at - at % block;
                self.runs(at % block, target, |from, run| {
                    base.read_tensor(self.tensor, start + from, run)
                })?;
            }
            filled += here;
        }

        Ok(())
    }

    /// Calls `copy` with each run of bytes that are contiguous in the source.
    ///
    /// Its arguments are the position of the run in the block, and the bytes to fill.
    fn runs(
        self,
        offset: u64,
        mut target: &mut [u8],
        mut copy: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let [a, b, inner] = self.order;
        let run = inner * self.row_bytes;
        let mut at = offset;
        while !target.is_empty() {
            let (group, within) = (at / run, at % run);
            // In the target, groups of `inner` rows stand as [b, a].
            let source = (group % a) * b + group / a;
            let len = usize_of((run - within).min(target.len() as u64))?;
            let (here, rest) = std::mem::take(&mut target).split_at_mut(len);
            copy(source * run + within, here)?;
            at += len as u64;
            target = rest;
        }

        Ok(())
    }
}
