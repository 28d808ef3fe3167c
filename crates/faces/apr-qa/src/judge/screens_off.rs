//! Points 54 and 55 without the feature `tui`.

use crate::bench::Bench;
use crate::judgement::{Judgement, absent};

const NO_SCREENS: &str = "this build has no screens (feature `tui`)";

pub(crate) fn graph(_: &Bench<'_>) -> Judgement {
    absent(NO_SCREENS)
}

pub(crate) fn statistics(_: &Bench<'_>) -> Judgement {
    absent(NO_SCREENS)
}
