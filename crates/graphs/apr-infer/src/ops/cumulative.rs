//! Running sums and products.

use apr_core::{Error, Result};

use super::binary::{Join, Product, Sum};
use crate::Value;
use crate::call::Call;
use crate::operator::{Operator, computes};
use crate::shape::{around, axis};
use crate::tensor::Data;

pub(super) const TABLE: &[Operator] = &[
    computes("CumSum", |call| run(call, Sum, 0)),
    computes("CumProd", |call| run(call, Product, 1)),
];

fn run(call: &mut Call<'_>, join: impl Join, first: u8) -> Result<Vec<Value>> {
    let tensor = call.take(0)?;
    let at = axis(call.tensor(1)?.integer()?, tensor.rank())?;
    let (exclusive, reverse) = (call.flag("exclusive", false), call.flag("reverse", false));
    let sizes = around(tensor.shape(), at);
    let (element, shape) = (tensor.element(), tensor.shape().to_vec());
    call.room_for(&[1], tensor.bytes())?;
    let mut data = tensor.data().clone();
    let order = Order { sizes, exclusive, reverse };
    match &mut data {
        Data::F32(values) => order.run(values, first.into(), |a, b| join.singles(a, b)),
        Data::F64(values) => order.run(values, first.into(), |a, b| join.floats(a, b)),
        Data::I32(values) => {
            order.run(values, first.into(), |a, b| join.signed(a.into(), b.into()) as i32);
        }
        Data::I64(values) => order.run(values, first.into(), |a, b| join.signed(a, b)),
        Data::U32(values) => {
            order.run(values, first.into(), |a, b| join.unsigned(a.into(), b.into()) as u32);
        }
        Data::U64(values) => order.run(values, first.into(), |a, b| join.unsigned(a, b)),
        _ => return Err(Error::format(format!("cumulative sums of {element} are not supported"))),
    }

    Ok(vec![crate::Tensor::with_type(element, shape, data)?.into()])
}

struct Order {
    sizes: (usize, usize, usize),
    exclusive: bool,
    reverse: bool,
}

impl Order {
    fn run<T: Copy>(&self, values: &mut [T], first: T, join: impl Fn(T, T) -> T) {
        let (before, size, after) = self.sizes;
        for outer in 0..before {
            for inner in 0..after {
                let mut sum = first;
                for step in 0..size {
                    let along = if self.reverse { size - 1 - step } else { step };
                    let value = &mut values[(outer * size + along) * after + inner];
                    let next = join(sum, *value);
                    *value = if self.exclusive { sum } else { next };
                    sum = next;
                }
            }
        }
    }
}
