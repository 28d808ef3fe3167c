//! Elements and blocks against references, by properties, and broken.

mod blocks;
mod casts;
mod factors;
mod k_quants;
mod small_floats;
mod sparse;
mod statistics;
