//! The `apr` command from outside: what it prints, writes, refuses and leaves behind.

mod bad_input;
mod diff;
mod golden;
mod interruption;
mod pytorch;
mod qa_conversion;
mod qa_physics;
mod qa_structure;
mod qa_tooling;
mod reference;
mod round_trip;
mod support;
mod terminal;
