//! The parameters of each method, with mergekit's names and defaults.

use std::fmt;

use crate::method::Method;

/// Scope of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One value for the merge.
    Shared,
    /// A value for each model.
    Input,
    /// Each model but the base.
    Others,
}

/// The values that a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Domain {
    Any,
    Flag,
    /// Number between two bounds, both included.
    Range(f64, f64),
    /// Above the first, up to the second.
    Above(f64, f64),
    /// A whole number up to this.
    Count(f64),
}

impl Domain {
    pub(crate) fn has(self, value: f64) -> bool {
        match self {
            Self::Any => value.is_finite(),
            Self::Flag => value == 0.0 || value == 1.0,
            Self::Range(low, high) => (low..=high).contains(&value),
            Self::Above(low, high) => value > low && value <= high,
            Self::Count(high) => value >= 0.0 && value <= high && value.fract() == 0.0,
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("a finite number"),
            Self::Flag => f.write_str("true or false"),
            Self::Range(low, high) => write!(f, "a number from {low} to {high}"),
            Self::Above(low, high) if *high == f64::MAX => write!(f, "a number above {low}"),
            Self::Above(low, high) => write!(f, "a number above {low}, up to {high}"),
            Self::Count(high) => write!(f, "a whole number from 0 to {high}"),
        }
    }
}

/// A parameter of a method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) scope: Scope,
    pub(crate) domain: Domain,
    /// Default value; `None` if the parameter is required, except for [`SCALE`].
    pub(crate) default: Option<f64>,
}

/// Parameter without a default: tensors are copied unchanged if it is absent.
pub(crate) const SCALE: &str = "scale";

const fn parameter(
    name: &'static str,
    scope: Scope,
    domain: Domain,
    default: Option<f64>,
) -> Parameter {
    Parameter { name, scope, domain, default }
}

const WEIGHT: Parameter = parameter("weight", Scope::Others, Domain::Any, None);
const LAMBDA: Parameter = parameter("lambda", Scope::Shared, Domain::Any, Some(1.0));
const INT8_MASK: Parameter = parameter("int8_mask", Scope::Shared, Domain::Flag, Some(0.0));
const SHARE: Domain = Domain::Above(0.0, 1.0);
const DENSITY: Parameter = parameter("density", Scope::Others, SHARE, Some(1.0));
const POSITIVE: Domain = Domain::Above(0.0, f64::MAX);

const fn flag(name: &'static str, default: bool) -> Parameter {
    parameter(name, Scope::Shared, Domain::Flag, Some(if default { 1.0 } else { 0.0 }))
}

const fn shared(name: &'static str, domain: Domain, default: f64) -> Parameter {
    parameter(name, Scope::Shared, domain, Some(default))
}

const TASK: &[Parameter] =
    &[INT8_MASK, flag("normalize", false), flag("rescale", false), LAMBDA, WEIGHT, DENSITY];
const TIES: &[Parameter] =
    &[INT8_MASK, flag("normalize", true), flag("rescale", false), LAMBDA, WEIGHT, DENSITY];
const DARE: &[Parameter] =
    &[INT8_MASK, flag("normalize", false), flag("rescale", true), LAMBDA, WEIGHT, DENSITY];
const GAMMA: Parameter = parameter("gamma", Scope::Others, Domain::Range(0.0, 1.0), Some(0.01));
const BREADCRUMBS: &[Parameter] =
    &[INT8_MASK, flag("normalize", false), flag("rescale", false), LAMBDA, WEIGHT, DENSITY, GAMMA];
const EPSILON: Parameter = parameter("epsilon", Scope::Others, Domain::Range(0.0, 1.0), Some(0.15));
const DELLA: &[Parameter] =
    &[INT8_MASK, flag("normalize", true), flag("rescale", true), LAMBDA, WEIGHT, DENSITY, EPSILON];
const DELLA_LINEAR: &[Parameter] =
    &[INT8_MASK, flag("normalize", false), flag("rescale", true), LAMBDA, WEIGHT, DENSITY, EPSILON];
const THRESHOLD: Parameter = shared("epsilon", Domain::Range(0.0, f64::MAX), 1e-5);
const LINEAR: &[Parameter] =
    &[parameter("weight", Scope::Input, Domain::Any, None), flag("normalize", true)];
const SPHERE: &[Parameter] = &[parameter("t", Scope::Shared, Domain::Any, None)];
const NUSLERP: &[Parameter] =
    &[WEIGHT, flag("nuslerp_row_wise", false), flag("nuslerp_flatten", true)];
const MULTISLERP: &[Parameter] =
    &[WEIGHT, flag("normalize_weights", true), shared("eps", POSITIVE, 1e-8)];
const KARCHER: &[Parameter] =
    &[shared("max_iter", Domain::Count(100.0), 10.0), shared("tol", POSITIVE, 1e-5)];
const SCE: &[Parameter] = &[INT8_MASK, shared("select_topk", SHARE, 1.0)];
const RAM: &[Parameter] = &[THRESHOLD];
const RAM_PLUS: &[Parameter] = &[
    shared("r", Domain::Range(0.0, f64::MAX), 0.1),
    shared("alpha", Domain::Range(0.0, f64::MAX), 0.2),
    THRESHOLD,
];
const STOCK: &[Parameter] = &[flag("filter_wise", false)];
const PASSTHROUGH: &[Parameter] = &[parameter(SCALE, Scope::Input, Domain::Any, None)];

/// The parameters of a method.
pub(crate) const fn of(method: Method) -> &'static [Parameter] {
    match method {
        Method::Average | Method::ArceeFusion => &[],
        Method::Linear => LINEAR,
        Method::Slerp | Method::NearSwap => SPHERE,
        Method::NuSlerp => NUSLERP,
        Method::MultiSlerp => MULTISLERP,
        Method::Karcher => KARCHER,
        Method::TaskArithmetic => TASK,
        Method::Ties => TIES,
        Method::DareLinear | Method::DareTies => DARE,
        Method::Della => DELLA,
        Method::DellaLinear => DELLA_LINEAR,
        Method::Breadcrumbs | Method::BreadcrumbsTies => BREADCRUMBS,
        Method::Sce => SCE,
        Method::Ram => RAM,
        Method::RamPlusTl => RAM_PLUS,
        Method::ModelStock => STOCK,
        Method::Passthrough => PASSTHROUGH,
    }
}
