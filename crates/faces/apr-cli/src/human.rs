//! Numbers for people, and sizes as people write them.

pub(crate) use apr_core::grouped as count;
pub(crate) use apr_core::human::{bytes, metric, shortened, shortened_apart, statistic as number};
pub(crate) use apr_ops::command::parse_size;
