//! Adapters that multiply weights: factors of rows or columns (IA3), and matrices.

use apr_core::{Error, Result, TensorInfo};

use super::{Planner, Stage};
use crate::adapter::{Adapter, Part, Parts};
use crate::configuration::Method;
use crate::form::{Orientation, rows_and_columns};
use crate::targets::Targets;
use crate::turn;

impl Planner {
    /// Adds a change that multiplies a weight, and returns whether the adapter's is such a change.
    pub(super) fn multiply(
        &mut self,
        (position, adapter): (usize, &Adapter<'_>),
        parts: &Parts,
        slot: usize,
        (method, way): (Method, Orientation),
    ) -> Result<bool> {
        let part = |part: Part| parts.get(&part).copied();
        let is_product = match method {
            Method::Miss => part(Part::Block)
                .filter(|block| adapter.reader.tensors()[*block].shape.dims().len() == 3),
            Method::Hra { .. } => part(Part::Vectors),
            Method::Oft { .. } => part(Part::Rotations),
            _ => None,
        };
        let Some(tensor) = part(Part::Factors).or(is_product) else { return Ok(false) };
        let info = &adapter.reader.tensors()[tensor];
        if adapter.weight != 1.0 {
            let message = format!(
                "the adapter multiplies weights, which can't be done {} times",
                adapter.weight
            );
            return Err(Error::format(message).for_tensor(&info.name));
        }
        let weight = &self.slots[slot].info;
        let stage = match part(Part::Factors) {
            Some(_) => {
                let by_column = info.shape.dims().first() == Some(&1);
                let by_column = by_column != way.inputs_first;
                let count = info.shape.elements().unwrap_or_default();
                let (rows, columns) = rows_and_columns(&weight.shape).unwrap_or_default();
                let size = if by_column { columns } else { rows };
                let each = size.checked_div(count).unwrap_or_default();
                let is_whole = each > 0 && each * count == size && (by_column || each == 1);
                if !is_whole {
                    let message = format!(
                        "{} of the adapter does not fit the base's {}",
                        info.shape, weight.shape
                    );
                    return Err(Error::format(message).for_tensor(&info.name));
                }
                Stage::Factors { adapter: position, tensor, by_column, each }
            }
            None if way.inputs_first => {
                let message = "the rows of the base's weight are inputs, which it can't multiply";
                return Err(Error::format(message).for_tensor(&info.name));
            }
            None => {
                turn::check(info, weight, method)?;
                Stage::Turn { adapter: position, tensor, method }
            }
        };
        self.check_dtype(slot)?;
        self.slots[slot].stages.push(stage);
        Ok(true)
    }

    /// Multiplies the bias of a layer by the factors of its outputs (IA3).
    pub(super) fn scale_bias(
        &mut self,
        targets: &Targets<'_>,
        module: &str,
        adapter: usize,
        (tensor, info): (usize, &TensorInfo),
    ) -> Result<()> {
        let is_of_outputs = info.shape.dims().first() != Some(&1);
        let bias = targets.tensor(&format!("{module}.bias")).filter(|_| is_of_outputs);
        let Some(slot) = bias else { return Ok(()) };
        if self.slots[slot].info.shape.elements() != info.shape.elements() {
            let bias = &self.slots[slot].info;
            let message =
                format!("{} of the adapter does not fit the bias {}", info.shape, bias.shape);
            return Err(Error::format(message).for_tensor(&info.name));
        }
        self.check_dtype(slot)?;
        let stage = Stage::Factors { adapter, tensor, by_column: false, each: 1 };
        self.slots[slot].stages.push(stage);
        Ok(())
    }
}
