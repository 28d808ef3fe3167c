//! A keyed mark in the weights, and finding it again.

pub use apr_watermark::{Carriers, DetectReport, EmbedReport, Frame, MarkKey, Marked, detect};
