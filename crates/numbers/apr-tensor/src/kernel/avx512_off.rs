//! Where there is no AVX-512, or no way to ask for it: nothing is done here.

use super::lanes::{DriftLanes, LANES, MomentLanes};
use crate::grouped::PACKED;

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
