//! Where there is no AVX2, or no way to ask for it: nothing is done here.

use super::lanes::{DriftLanes, LANES, MomentLanes};
use crate::cast::CastCounts;
use crate::grouped::PACKED;
use crate::wire::Wire;

pub(super) fn widen_f16(_stored: &[[u8; 2]], _values: &mut [f32]) -> bool {
    false
}

pub(super) fn narrow_to_f16<W: Wire<Value = f32>>(
    _stored: &[W::Stored],
    _rounded: &mut [[u8; 2]],
) -> Option<CastCounts> {
    None
}

pub(super) fn moments(_groups: &[[f32; LANES]]) -> Option<MomentLanes<f32>> {
    None
}

pub(super) fn moments_of_f16(_groups: &[[[u8; 2]; LANES]]) -> Option<MomentLanes<f32>> {
    None
}

pub(super) fn moments_of_bf16(_groups: &[[[u8; 2]; LANES]]) -> Option<MomentLanes<f32>> {
    None
}

pub(super) fn drift(_original: &[[f32; LANES]], _new: &[[f32; LANES]]) -> Option<DriftLanes> {
    None
}

pub(super) fn look_up_nibbles(
    _packed: &[[u8; PACKED / 2]],
    _tables: &[[f32; 16]],
    _of: (usize, usize),
    _out: &mut [[f32; PACKED]],
) -> bool {
    false
}
