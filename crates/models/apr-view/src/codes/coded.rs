//! A checkpoint whose weights are read as values, whatever they are stored as.

use std::sync::{Arc, OnceLock};

use apr_core::{
    BlockFit, CheckpointReader, CodesInBlocks, Coding, CodingPart, Companion, Container,
    Convention, DType, Error, KeepCodes, KeptCodes, Metadata, Result, Shape, Stored, TensorInfo,
    keys, pass_on,
};
use apr_tensor::cast::cast_values;
use serde_json::Value;

use super::find::{Decode, Found, Tensors, Weight, find};
use super::mlx_lm::taken_apart;
use super::read::{Tile, usize_of};
use super::stated::{self, Stated};
use super::{grouped, integers, plain};
use crate::companions::Companions;

/// Elements that are decoded at a time.
const AT_ONCE: u64 = 1 << 18;

/// Kind of tensors that are codes, or belong to codes, that cannot be decoded here.
pub const UNDECODABLE: &str = "undecodable";

/// The configuration among the companions.
pub(super) const CONFIG: &str = "config.json";

/// A checkpoint with one tensor for each weight that is stored in codes and scales; its
/// configuration does not speak of codes.
///
/// ```
/// use apr_core::{CheckpointReader, Limits};
/// use apr_view::Coded;
///
/// let header = br#"{"up.weight":{"dtype":"F8_E4M3","shape":[1,2],"data_offsets":[0,2]},
///     "up.weight_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[2,6]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[0x38, 0xb8]);
/// file.extend_from_slice(&0.5_f32.to_le_bytes());
///
/// let model = Coded::over(apr_registry::open(file, "m.safetensors", &Limits::default())?);
/// assert_eq!(model.tensors()[0].shape.dims(), [1, 2]);
/// let mut values = [0; 8];
/// model.read_tensor(0, 0, &mut values)?;
/// assert_eq!(values[..4], 0.5_f32.to_le_bytes());
/// assert_eq!(values[4..], (-0.5_f32).to_le_bytes());
/// # Ok::<(), apr_core::Error>(())
/// ```
pub struct Coded {
    base: Arc<dyn CheckpointReader>,
    tensors: Vec<TensorInfo>,
    origins: Vec<Origin>,
    metadata: Metadata,
    companions: Companions,
    warnings: Vec<String>,
}

/// Source of a tensor in the base.
enum Origin {
    /// The tensor at this position.
    Plain(usize),
    /// Part of a weight that cannot be decoded here.
    Refused(Refused),
    Decoded(Decoded),
}

struct Refused {
    /// The tensor, as its only part.
    part: [CodingPart; 1],
    name: String,
    /// The weight that it is a part of.
    weight: String,
    /// Reason for which the weight is not decoded.
    error: Error,
}

struct Decoded {
    kind: &'static str,
    description: String,
    /// Name of the weight, derived from the names of its parts.
    name: String,
    parts: Vec<CodingPart>,
    /// Positions of the parts.
    positions: Vec<usize>,
    decode: Box<dyn Decode>,
    shape: Shape,
    /// Name and shape of the weight, and the bytes of its codes in memory.
    kept: Option<(TensorInfo, u64)>,
    /// Result of the check of its scales, once they have been read.
    scales: OnceLock<Result<()>>,
}

/// Role of a tensor of the base.
enum Place {
    Plain,
    /// Part of a weight, which represents it.
    Part,
    /// Part of this weight, which is not decoded.
    Refused(String, Error),
    Weight(&'static str, Box<Weight>),
}

impl Coded {
    /// Wraps a checkpoint to decode its weights; returns the checkpoint itself if it has no weights
    /// in codes and scales.
    #[must_use]
    pub fn over(base: Box<dyn CheckpointReader>) -> Box<dyn CheckpointReader> {
        let base = taken_apart(base);
        let Some(mut stated) = may_be_coded(&*base) else { return base };
        stated.name_experts(base.metadata());
        let tensors = Tensors::of(&*base);
        let found = find(&tensors, &stated);
        drop(tensors);
        if found.is_empty() { base } else { Box::new(Self::new(base, found)) }
    }

    fn new(base: Box<dyn CheckpointReader>, found: Vec<Found>) -> Self {
        let mut warnings = base.warnings().to_vec();
        let (mut tensors, mut origins) = (Vec::new(), Vec::new());
        let places = places(&*base, found, &mut warnings);
        for (position, (place, info)) in places.into_iter().zip(base.tensors()).enumerate() {
            let (info, origin) = match place {
                Place::Part => continue,
                Place::Plain => (info.clone(), Origin::Plain(position)),
                Place::Refused(weight, error) => {
                    let part = [CodingPart::of(&info.name, position, &info.name)];
                    let refused = Refused { part, name: info.name.clone(), weight, error };
                    (info.clone(), Origin::Refused(refused))
                }
                Place::Weight(kind, weight) => {
                    let (info, decoded) = Decoded::of(&*base, kind, *weight);
                    (info, Origin::Decoded(decoded))
                }
            };
            tensors.push(info);
            origins.push(origin);
        }

        let mut metadata = base.metadata().clone();
        let renamed = metadata.object(keys::CODED).cloned().unwrap_or_default();
        for info in &mut tensors {
            if let Some(name) = renamed.get(&info.name).and_then(Value::as_str) {
                name.clone_into(&mut info.name);
            }
        }
        metadata.remove(keys::CODED);
        let mut architecture = metadata.object(keys::ARCHITECTURE).cloned().unwrap_or_default();
        if stated::take_off(&mut architecture) {
            metadata.set(keys::ARCHITECTURE, architecture);
        }
        let mut companions = Companions::of(&*base);
        companions.keep(|name| !stated::is_statement(name));
        let config = companions.read_named(&*base, CONFIG).ok().flatten();
        if let Some(plain) = config.and_then(|config| stated::without(&config)) {
            companions.put(CONFIG, plain);
        }

        Self { base: base.into(), tensors, origins, metadata, companions, warnings }
    }

    /// Elements from `first` on, rounded to the weight's dtype.
    fn decode(&self, tensor: usize, of: &Decoded, first: u64, count: u64) -> Result<Vec<u8>> {
        let info = &self.tensors[tensor];
        let columns = info.shape.row_len();
        let (mut at, end) = (first, first + count);
        let mut values = vec![0.0; usize_of(count)?];
        let mut rest = &mut values[..];
        while at < end {
            let (row, column) = (at / columns, at % columns);
            let tile = if column > 0 || end - at < columns || columns > AT_ONCE {
                let columns = usize_of((columns - column).min(end - at).min(AT_ONCE))?;
                Tile { row, rows: 1, column, columns }
            } else {
                let rows = usize_of(((end - at) / columns).min(AT_ONCE / columns))?;
                Tile { row, rows, column, columns: usize_of(columns)? }
            };
            let (out, after) = rest.split_at_mut(tile.rows * tile.columns);
            of.decode
                .decode(&*self.base, tile, out)
                .map_err(|error| error.for_tensor(&info.name))?;
            at += out.len() as u64;
            rest = after;
        }
        let mut bytes = Vec::new();
        cast_values(&values, info.dtype, &mut bytes);
        Ok(bytes)
    }
}

/// Checks that no weight of a checkpoint is in codes that can't be decoded.
///
/// # Errors
/// E003 with the first of them, its method and what would read it.
pub fn check_decodable(reader: &dyn CheckpointReader) -> Result<()> {
    let is_refused = |tensor: &usize| {
        reader.stored(*tensor).coding().is_some_and(|coding| coding.kind == UNDECODABLE)
    };
    match (0..reader.tensors().len()).find(is_refused) {
        Some(tensor) => reader.read_tensor(tensor, 0, &mut []),
        None => Ok(()),
    }
}

/// Returns what the configuration states, if weights can be stored in codes and scales, or are
/// plain beside such a statement or such scales.
///
/// This excludes files that define the meaning of their integers, such as files with a graph. In
/// llama.cpp's files, only one dtype can have a separate factor.
fn may_be_coded(base: &dyn CheckpointReader) -> Option<Stated> {
    use DType::{F8_E4M3, F8_E4M3FNUZ, F8_E5M2, I8, I16, I32, I64, NVFP4, U8, U32};
    let of_framework =
        matches!(base.format().convention, Convention::Framework | Convention::Canonical);
    let codes: &[DType] = match base.format().convention {
        _ if of_framework => &[F8_E4M3, F8_E4M3FNUZ, F8_E5M2, I8, I16, I32, I64, NVFP4, U8, U32],
        Convention::LlamaCpp => &[NVFP4],
        _ => &[],
    };
    let has_graph = base.companions().iter().any(|companion| companion.name.ends_with(".graph"));
    if has_graph || base.format().always_computes() {
        return None;
    }
    let has_codes = base.tensors().iter().any(|info| codes.contains(&info.dtype));
    if has_codes || !of_framework {
        return has_codes.then(|| Stated::of(base));
    }
    let has_scales = base.tensors().iter().any(|info| plain::is_beside(&info.name));
    Some(Stated::of(base)).filter(|stated| has_scales || stated.is_any())
}

/// Returns the role of each tensor of the base.
fn places(
    base: &dyn CheckpointReader,
    found: Vec<Found>,
    warnings: &mut Vec<String>,
) -> Vec<Place> {
    let mut places: Vec<Place> = base.tensors().iter().map(|_| Place::Plain).collect();
    let mut refused = 0_u64;
    let mut first = None;
    for found in found {
        match found {
            Found::Weight(kind, weight) => {
                let main = weight.parts.first().copied().unwrap_or_default();
                for &part in &weight.parts {
                    places[part] = Place::Part;
                }
                places[main] = Place::Weight(kind, weight);
            }
            Found::Refused(parts, error) => {
                refused += 1;
                first.get_or_insert_with(|| error.to_string());
                let named = parts.first().map(|&part| base.tensors()[part].name.as_str());
                let weight = error.tensor().or(named).unwrap_or_default().to_owned();
                for part in parts {
                    let name = &base.tensors()[part].name;
                    let error = error.clone().for_tensor(name);
                    places[part] = Place::Refused(weight.clone(), error);
                }
            }
        }
    }
    if let Some(first) = first {
        let count = apr_core::counted(refused, "weight");
        warnings.push(format!("{count} in codes that can't be decoded: {first}"));
    }
    places
}

impl Decoded {
    fn of(base: &dyn CheckpointReader, kind: &'static str, weight: Weight) -> (TensorInfo, Self) {
        let Weight { info, description, parts: positions, decode } = weight;
        let part = |&part: &usize| CodingPart::of(&info.name, part, &base.tensors()[part].name);
        let parts = positions.iter().map(part).collect();
        let name = info.name.clone();
        let kept_len = decode.grouped().and_then(|of| grouped::kept_len(of, &info));
        // Values that take no more are read once.
        let is_less = |len: &u64| info.byte_len().is_ok_and(|all| *len < all);
        let kept = kept_len.filter(is_less).map(|len| (info.clone(), len));
        let shape = info.shape.clone();
        let scales = OnceLock::new();
        (info, Self { kind, description, name, parts, positions, decode, shape, kept, scales })
    }

    /// Checks the scales before they are first used.
    ///
    /// # Errors
    /// E002 if all scales are zero although the codes differ, E007 when reading fails.
    fn check_scales(&self, base: &dyn CheckpointReader) -> Result<()> {
        let check = || {
            let mut scaling = self.decode.scaling().into_iter();
            let checked = scaling.try_for_each(|scaling| scaling.check(base));
            checked.map_err(|error| error.for_tensor(&self.name))
        };
        self.scales.get_or_init(check).clone()
    }
}

impl KeepCodes for Decoded {
    fn kept_len(&self) -> u64 {
        self.kept.as_ref().map_or(0, |(_, len)| *len)
    }

    fn is_slow(&self, base: &dyn CheckpointReader) -> bool {
        self.kept.as_ref().zip(self.decode.grouped()).is_some_and(|((info, _), of)| {
            // An error occurs again where the codes are read.
            grouped::is_slow(of, base, info).unwrap_or_default()
        })
    }

    fn keep(&self, base: &dyn CheckpointReader) -> Result<Box<dyn KeptCodes>> {
        let Some((info, of)) = self.kept.as_ref().map(|(info, _)| info).zip(self.decode.grouped())
        else {
            return Err(Error::version("its codes are not kept").for_tensor(&self.name));
        };
        self.check_scales(base)?;
        grouped::keep(of, base, info).map_err(|error| error.for_tensor(&self.name))
    }
}

impl CodesInBlocks for Decoded {
    fn fit(&self, base: &dyn CheckpointReader, dtype: DType) -> Result<BlockFit> {
        self.check_scales(base)?;
        match self.decode.grouped() {
            Some(of) => integers::fit(of, base, &self.shape, dtype),
            None => Ok(BlockFit::Narrower),
        }
    }

    fn read_blocks(
        &self,
        base: &dyn CheckpointReader,
        dtype: DType,
        first: u64,
        out: &mut [u8],
    ) -> Result<()> {
        match self.decode.grouped() {
            Some(of) => integers::read(of, base, &self.shape, (dtype, first), out),
            None => Err(Error::format("its codes must be integers in groups")),
        }
    }
}

impl CheckpointReader for Coded {
    pass_on!(base: format, files, left_out);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match &self.origins[tensor] {
            Origin::Plain(position) => self.base.stored(*position),
            Origin::Refused(Refused { part, name, weight, .. }) => {
                let (kind, description, base) = (UNDECODABLE, UNDECODABLE, &*self.base);
                let coding = Coding {
                    kind,
                    description,
                    weight: name,
                    whole: weight,
                    parts: part,
                    base,
                    in_memory: None,
                    in_blocks: None,
                };
                base.stored(part[0].tensor).with_coding(coding)
            }
            Origin::Decoded(decoded) => {
                let Decoded { kind, description, name, parts, positions, kept, .. } = decoded;
                let base = &*self.base;
                let in_memory = kept.as_ref().map(|_| decoded as &dyn KeepCodes);
                let in_blocks = decoded.decode.grouped().map(|_| decoded as &dyn CodesInBlocks);
                let coding = Coding {
                    kind,
                    description,
                    weight: name,
                    whole: name,
                    parts,
                    base,
                    in_memory,
                    in_blocks,
                };
                Stored::derived_from(base, positions).with_coding(coding)
            }
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let decoded = match &self.origins[tensor] {
            Origin::Plain(position) => return self.base.read_tensor(*position, offset, buf),
            Origin::Refused(Refused { error, .. }) => return Err(error.clone()),
            Origin::Decoded(decoded) => decoded,
        };
        let info = &self.tensors[tensor];
        let end = offset.checked_add(buf.len() as u64);
        let Some(end) = end.filter(|&end| info.byte_len().is_ok_and(|len| end <= len)) else {
            let error = Error::corrupt("the read ends past the tensor");
            return Err(error.for_tensor(&info.name).at(offset));
        };

        decoded.check_scales(&*self.base)?;

        let width = info.dtype.block_bytes();
        let (mut at, mut rest) = (offset, buf);
        while at < end {
            let first = at / width;
            let count = (end.div_ceil(width) - first).min(AT_ONCE);
            let bytes = self.decode(tensor, decoded, first, count)?;
            let skipped = usize_of(at - first * width)?;
            let len = (bytes.len() - skipped).min(rest.len());
            let (head, tail) = rest.split_at_mut(len);
            head.copy_from_slice(&bytes[skipped..skipped + len]);
            at += len as u64;
            rest = tail;
        }
        Ok(())
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        match &self.origins[tensor] {
            Origin::Plain(position) => self.base.tensor_slice(*position),
            Origin::Refused(_) | Origin::Decoded(_) => None,
        }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().decoded(&self.base)
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(&*self.base, companion)
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
