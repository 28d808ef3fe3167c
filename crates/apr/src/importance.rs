//! What weights matter: importance matrices, measured while a model runs as llama-imatrix does, and
//! types of tensors by their effect on the outputs.
//!
//! [`measure`] takes a model that [`Model::run_with`](crate::Model::run_with) lends; quantizers
//! take the means of what it finds.
//!
//! ```no_run
//! use apr::importance::{Inputs, MeasureOptions, measure};
//! use apr::quality::{Subject, WindowOptions, Windows};
//! use apr::run::{RunError, RunOptions};
//!
//! # fn main() -> Result<(), RunError> {
//! let model = apr::Model::open("stories.gguf")?;
//! let text = "Once upon a time there was a river. ".repeat(200);
//! let sums = model.run_with(&RunOptions::reading(), |runner| {
//!     let windows = Windows::of_text(&text, &[runner], WindowOptions::default())?;
//!     let (subject, options) = (Subject::of(runner)?, MeasureOptions::default());
//!     let inputs = Inputs::Windows(&windows);
//!     Ok::<_, RunError>(measure(&subject, None, inputs, "river", options, &mut |_| ())?.sums)
//! })?;
//! std::fs::write("imatrix.gguf", sums.to_gguf()?)?;
//! # Ok(())
//! # }
//! ```

pub use apr_importance::{
    Budget, ChosenType, CurvePoint, Found, Inputs, MeasureOptions, Measured, SearchData,
    SearchReport, Unchosen, measure, search,
};
pub use apr_quantize::{ColumnSums, ImatrixSums};
