//! Norms over the last axis.

use apr_core::{Error, Result};
use apr_graph::{Constant, ValueId, View};

use crate::model::BlockPosition;
use crate::writer::Writer;

/// Parameters of a norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Norm {
    kind: NormKind,
    eps: f64,
    /// `true` if the checkpoint stores gamma minus one.
    plus_one: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * gamma` (Zhang and Sennrich 2019,
    /// <https://arxiv.org/abs/1910.07467>).
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps) * gamma + beta` (Ba et al. 2016,
    /// <https://arxiv.org/abs/1607.06450>).
    Layer,
    /// Layer norm without gamma and beta: the checkpoint has no tensors for it (OLMo,
    /// <https://arxiv.org/abs/2402.00838>).
    BareLayer,
    /// RMS norm without gamma: the checkpoint has no tensors for it (nanochat,
    /// <https://github.com/karpathy/nanochat>).
    BareRms,
}

impl Norm {
    /// Reads the options `norm` (`rms`, `layer`, `bare_rms` or `bare_layer`) and `norm_eps`.
    ///
    /// Option `norm_plus_one` is true if the checkpoint stores gamma minus one.
    pub(crate) fn of(place: BlockPosition<'_>) -> Result<Self> {
        let kind = match place.text("norm")?.as_str() {
            "rms" => NormKind::Rms,
            "layer" => NormKind::Layer,
            "bare_layer" => NormKind::BareLayer,
            "bare_rms" => NormKind::BareRms,
            other => return Err(place.unknown("norm", other)),
        };
        Ok(Self { kind, eps: place.number("norm_eps")?, plus_one: place.truth("norm_plus_one")? })
    }

    /// Returns the epsilon that is added to the mean of squares.
    pub(crate) fn eps(self) -> f64 {
        self.eps
    }

    /// The same norm with a gamma that is stored as it is.
    pub(crate) fn with_plain_gamma(self) -> Self {
        Self { plus_one: false, ..self }
    }

    /// Replaces the epsilon of the norm.
    pub(crate) fn with_eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }
}

impl Writer<'_> {
    /// The norm of a module, under a name.
    pub(crate) fn norm(
        &mut self,
        name: &str,
        norm: Norm,
        x: ValueId,
        module: &str,
    ) -> Result<ValueId> {
        let tensor = format!("{module}.weight");
        let dims = self.model.using(&tensor)?;
        let views = if norm.plus_one { vec![View::Plus(1)] } else { Vec::new() };
        let rank = dims.len();
        let width = *dims
            .last()
            .ok_or_else(|| Error::format("gamma has no dimension").for_tensor(&tensor))?;
        let gamma = self.viewed(&tensor, views, dims)?;
        match (norm.kind, rank) {
            (NormKind::Rms | NormKind::BareRms, _) => Ok(self.rms_norm(name, norm.eps, x, gamma)),
            (NormKind::Layer | NormKind::BareLayer, 1) => {
                self.layer_norm(name, norm.eps, x, gamma, &format!("{module}.bias"))
            }
            // Each head has a gamma of its own; the operator takes one for all.
            (NormKind::Layer | NormKind::BareLayer, _) => self.scope(name, |w| {
                let normal = w.bare_layer_norm("normal", norm.eps, x, width);
                Ok(w.make("Mul", "scaled", [normal, gamma]))
            }),
        }
    }

    /// A norm of each head, `[batch, sequence, heads, head_dim]`, by a module of its own.
    pub(crate) fn norm_of_each(
        &mut self,
        name: &str,
        norm: Norm,
        x: ValueId,
        modules: &[String],
    ) -> Result<ValueId> {
        let tensors: Vec<String> =
            modules.iter().map(|module| format!("{module}.weight")).collect();
        let mut widths = Vec::new();
        for tensor in &tensors {
            widths.push(self.model.using(tensor)?);
        }

        let (Some((first, others)), Some([width])) =
            (tensors.split_first(), widths.first().map(Vec::as_slice))
        else {
            return Err(Error::format("the norms of the heads have no gamma"));
        };
        let (width, heads) = (*width, tensors.len() as u64);
        let gamma = self.viewed(first, vec![View::Stacked(others.to_vec())], vec![heads, width])?;
        Ok(self.scope(name, |w| {
            let normal = match norm.kind {
                NormKind::Rms | NormKind::BareRms => w.bare_rms_norm(norm.eps, x),
                NormKind::Layer | NormKind::BareLayer => {
                    w.bare_layer_norm("normal", norm.eps, x, width)
                }
            };
            w.make("Mul", "scaled", [normal, gamma])
        }))
    }

    fn rms_norm(&mut self, name: &str, eps: f64, x: ValueId, gamma: ValueId) -> ValueId {
        self.scope(name, |w| {
            let normal = w.bare_rms_norm(eps, x);
            w.make("Mul", "scaled", [normal, gamma])
        })
    }

    /// `x / sqrt(mean(x^2) + eps)`.
    pub(crate) fn bare_rms_norm(&mut self, eps: f64, x: ValueId) -> ValueId {
        let square = self.make("Mul", "square", [x, x]);
        let mean = self.mean("mean", square);
        let eps = self.float(eps);
        let sum = self.make("Add", "plus_eps", [mean, eps]);
        let root = self.make("Sqrt", "root", [sum]);
        self.make("Div", "normal", [x, root])
    }

    fn layer_norm(
        &mut self,
        name: &str,
        eps: f64,
        x: ValueId,
        gamma: ValueId,
        beta: &str,
    ) -> Result<ValueId> {
        let mut inputs = vec![x, gamma];
        if self.model.has(beta) {
            inputs.push(self.tensor(beta)?);
        }
        Ok(self.layer_norm_op(name, eps, inputs))
    }

    /// A layer norm without weights.
    pub(crate) fn bare_layer_norm(
        &mut self,
        name: &str,
        eps: f64,
        x: ValueId,
        width: u64,
    ) -> ValueId {
        // The operator does not go without a scale.
        let ones = vec![1.0; usize::try_from(width).unwrap_or(usize::MAX)];
        let ones = self.body().constant(Constant::floats(&ones));
        self.layer_norm_op(name, eps, vec![x, ones])
    }

    #[expect(clippy::cast_possible_truncation, reason = "the operator takes single precision")]
    fn layer_norm_op(&mut self, name: &str, eps: f64, inputs: Vec<ValueId>) -> ValueId {
        self.op("LayerNormalization", inputs)
            .attribute("axis", -1)
            .attribute("epsilon", eps as f32)
            .output(name)
    }

    /// Applies the norm before a block or after the last layer.
    ///
    /// It is the norm of a module if the checkpoint has one, or a norm without weights if the
    /// family's norms have none.
    pub(crate) fn norm_before(
        &mut self,
        place: BlockPosition<'_>,
        part: &str,
        x: ValueId,
    ) -> Result<ValueId> {
        let norm = Norm::of(place)?;
        match (norm.kind, place.module_or_none(part)) {
            (NormKind::BareLayer, None) => {
                Ok(self.bare_layer_norm(part, norm.eps, x, place.size("hidden")?))
            }
            (NormKind::BareRms, None) => Ok(self.scope(part, |w| w.bare_rms_norm(norm.eps, x))),
            (_, module) => self.norm_part(norm, part, x, module),
        }
    }

    /// Applies the norm of a module if there is one, or else returns `x` itself.
    pub(crate) fn norm_part(
        &mut self,
        norm: Norm,
        part: &str,
        x: ValueId,
        module: Option<String>,
    ) -> Result<ValueId> {
        match module {
            Some(module) => self.norm(part, norm, x, &module),
            None => Ok(x),
        }
    }
}
