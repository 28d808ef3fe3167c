//! Graphs of whole models. That they compute what transformers computes is shown by
//! `xtask/interop/graphs.py`, which `cargo xtask interop` runs; crates/apr-cli/tests/cli/graphs.rs
//! checks that the graphs are still those.

mod cases;
mod defaults;
mod families;
mod parts;
mod refused;
mod unused;
