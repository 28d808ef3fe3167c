//! Graphs run as a program runs them.

mod engine;
mod node_tests;
mod weights;
