//! Graphs run as a program runs them.
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod attention;
mod engine;
mod gradients;
mod hostile;
mod inferred;
mod memory;
mod node_tests;
mod silero;
mod weights;
