//! Conversions step by step, as front ends run them: a [`Job`] says what is wanted, is planned for
//! a [`Source`], and the [`Planned`] job runs into a [`Sink`](crate::Sink).

pub use apr_ops::job::{Gate, GraphWishes, Job, JobError, JobReport, Planned, Weights};
pub use apr_ops::simplify::{NamedShape, Simplified};
pub use apr_source::{Knowledge, Source};
pub use apr_view::{NamePattern, parse_filter, parse_selection};

#[cfg(feature = "native")]
pub use crate::convert::title;
#[cfg(feature = "native")]
pub use crate::output::{Output, Written};
