//! What weights matter: importance matrices, measured while a model runs as llama-imatrix does, and
//! types of tensors by their effect on the outputs.
//!
//! [`measure`] takes a model that [`Model::run_with`](crate::Model::run_with) lends; quantizers
//! take the means of what it finds.
//!
//! ```
//! use apr::importance::{Inputs, MeasureOptions, measure};
//! use apr::quality::{Subject, WindowOptions, Windows};
//! use apr::run::{RunError, RunOptions};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
//! let model = apr::Model::open(path)?;
//! let text = "12+34=46\n51+29=80\n".repeat(20);
//! let warn = |message: &str, _| eprintln!("warning: {message}");
//! let sums = model.run_with(&RunOptions::reading(), warn, |runner| {
//!     let windows = Windows::of_text(&text, &[runner], WindowOptions::default())?;
//!     let (subject, options) = (Subject::of(runner)?, MeasureOptions::default());
//!     let inputs = Inputs::Windows(&windows);
//!     Ok(measure(&subject, None, inputs, "sums", options, &mut |_| ())?.sums)
//! })?;
//! assert_eq!(sums.means()?.datasets, ["sums"]);
//! # Ok::<(), RunError>(())
//! ```

pub use apr_importance::{
    Budget, ChosenType, CurvePoint, Inputs, MeasureOptions, Measured, SearchData, SearchGoal,
    SearchOutcome, SearchReport, Unchosen, measure, search,
};
pub use apr_quantize::{ColumnSums, ImatrixSums};
