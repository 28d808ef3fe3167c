//! The `apr` command from outside: what it prints, writes, refuses and leaves behind.

mod bad_input;
mod diff;
mod families;
mod family_round_trip;
mod gguf;
mod golden;
mod interruption;
mod pytorch;
mod qa_conversion;
mod qa_family_import;
mod qa_family_physics;
mod qa_family_shapes;
mod qa_family_tooling;
mod qa_physics;
mod qa_structure;
mod qa_tooling;
mod quantize;
mod reference;
mod round_trip;
mod sarif;
mod support;
mod terminal;
