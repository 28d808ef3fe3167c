//! The 100 points of the quality plan (seed 001 §11), judged of a model and of the tool itself.
//!
//! ```text
//! points.rs   the table: number, category, heading, claim, what it is judged of
//! judge/      one function for each point
//! bench.rs    what they share: one read of the model, one run of it, a temporary folder
//! made.rs     small files, sound ones and broken ones, that points about the tool run on
//! ```
//!
//! Each point says what was done and seen. It passes where the claim holds of the model, and where
//! what contradicts it is found in a file or a run that is made and broken on the spot: a check
//! that finds nothing proves nothing. A point that the model gives no occasion for, that was not
//! looked at (weights of an encrypted model), or that needs another program, does not apply, and
//! does not count as passed. The model's score is the share of the points that it can fail and
//! passed, and no critical point that failed lets it be high (`docs/decisions.md`, "The 100
//! points"). Four points beyond the plan ask what the model learnt, and whether its layers fit
//! together.
//!
//! ```
//! use apr_qa::{Category, Subject, Verdict, assess};
//! use std::num::NonZeroUsize;
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
//! let model = apr::Model::open(path)?;
//! let (source, facts) = (model.source(), apr::run::Facts::of(model.reader())?);
//! let subject = Subject {
//!     source: &source,
//!     facts: &facts,
//!     threads: NonZeroUsize::MIN,
//!     max_memory: 1 << 30,
//!     interrupt: apr::Interrupt::default(),
//!     reopen: None,
//!     apr: None,
//! };
//! let report = assess(&subject, Some(Category::Format), &apr_core::Serial, &(), &mut |_| {})?;
//! assert_eq!(report.points.len(), 25);
//! assert_eq!(report.points[3].verdict, Verdict::NotApplicable); // safetensors has no checksum
//! # Ok::<(), apr::Error>(())
//! ```
#![forbid(unsafe_code)]

mod assessment;
mod bench;
mod judge;
mod judgement;
mod made;
mod points;
mod ran;
pub mod render;
mod subject;

pub use assessment::{Assessment, Critical, PointReport, Score, Verdict};
pub use points::{Category, Heading, Judged, LEARNT, POINTS, Point};
pub use subject::{Subject, assess};
