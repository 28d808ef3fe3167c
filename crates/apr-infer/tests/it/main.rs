//! Graphs run as a program runs them.

mod node_tests;
