//! Files, and what is saved in them.

mod atomic;
mod sources;
mod typed;
