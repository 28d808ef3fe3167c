//! The native containers: written, read, sealed, cut and broken.

mod aprn;
mod bad_front;
mod bad_index;
mod bad_trailer;
mod codec;
mod encoded;
mod layout;
mod older;
mod reading;
mod round_trip;
mod sealed_file;
mod shards;
mod support;
mod sweep;
mod ties;
mod uncovered;
mod writing;

use apr_testkit::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;
