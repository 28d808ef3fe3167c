//! Which tensors of a checkpoint are the parts of one weight.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use apr_core::{CheckpointReader, Convention, DType, Error, Result, Shape, TensorInfo};

use super::claims::Claims;
use super::grouped::Grouped;
use super::read::{Tile, bytes_of};
use super::stated::Stated;
use super::zero::Scaling;
use super::{
    awq, bitnet, bitsandbytes, eetq, expected, experts, fp4, ggml, gptq, hqq, marlin24, mlx, onnx,
    own, packed, plain, quanto, refused, scaled, sparse24,
};

/// A way in which weights are stored in several tensors.
pub(super) struct Kind {
    /// Name in reports and JSON: `gptq`.
    pub(super) id: &'static str,
    /// Function that returns the weight whose main part is this tensor, or `None` for another kind.
    ///
    /// # Errors
    /// E001 for parts that are missing or do not go together, E003 for a variant that can't be
    /// decoded.
    pub(super) find: fn(&Tensors<'_>, &Stated, usize) -> Option<Result<Weight>>,
}

/// All kinds, in the order in which they are tried.
pub(super) const KINDS: &[Kind] = &[
    marlin24::KIND,
    sparse24::KIND,
    fp4::KIND,
    bitsandbytes::KIND,
    bitnet::KIND,
    experts::KIND,
    ggml::KIND,
    hqq::KIND,
    quanto::KIND,
    gptq::KIND,
    awq::KIND,
    eetq::KIND,
    packed::KIND,
    mlx::KIND,
    onnx::KIND,
    own::KIND,
    scaled::FP8,
    scaled::INT8,
    bitnet::ONLINE,
    plain::KIND,
];

/// The kinds that files of llama.cpp's convention have: their other codes are dtypes, and a tensor
/// of integers there is no weight.
const OF_LLAMA_CPP: &[Kind] = &[ggml::KIND];

/// Decoder of a weight.
pub(super) trait Decode: Send + Sync {
    /// Fills `out` with the elements of a tile, row by row.
    ///
    /// # Errors
    /// E002 for codes that stand for nothing, E007 when reading fails.
    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()>;

    /// Returns the tensors of scales, each with the codes that it multiplies.
    fn scaling(&self) -> Vec<Scaling>;

    /// Returns the decoder of grouped codes, if the codes are in groups.
    fn grouped(&self) -> Option<&dyn Grouped> {
        None
    }
}

/// A weight and the parts that it is made of.
pub(super) struct Weight {
    /// The weight: its name, the dtype that its values are rounded to (`f32`, `f16` or `bf16`), and
    /// the shape `[.., out, in]`.
    pub(super) info: TensorInfo,
    /// Description of the storage for users: `GPTQ, 4 bits, groups of 128`.
    pub(super) description: String,
    /// Positions of all parts, the main one first, including the parts for activations.
    pub(super) parts: Vec<usize>,
    /// Decoder of the weight.
    pub(super) decode: Box<dyn Decode>,
}

/// Result of the search for a weight.
pub(super) enum Found {
    /// A weight of the kind with this name.
    Weight(&'static str, Box<Weight>),
    /// Positions of codes and of the tensors that belong to them, and the reason for which they
    /// cannot be decoded.
    Refused(Vec<usize>, Error),
}

/// The weights of a checkpoint that are stored in several tensors.
pub(super) fn find(tensors: &Tensors<'_>, stated: &Stated) -> Vec<Found> {
    let mut found = Vec::new();
    let mut taken = BTreeSet::new();
    let is_of_llama_cpp = tensors.base.format().convention == Convention::LlamaCpp;
    let kinds = if is_of_llama_cpp { OF_LLAMA_CPP } else { KINDS };
    let mut names = HashSet::new();
    let claims = Claims::of(tensors, stated);
    for position in 0..tensors.tensors.len() {
        let asked = kinds.iter().find_map(|kind| {
            let found = (kind.find)(tensors, stated, position)?;
            let parts = found.as_ref().map_or(vec![position], |weight| weight.parts.clone());
            let found = found.and_then(|weight| tensors.without_factors(weight));
            let found = found.and_then(|weight| refused::checked(tensors, stated, weight));
            Some((kind.id, parts, claims.check(found)))
        });
        match asked {
            Some((kind, _, Ok(weight))) => match tensors.clash(&weight, &taken, &names) {
                None => {
                    taken.extend(weight.parts.iter().copied());
                    names.insert(weight.info.name.clone());
                    found.push(Found::Weight(kind, Box::new(weight)));
                }
                Some(message) => {
                    let error = Error::format(message).for_tensor(&weight.info.name);
                    found.push(Found::Refused(vec![position], error));
                }
            },
            Some((_, mut parts, Err(error))) => {
                parts.retain(|part| *part == position || !taken.contains(part));
                taken.extend(&parts);
                found.push(Found::Refused(parts, error));
            }
            None => {}
        }
    }
    if is_of_llama_cpp {
        return found;
    }
    give_marker(tensors, &mut found, &mut taken);
    give_cache_scales(tensors, stated, &mut found, &mut taken);
    plain::refuse(tensors, stated, &mut found, &mut taken);
    refused::add_left_over(tensors, stated, &taken, &mut found);
    found
}

/// Assigns the scales of a KV cache, or of queries, to a weight of their layer.
fn give_cache_scales(
    tensors: &Tensors<'_>,
    stated: &Stated,
    found: &mut Vec<Found>,
    taken: &mut BTreeSet<usize>,
) {
    /// Last parts of the names.
    const NAMES: [&str; 5] = ["k_scale", "v_scale", "q_scale", "kv_scale", "output_scale"];
    let is_scale =
        |info: &TensorInfo| info.name.rsplit('.').next().is_some_and(|name| NAMES.contains(&name));
    let scales: Vec<usize> = (0..tensors.tensors.len())
        .filter(|at| is_scale(&tensors.tensors[*at]) && !taken.contains(at))
        .collect();
    let mut near: BTreeMap<String, &mut Box<Weight>> = BTreeMap::new();
    if !scales.is_empty() {
        near.extend(weights(found).map(|weight| (weight.info.name.clone(), weight)));
    }
    let mut left = Vec::new();
    for scale in scales {
        let layer = tensors.tensors[scale].name.rsplit_once('.').map_or("", |(layer, _)| layer);
        let attention = layer.strip_suffix(".k_proj").or(layer.strip_suffix(".v_proj"));
        // By order of names: a scale for each of many weights is no search through all of them.
        let layer = format!("{}.", attention.unwrap_or(layer));
        let first = near.range_mut(layer.clone()..).next();
        if let Some((_, weight)) = first.filter(|(name, _)| name.starts_with(&layer)) {
            weight.parts.push(scale);
            taken.insert(scale);
        } else {
            left.push((scale, layer));
        }
    }
    drop(near);
    plain::give(tensors, stated, left, found, taken);
}

/// The weights that were found.
fn weights(found: &mut [Found]) -> impl Iterator<Item = &mut Box<Weight>> {
    found.iter_mut().filter_map(|found| match found {
        Found::Weight(_, weight) => Some(weight),
        Found::Refused(..) => None,
    })
}

/// Assigns the tensor with which ComfyUI marks scaled files to the first weight with such a scale.
fn give_marker(tensors: &Tensors<'_>, found: &mut [Found], taken: &mut BTreeSet<usize>) {
    let Some(marker) = tensors.marker() else { return };
    let is_scaled = |weight: &&mut Box<Weight>| {
        weight.parts.iter().any(|&part| tensors.tensors[part].name.ends_with(".scale_weight"))
    };
    if let Some(weight) = weights(found).find(is_scaled) {
        weight.parts.push(marker);
        taken.insert(marker);
    }
}

/// Suffixes, after the layer's name, of the names of tensors that belong to activations.
const OF_ACTIVATIONS: [&str; 12] = [
    ".input_scale",
    ".input_global_scale",
    ".input_zero_point",
    ".scale_input",
    ".activation_scale",
    ".act_scale",
    ".qscale_act",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".kv_scale",
];

/// Returns `true` if a tensor with this name belongs to the activations of a layer.
///
/// The values of the layer's weight do not depend on such a tensor.
#[must_use]
pub fn is_of_activations(name: &str) -> bool {
    OF_ACTIVATIONS.iter().any(|end| name.ends_with(end))
}

/// The tensors of a checkpoint by name.
pub(super) struct Tensors<'a> {
    base: &'a dyn CheckpointReader,
    tensors: &'a [TensorInfo],
    positions: HashMap<&'a str, usize>,
    expected: OnceCell<HashMap<String, Shape>>,
}

impl<'a> Tensors<'a> {
    pub(super) fn of(base: &'a dyn CheckpointReader) -> Self {
        let tensors = base.tensors();
        let named = tensors.iter().enumerate();
        let positions = named.map(|(position, info)| (info.name.as_str(), position)).collect();
        Self { base, tensors, positions, expected: OnceCell::new() }
    }

    pub(super) fn all(&self) -> &'a [TensorInfo] {
        self.tensors
    }

    pub(super) fn info(&self, position: usize) -> &'a TensorInfo {
        &self.tensors[position]
    }

    /// Returns `true` if a companion file of this name is there.
    pub(super) fn has_companion(&self, name: &str) -> bool {
        self.base.companions().iter().any(|companion| companion.name == name)
    }

    /// Returns `true` if this is one of several files of a model, without the others.
    pub(super) fn is_shard_alone(&self) -> bool {
        matches!(self.base.files(), [file] if file.name.contains("-of-"))
    }

    /// The tensor of this name.
    pub(super) fn named(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }

    /// The tensor by which ComfyUI marks a file whose 8-bit floats have scales.
    pub(super) fn marker(&self) -> Option<usize> {
        let is_marker = |info: &TensorInfo| info.name.rsplit('.').next() == Some("scaled_fp8");
        self.tensors.iter().position(is_marker)
    }

    /// Returns a tensor's name without this suffix, or `None` if the name does not have it.
    pub(super) fn stem(&self, position: usize, end: &str) -> Option<&'a str> {
        self.tensors[position].name.strip_suffix(end)
    }

    /// The tensor whose name is the stem and one of these ends; the first that there is.
    pub(super) fn beside(&self, stem: &str, ends: &[&str]) -> Option<usize> {
        ends.iter().find_map(|end| self.named(&format!("{stem}{end}")))
    }

    /// Same as [`beside`](Self::beside), for a tensor that must exist.
    ///
    /// # Errors
    /// E001 with the names of the weight and of what is missing.
    pub(super) fn required(&self, stem: &str, end: &str) -> Result<usize> {
        self.required_of(&format!("{stem}.weight"), stem, end)
    }

    /// Same as [`required`](Self::required), for a weight with any name.
    ///
    /// # Errors
    /// Returns the same errors as [`required`](Self::required).
    pub(super) fn required_of(&self, weight: &str, stem: &str, end: &str) -> Result<usize> {
        self.beside(stem, &[end]).ok_or_else(|| {
            let message =
                format!("its part '{stem}{end}' is missing: codes can't be decoded without it");
            Error::format(message).for_tensor(weight)
        })
    }

    /// The zero points of a weight of compressed-tensors, if it has some.
    ///
    /// # Errors
    /// E001 where the configuration says so, and there are none.
    pub(super) fn zero_point(&self, stated: &Stated, stem: &str) -> Result<Option<usize>> {
        const END: &str = ".weight_zero_point";
        if stated.all_groups_say("symmetric", &false.into()) {
            return self.required(stem, END).map(Some);
        }
        Ok(self.beside(stem, &[END]))
    }

    /// Returns the reason for which a weight conflicts with the weights found before.
    ///
    /// `taken` and `names` are the parts and the names of those weights.
    fn clash(
        &self,
        weight: &Weight,
        taken: &BTreeSet<usize>,
        names: &HashSet<String>,
    ) -> Option<&'static str> {
        let name = &weight.info.name;
        let is_there = || self.named(name).is_some_and(|other| !weight.parts.contains(&other));
        if weight.parts.iter().any(|part| taken.contains(part)) {
            Some("a tensor is part of two weights, so that neither can be decoded")
        } else if names.contains(name) || is_there() {
            Some("its codes represent a tensor whose name another tensor has")
        } else {
            None
        }
    }

    /// The weight, unless the inputs of its layer are multiplied by a tensor of their own: then the
    /// weight alone is not what the layer computes with.
    ///
    /// # Errors
    /// E003 with the name of that tensor.
    fn without_factors(&self, weight: Weight) -> Result<Weight> {
        let stem = weight.info.name.strip_suffix(".weight").unwrap_or(&weight.info.name);
        let Some(factors) = self.beside(stem, &[plain::FACTORS]) else { return Ok(weight) };
        Err(refused::factors(&self.info(factors).name).for_tensor(&weight.info.name))
    }

    /// Returns the tensors for the activations of a layer, which are never applied to its weight.
    pub(super) fn of_activations(&self, stem: &str) -> impl Iterator<Item = usize> {
        OF_ACTIVATIONS.iter().filter_map(move |end| self.beside(stem, &[end]))
    }

    /// Returns the error for a part with another shape or dtype than its weight needs.
    pub(super) fn unfit(&self, part: usize, weight: &str, needed: &str) -> Error {
        let info = &self.tensors[part];
        let message =
            format!("its part '{}' is {} {}, expected {needed}", info.name, info.dtype, info.shape);
        Error::format(message).for_tensor(weight)
    }

    /// The shape that a weight has by the model's family and configuration.
    pub(super) fn expected_shape(&self, weight: &str) -> Option<&Shape> {
        self.expected.get_or_init(|| expected::shapes(self.base)).get(weight)
    }

    /// An entry of a safetensors header's `__metadata__`.
    pub(super) fn header_text(&self, key: &str) -> Option<&'a str> {
        self.base.metadata().header_text(key)
    }

    /// Reads all bytes of a small part that describes the other parts.
    ///
    /// # Errors
    /// E001 where it has more bytes than `most`, E007 when reading fails.
    pub(super) fn small(&self, part: usize, weight: &str, most: usize) -> Result<Vec<u8>> {
        let len = self.tensors[part].byte_len().ok().and_then(|len| usize::try_from(len).ok());
        let Some(len) = len.filter(|&len| len <= most) else {
            return Err(self.unfit(part, weight, &format!("a tensor of {most} bytes at most")));
        };
        let named = |error: Error| error.for_tensor(weight);
        bytes_of(self.base, part, 0, len).map_err(named)
    }

    /// The lengths `[rows, columns]` of a matrix.
    ///
    /// # Errors
    /// E001 where it is none.
    pub(super) fn matrix(&self, part: usize, weight: &str) -> Result<[u64; 2]> {
        match *self.tensors[part].shape.dims() {
            [rows, columns] => Ok([rows, columns]),
            _ => Err(self.unfit(part, weight, "a matrix")),
        }
    }

    /// Checks a part's dtype and shape.
    ///
    /// # Errors
    /// E001 with both.
    pub(super) fn check(
        &self,
        part: usize,
        weight: &str,
        dtypes: &[DType],
        shape: &[u64],
    ) -> Result<()> {
        let info = &self.tensors[part];
        if dtypes.contains(&info.dtype) && info.shape.dims() == shape {
            return Ok(());
        }
        let names = dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ");
        let needed = format!("{names} {}", Shape::from(shape.to_vec()));
        Err(self.unfit(part, weight, &needed))
    }
}
