//! Traces of runs: what every step of a model takes and makes.
//!
//! [`trace()`] runs a [`Payload`] through a model and returns a [`Trace`]: time and memory of each
//! step, and with [`TraceOptions::payload`] statistics, attention and predictions. Steps are
//! operators, blocks or layers, by their paths ([`Level`]).
//!
//! [`Passes`] says which parts of a model a payload runs and makes their inputs; [`Sites`] lists
//! the operators of a graph through all calls of functions, with what each reads. Both serve
//! whatever else looks at runs.
//!
//! Nothing here opens files, starts threads or reads a clock: a [`Host`](apr_run::Host) lends them.
//!
//! ```no_run
//! use apr_run::{NoHost, RunOptions};
//! use apr_trace::{Payload, Subject, TraceOptions, trace};
//!
//! # fn steps(subject: Subject<'_>) -> apr_run::RunResult<()> {
//! let payload = Payload::Tokens(vec![1, 2, 3]);
//! let options = TraceOptions::new(RunOptions::default());
//! let found = trace(subject, &payload, &options, &NoHost, None)?;
//! println!("{} parts ran", found.passes.len());
//! # Ok(())
//! # }
//! ```
//!
//! # How a run is traced
//!
//! `apr_trace::Sites` lists the operators of a graph through all function calls: the path of each,
//! its inputs and its weights. `Passes` selects the parts of a model that a payload runs, and
//! makes their inputs. The tap `Tracer` reads the clock before and after each operator, and the
//! values at the end of a step. Chains stay fused unless a value inside is requested
//! (`Tap::splits`).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod anomalies;
mod attention;
mod diff;
mod file_names;
mod level;
mod payload;
mod perfetto;
mod predictions;
mod profile;
mod quiet;
mod sites;
mod statistics;
mod trace;
mod tracer;
mod weights;

pub use anomalies::{Anomaly, AnomalyKind, AnomalyReport, anomalies};
pub use apr_arch::OptionChange;
pub use attention::AttentionPattern;
pub use diff::{
    Blame, Divergence, MovedLayer, PassDiff, StepDiff, TokenChoice, TokenDrift, TokensDrift,
    TraceDiff, ValueDrift, WeightChange, WeightDrift, diff,
};
pub use level::Level;
pub use payload::{Pass, Passes, Payload, RawInput, Subject, Written, generated, states_of};
pub use perfetto::perfetto;
pub use predictions::{Prediction, Predictions};
pub use profile::DeadNeurons;
pub use sites::{Site, Sites};
pub use statistics::{ValueStatistics, sparkline};
pub use trace::{InputTrace, PassTrace, StepInput, StepTrace, Trace, TraceOptions, trace};
pub use tracer::{OperatorTrace, ValueSink, ValueTrace};
pub use weights::{StepWeights, WeightTrace};
