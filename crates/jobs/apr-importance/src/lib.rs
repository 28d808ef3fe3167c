//! What weights matter, measured while a model runs.
//!
//! [`measure`] adds up the squares of what meets the columns of every weight
//! ([`ImatrixSums`](apr_quantize::ImatrixSums)), as llama-imatrix does: quantizers then keep those
//! columns most exact that are multiplied by the largest inputs. [`observe`] gives the inputs
//! themselves, row by row, and [`ranges`] the ranges of their elements. [`search`] chooses
//! the type of each tensor for a size, by what quantizing it does to the outputs;
//! [`layer_influence`] says how much each layer changes what passes through it.
//!
//! ```no_run
//! use apr_importance::{Inputs, MeasureOptions, measure};
//! use apr_quality::{Subject, Windows};
//!
//! # fn weigh(subject: &Subject<'_>, windows: &Windows) -> apr_run::RunResult<()> {
//! let inputs = Inputs::Windows(windows);
//! let measured =
//!     measure(subject, None, inputs, "wiki.txt", MeasureOptions::default(), &mut |_| {})?;
//! println!("{} weights measured", measured.sums.entries.len());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod histogram;
mod influence;
mod measure;
mod observe;
mod ranges;
mod search;
mod targets;

pub use influence::layer_influence;
pub use measure::{Inputs, MeasureOptions, Measured, measure};
pub use observe::{Take, measured_weights, observe};
pub use ranges::ranges;
pub use search::{
    Budget, ChosenType, CurvePoint, SearchData, SearchGoal, SearchOutcome, SearchReport, Unchosen,
    search,
};
