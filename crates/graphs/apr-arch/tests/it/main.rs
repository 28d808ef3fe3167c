//! Families against models and specifications that others wrote.

mod reference;
mod specification;
