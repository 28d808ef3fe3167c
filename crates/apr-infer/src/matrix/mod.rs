//! Products of matrices, and matrices that are decoded as they are multiplied.

mod kernel;
mod pack;
mod product;
mod row;
mod stored;

pub(crate) use product::{Left, Right, product};
pub(crate) use stored::Matrix;
