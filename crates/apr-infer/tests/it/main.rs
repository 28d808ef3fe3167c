//! Graphs run as a program runs them.
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod engine;
mod hostile;
mod node_tests;
mod weights;
