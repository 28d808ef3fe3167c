//! Vectors divided by their length.

use apr_graph::{BodyBuilder, ValueId};

/// Adds a division by the root of the sum of squares over the last three dimensions.
///
/// `epsilon` is added to the sum.
pub(super) fn by_length(main: &mut BodyBuilder, x: ValueId, epsilon: f32, name: &str) -> ValueId {
    let step = |step: &str| format!("{name}/{step}");
    let axes = main.ints(&[-3, -2, -1]);
    let squares = main.op("ReduceSumSquare", [x, axes]).output(&step("squares"));
    let epsilon = main.float(epsilon);
    let above = main.op("Add", [squares, epsilon]).output(&step("above"));
    let length = main.op("Sqrt", [above]).output(&step("length"));
    main.op("Div", [x, length]).output(name)
}
