//! ONNX models read as the `onnx` package reads them.

mod corpus;
mod golden;
mod graph;
mod hostile;
mod listing;
mod skeleton;
mod written;

use apr_testkit::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;
