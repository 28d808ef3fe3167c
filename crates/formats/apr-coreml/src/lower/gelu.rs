//! GELU, by the formulas of coremltools.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use apr_graph::{BodyBuilder, ValueId};

/// `x` times the share of a normal distribution below it; `None` for a mode that is not known.
pub(super) fn gelu(main: &mut BodyBuilder, x: ValueId, mode: &str, name: &str) -> Option<ValueId> {
    let step = |step: &str| format!("{name}/{step}");
    let half = main.float(0.5);
    let one = main.float(1.0);
    let curve = match mode {
        "EXACT" => {
            let scale = main.float(FRAC_1_SQRT_2);
            let scaled = main.op("Mul", [x, scale]).output(&step("scaled"));
            main.op("Erf", [scaled]).output(&step("curve"))
        }
        "TANH_APPROXIMATION" => {
            let square = main.op("Mul", [x, x]).output(&step("square"));
            let cube = main.op("Mul", [square, x]).output(&step("cube"));
            let factor = main.float(0.044_715);
            let part = main.op("Mul", [cube, factor]).output(&step("part"));
            let sum = main.op("Add", [x, part]).output(&step("sum"));
            let scale = main.float(FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
            let scaled = main.op("Mul", [sum, scale]).output(&step("scaled"));
            main.op("Tanh", [scaled]).output(&step("curve"))
        }
        "SIGMOID_APPROXIMATION" => {
            let scale = main.float(1.702);
            let scaled = main.op("Mul", [x, scale]).output(&step("scaled"));
            let gate = main.op("Sigmoid", [scaled]).output(&step("gate"));
            return Some(main.op("Mul", [x, gate]).output(name));
        }
        _ => return None,
    };
    let above = main.op("Add", [curve, one]).output(&step("above"));
    let share = main.op("Mul", [above, half]).output(&step("share"));
    Some(main.op("Mul", [x, share]).output(name))
}
