//! The methods, and the parameters of each.

use std::fmt;
use std::str::FromStr;

use apr_view::meant;
use serde::{Serialize, Serializer};

use crate::parameters::{self, Parameter};

/// Merge method. Names, parameters and defaults are those of mergekit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// The mean; the order of the models does not matter to the last bit.
    Average,
    /// The weighted mean.
    Linear,
    /// Spherical interpolation from the base to the other model.
    Slerp,
    /// Spherical interpolation by weights, of two models or of their differences to a base.
    NuSlerp,
    /// Barycentric interpolation on a sphere, of any number of models.
    MultiSlerp,
    /// The Karcher mean of directions.
    Karcher,
    /// The weighted sum of differences to the base.
    TaskArithmetic,
    /// TIES: the largest differences, where their signs agree.
    Ties,
    /// Random differences, rescaled.
    DareLinear,
    /// Random differences, rescaled, where their signs agree.
    DareTies,
    /// Differences drawn by their rank within a row, rescaled, where their signs agree.
    Della,
    /// Differences drawn by their rank within a row, rescaled.
    DellaLinear,
    /// Differences that are neither among the smallest nor the largest.
    Breadcrumbs,
    /// Differences that are neither among the smallest nor the largest, where their signs agree.
    BreadcrumbsTies,
    /// Differences where models differ most, weighted by their squares, where signs agree.
    Sce,
    /// Reinforced agent merging: the mean of the differences that there are.
    Ram,
    /// Like [`Ram`](Self::Ram), with larger differences if only one model has them.
    RamPlusTl,
    /// Interpolation between the base and the mean by the angle between differences.
    ModelStock,
    /// The other model's values where they are near the base's.
    NearSwap,
    /// The other model's values where the difference matters most.
    ArceeFusion,
    /// One model's tensors, scaled at most.
    Passthrough,
}

/// Role of the base model in a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Required,
    /// One of the two models, from which the way to the other begins.
    OfTwo,
    Optional,
    Ignored,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 21] = [
        Self::Average,
        Self::Linear,
        Self::Slerp,
        Self::NuSlerp,
        Self::MultiSlerp,
        Self::Karcher,
        Self::TaskArithmetic,
        Self::Ties,
        Self::DareLinear,
        Self::DareTies,
        Self::Della,
        Self::DellaLinear,
        Self::Breadcrumbs,
        Self::BreadcrumbsTies,
        Self::Sce,
        Self::Ram,
        Self::RamPlusTl,
        Self::ModelStock,
        Self::NearSwap,
        Self::ArceeFusion,
        Self::Passthrough,
    ];

    /// The name in configurations and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Average => "average",
            Self::Linear => "linear",
            Self::Slerp => "slerp",
            Self::NuSlerp => "nuslerp",
            Self::MultiSlerp => "multislerp",
            Self::Karcher => "karcher",
            Self::TaskArithmetic => "task_arithmetic",
            Self::Ties => "ties",
            Self::DareLinear => "dare_linear",
            Self::DareTies => "dare_ties",
            Self::Della => "della",
            Self::DellaLinear => "della_linear",
            Self::Breadcrumbs => "breadcrumbs",
            Self::BreadcrumbsTies => "breadcrumbs_ties",
            Self::Sce => "sce",
            Self::Ram => "ram",
            Self::RamPlusTl => "ramplus_tl",
            Self::ModelStock => "model_stock",
            Self::NearSwap => "nearswap",
            Self::ArceeFusion => "arcee_fusion",
            Self::Passthrough => "passthrough",
        }
    }

    /// The name that people know it by.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Average => "Average",
            Self::Linear => "Linear",
            Self::Slerp => "SLERP",
            Self::NuSlerp => "NuSLERP",
            Self::MultiSlerp => "Multi-SLERP",
            Self::Karcher => "Karcher Mean",
            Self::TaskArithmetic => "Task Arithmetic",
            Self::Ties => "TIES",
            Self::DareLinear => "Linear DARE",
            Self::DareTies => "DARE TIES",
            Self::Della => "DELLA",
            Self::DellaLinear => "Linear DELLA",
            Self::Breadcrumbs => "Model Breadcrumbs",
            Self::BreadcrumbsTies => "Model Breadcrumbs with TIES",
            Self::Sce => "SCE",
            Self::Ram => "Reinforced Agent Merging",
            Self::RamPlusTl => "Reinforced Agent Merging Plus (tensor-local)",
            Self::ModelStock => "Model Stock",
            Self::NearSwap => "NearSwap",
            Self::ArceeFusion => "Arcee Fusion",
            Self::Passthrough => "Passthrough",
        }
    }

    /// Returns the address of the publication, if there is one.
    #[must_use]
    pub const fn reference(self) -> Option<&'static str> {
        Some(match self {
            Self::Average | Self::Linear => "https://arxiv.org/abs/2203.05482",
            Self::Slerp => "https://en.wikipedia.org/wiki/Slerp",
            Self::NuSlerp | Self::Passthrough => return None,
            Self::MultiSlerp => "https://goddard.blog/posts/multislerp-wow-what-a-cool-idea",
            Self::Karcher => "https://en.wikipedia.org/wiki/Karcher_mean",
            Self::TaskArithmetic => "https://arxiv.org/abs/2212.04089",
            Self::Ties => "https://arxiv.org/abs/2306.01708",
            Self::DareLinear | Self::DareTies => "https://arxiv.org/abs/2311.03099",
            Self::Della | Self::DellaLinear => "https://arxiv.org/abs/2406.11617",
            Self::Breadcrumbs | Self::BreadcrumbsTies => "https://arxiv.org/abs/2312.06795",
            Self::Sce => "https://arxiv.org/abs/2408.07990",
            Self::Ram | Self::RamPlusTl => "https://arxiv.org/abs/2601.13572",
            Self::ModelStock => "https://arxiv.org/abs/2403.19522",
            Self::NearSwap => "https://huggingface.co/alchemonaut/QuartetAnemoi-70B-t0.0001",
            Self::ArceeFusion => "https://arcee.ai",
        })
    }

    /// Returns `true` if the method draws random numbers.
    #[must_use]
    pub const fn is_random(self) -> bool {
        matches!(self, Self::DareLinear | Self::DareTies | Self::Della | Self::DellaLinear)
    }

    /// Returns `true` if the method requires a base model.
    #[must_use]
    pub fn needs_base(self) -> bool {
        matches!(self.base(), Base::Required | Base::OfTwo)
    }

    /// Returns `true` if the first of two models serves as the base when no base is given.
    ///
    /// Such a method interpolates from the first model to the other one. Methods that compare all
    /// models with a base require an explicit base.
    #[must_use]
    pub fn begins_at_first(self) -> bool {
        self.base() == Base::OfTwo
    }

    /// Returns `true` if a base is not one of the merged models, so that it has no weight.
    #[must_use]
    pub fn compares(self) -> bool {
        self.base() != Base::Ignored
    }

    /// Returns `true` if the method has a parameter of this name.
    #[must_use]
    pub fn has(self, parameter: &str) -> bool {
        self.parameters().iter().any(|known| known.name == parameter)
    }

    pub(crate) const fn base(self) -> Base {
        match self {
            Self::Average | Self::Linear | Self::Karcher | Self::Passthrough => Base::Ignored,
            Self::NuSlerp | Self::MultiSlerp => Base::Optional,
            Self::Slerp | Self::NearSwap | Self::ArceeFusion => Base::OfTwo,
            _ => Base::Required,
        }
    }

    /// Returns the minimum and maximum number of models, including the base if it counts as one.
    pub(crate) const fn inputs(self, has_base: bool) -> (usize, usize) {
        match self {
            Self::Slerp | Self::NearSwap | Self::ArceeFusion => (2, 2),
            Self::NuSlerp if has_base => (3, 3),
            Self::NuSlerp => (2, 2),
            Self::ModelStock => (3, usize::MAX),
            Self::Passthrough => (1, 1),
            Self::MultiSlerp if has_base => (2, usize::MAX),
            _ => (1, usize::MAX),
        }
    }

    /// Returns the parameters of the method.
    pub(crate) const fn parameters(self) -> &'static [Parameter] {
        parameters::of(self)
    }

    /// Returns `true` if any method has a parameter of this name.
    pub(crate) fn is_parameter(name: &str) -> bool {
        Self::ALL.iter().any(|method| method.parameters().iter().any(|known| known.name == name))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Method {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A name that no method has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownMethod(String);

impl fmt::Display for UnknownMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnknownMethod {}

impl FromStr for Method {
    type Err = UnknownMethod;

    /// The method of this name, or of one of the other names: `weighted` is `linear`, `dare` is
    /// `dare_linear`.
    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        match name {
            "weighted" => return Ok(Self::Linear),
            "dare" => return Ok(Self::DareLinear),
            _ => {}
        }
        if let Some(method) = Self::ALL.into_iter().find(|method| method.name() == name) {
            return Ok(method);
        }
        let names: Vec<&str> = Self::ALL.iter().map(|method| method.name()).collect();
        Err(UnknownMethod(format!(
            "unknown merge method '{}'; {}",
            apr_core::Escaped::short(name),
            meant(name, &names)
        )))
    }
}
