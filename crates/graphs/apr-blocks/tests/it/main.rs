//! Graphs of whole models. `xtask/interop/graphs.py`, which `cargo xtask interop` runs, shows that
//! they compute what transformers computes; `apr-cli/tests/cli/graphs.rs` checks that the graphs
//! are still those.

mod cases;
mod defaults;
mod families;
mod parts;
mod refused;
mod unused;
