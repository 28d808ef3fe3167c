//! What an objective does to the sums of the trees.

use apr_graph::{BodyBuilder, ValueId};

/// What is computed of the sums of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Transform {
    Nothing,
    /// A sigmoid of the sum times a factor.
    Sigmoid(f32),
    Exp,
    /// log(1 + exp(sum)).
    Softplus,
    Softmax,
    /// The number of the greatest one.
    Greatest,
    /// 1 for a sum above 0.
    Above,
    /// The square, with the sign of the sum.
    Square,
}

impl Transform {
    /// The transform of an objective of XGBoost; `None` for one that is not known.
    pub(crate) fn of_xgboost(objective: &str) -> Option<Self> {
        Some(match objective {
            "reg:squarederror"
            | "reg:linear"
            | "reg:squaredlogerror"
            | "reg:pseudohubererror"
            | "reg:absoluteerror"
            | "reg:quantileerror"
            | "binary:logitraw"
            | "rank:pairwise"
            | "rank:ndcg"
            | "rank:map" => Self::Nothing,
            "binary:logistic" | "reg:logistic" => Self::Sigmoid(1.0),
            "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
                Self::Exp
            }
            "multi:softprob" => Self::Softmax,
            "multi:softmax" => Self::Greatest,
            "binary:hinge" => Self::Above,
            _ => return None,
        })
    }

    /// The sum that a base score of XGBoost stands for, before the transform.
    pub(crate) fn margin(objective: &str, base: f32) -> f32 {
        match objective {
            "binary:logistic" | "reg:logistic" => -(1.0 / base - 1.0).ln(),
            "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
                base.ln()
            }
            _ => base,
        }
    }

    /// The transform of an objective of LightGBM, which has its settings behind it.
    pub(crate) fn of_lightgbm(objective: &str) -> Option<Self> {
        let mut words = objective.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let (mut factor, mut is_root) = (1.0, false);
        for word in words {
            match word.split_once(':') {
                Some(("sigmoid", value)) => factor = value.parse().ok()?,
                None if word == "sqrt" => is_root = true,
                _ => {}
            }
        }
        Some(match name {
            "regression" | "regression_l2" if is_root => Self::Square,
            "" | "regression" | "regression_l2" | "regression_l1" | "huber" | "fair"
            | "quantile" | "mape" | "lambdarank" | "rank_xendcg" | "custom" | "none" => {
                Self::Nothing
            }
            "poisson" | "gamma" | "tweedie" => Self::Exp,
            "binary" | "multiclassova" => Self::Sigmoid(factor),
            "cross_entropy" => Self::Sigmoid(1.0),
            "cross_entropy_lambda" => Self::Softplus,
            "multiclass" => Self::Softmax,
            _ => return None,
        })
    }

    /// Writes the transform of sums, `[batch, groups]`.
    pub(crate) fn write(self, body: &mut BodyBuilder, sums: ValueId) -> ValueId {
        match self {
            Self::Nothing => sums,
            Self::Sigmoid(factor) => {
                let is_one = factor.to_bits() == 1.0_f32.to_bits();
                let scaled = match is_one {
                    true => sums,
                    false => {
                        let factor = body.float(factor);
                        body.op("Mul", [sums, factor]).output("scaled")
                    }
                };
                body.op("Sigmoid", [scaled]).output("probability")
            }
            Self::Exp => body.op("Exp", [sums]).output("exponential"),
            Self::Softplus => body.op("Softplus", [sums]).output("softplus"),
            Self::Softmax => {
                body.op("Softmax", [sums]).attribute("axis", 1).output("probabilities")
            }
            Self::Greatest => {
                let found = body.op("ArgMax", [sums]).attribute("axis", 1).attribute("keepdims", 1);
                let found = found.output("class");
                body.op("Cast", [found]).attribute("to", 1).output("number")
            }
            Self::Above => {
                let zero = body.float(0.0);
                let above = body.op("Greater", [sums, zero]).output("above");
                body.op("Cast", [above]).attribute("to", 1).output("number")
            }
            Self::Square => {
                let size = body.op("Abs", [sums]).output("size");
                body.op("Mul", [sums, size]).output("square")
            }
        }
    }
}
