//! GELU, exact and by two approximations.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use apr_graph::{BodyBuilder, ValueId};

/// Formula of GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// By the error function.
    Exact,
    /// By a hyperbolic tangent.
    Tanh,
    /// By a sigmoid.
    Sigmoid,
}

impl Gelu {
    /// Writes `x` times the share of a normal distribution below it, under a name.
    pub fn write(self, main: &mut BodyBuilder, x: ValueId, name: &str) -> ValueId {
        let step = |step: &str| format!("{name}/{step}");
        let half = main.float(0.5);
        let one = main.float(1.0);
        let curve = match self {
            Self::Exact => {
                let scale = main.float(FRAC_1_SQRT_2);
                let scaled = main.op("Mul", [x, scale]).output(&step("scaled"));
                main.op("Erf", [scaled]).output(&step("curve"))
            }
            Self::Tanh => {
                let square = main.op("Mul", [x, x]).output(&step("square"));
                let cube = main.op("Mul", [square, x]).output(&step("cube"));
                let factor = main.float(0.044_715);
                let part = main.op("Mul", [cube, factor]).output(&step("part"));
                let sum = main.op("Add", [x, part]).output(&step("sum"));
                let scale = main.float(FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
                let scaled = main.op("Mul", [sum, scale]).output(&step("scaled"));
                main.op("Tanh", [scaled]).output(&step("curve"))
            }
            Self::Sigmoid => {
                let scale = main.float(1.702);
                let scaled = main.op("Mul", [x, scale]).output(&step("scaled"));
                let gate = main.op("Sigmoid", [scaled]).output(&step("gate"));
                return main.op("Mul", [x, gate]).output(name);
            }
        };
        let above = main.op("Add", [curve, one]).output(&step("above"));
        let share = main.op("Mul", [above, half]).output(&step("share"));
        main.op("Mul", [x, share]).output(name)
    }
}
