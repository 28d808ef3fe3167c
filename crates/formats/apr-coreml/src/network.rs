//! Networks of layers.
//!
//! ```text
//! NeuralNetwork   1: layer  2: preprocessing
//! layer           1: name  2: input  3: output  NUMBER OF ITS KIND: what it has of its own
//! WeightParams    1: floats  2: 16-bit floats  30: quantized  31: quantized to 8 bits
//!                 40: quantization (1: bits  101: linear (1: scale  2: bias)  102: table (1))
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use apr_core::protobuf::{Element, Field, Message, Runs, Value, Walker};
use apr_core::{DType, Error, Escaped, Limits, Result};

use crate::grid::Grid;
use crate::layers::{BIDIRECTIONAL_LSTM, NAMES, NESTED, ShapeRule, name_of, weights};
use crate::model::Found;
use crate::tensor::{BitOrder, ByBlock, Bytes, Elements, Encoding, Linear, Tensor, element_count};
use crate::value::{in_model, is_delimited, of_runs};

/// First field number that identifies the kind of a layer. Lower fields are common to all layers.
const FIRST_KIND: u32 = 100;

/// Content of a network.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) weights: Vec<Found>,
    /// Number of layers of each kind.
    pub(crate) layers: BTreeMap<String, u64>,
    pub(crate) warnings: Vec<String>,
    /// Errors for the weights that cannot be read.
    pub(crate) refused: Vec<Error>,
}

/// The fields of a layer's own message.
struct Layer {
    kind: u32,
    fields: Vec<Field>,
}

impl Network {
    /// Adds the layers of a network, whose names begin with `prefix`.
    ///
    /// # Errors
    /// E001 for what is none, E002 for a damaged one, E007 when reading fails, E008 over the limit.
    pub(crate) fn add(
        &mut self,
        walker: &mut Walker<'_>,
        mut message: Message,
        prefix: &str,
        limits: &Limits,
    ) -> Result<()> {
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => self.add_layer(walker, field.message()?, prefix, limits)?,
                2 => self.add_mean_image(walker, field.message()?, prefix)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add_layer(
        &mut self,
        walker: &mut Walker<'_>,
        mut message: Message,
        prefix: &str,
        limits: &Limits,
    ) -> Result<()> {
        let (mut name, mut own) = (String::new(), None);
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => name = field.text(walker)?,
                FIRST_KIND.. => own = Some(field),
                _ => {}
            }
        }
        let Some(own) = own else { return Ok(()) };
        let kind = own.number;
        let known = name_of(NAMES, kind).map_or_else(|| format!("layer {kind}"), str::to_owned);
        *self.layers.entry(known).or_default() += 1;
        walker.keep((prefix.len() + name.len()) as u64)?;
        let prefix = format!("{prefix}{name}/");
        for (_, number, branch) in NESTED.iter().filter(|(of, ..)| *of == kind) {
            let mut message = own.message()?;
            while let Some(field) = message.next(walker)? {
                if field.number == *number {
                    self.add(walker, field.message()?, &format!("{prefix}{branch}/"), limits)?;
                }
            }
        }
        let fields: Vec<_> = weights(kind).into_iter().flatten().collect();
        if fields.is_empty() {
            return Ok(());
        }

        let layer = Layer { kind, fields: fields_of(walker, own.message()?)? };
        for weight in fields {
            let mut found = Vec::new();
            follow(walker, &layer.fields, weight.path, &mut found)?;
            let several = found.len() > 1;
            for (number, field) in found.into_iter().enumerate() {
                let name = match (kind, several) {
                    (BIDIRECTIONAL_LSTM, true) if weight.path[0] == 20 => {
                        let direction = if number == 0 { "forward" } else { "backward" };
                        format!("{prefix}{direction}/{}", weight.name)
                    }
                    (_, true) => format!("{prefix}{}.{number}", weight.name),
                    _ => format!("{prefix}{}", weight.name),
                };
                walker.keep((name.len() + size_of::<(Found, Tensor)>()) as u64)?;
                let shown = Escaped::short(&name).to_string();
                let dims =
                    layer.shape(walker, weight.shape).map_err(|error| error.for_tensor(&shown))?;
                let axis = usize::from(layer.is_transposed());
                let params = WeightParams::read(walker, field.message()?);
                let tensor = params.and_then(|params| params.tensor(walker, dims, axis, limits));
                match tensor.map_err(|error| error.for_tensor(&shown)) {
                    Ok(Some((tensor, fits))) => {
                        if !fits {
                            let dims = &tensor.dims;
                            let message = "has other values than its layer declares, and is listed";
                            self.warnings.push(format!("{shown} {message} as {dims:?}"));
                        }
                        let made_by = params_kind(&tensor);
                        self.weights.push(Found { name, tensor: Arc::new(tensor), made_by });
                    }
                    Ok(None) => {}
                    Err(error) if error.code() == apr_core::Code::Version => {
                        self.refused.push(error);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// The mean image that is subtracted from an input.
    fn add_mean_image(
        &mut self,
        walker: &mut Walker<'_>,
        mut message: Message,
        prefix: &str,
    ) -> Result<()> {
        let (mut feature, mut image) = (String::new(), None);
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => feature = field.text(walker)?,
                11 => image = Some(field),
                _ => {}
            }
        }
        let Some(image) = image else { return Ok(()) };
        let name = format!("{prefix}preprocessing/{feature}/meanImage");
        let mut runs = Runs::default();
        let mut message = image.message()?;
        while let Some(field) = message.next(walker)? {
            if field.number == 1 {
                runs.add(walker, &field, Element::Fixed32)?;
            }
        }
        let bytes = of_runs(walker, &runs, Element::Fixed32, image.range()?)?;
        let tensor = Arc::new(list(bytes, Encoding::Whole(DType::F32))?);
        self.weights.push(Found { name, tensor, made_by: None });
        Ok(())
    }
}

/// Returns the storage form of a network's weight, unless it is stored plainly.
fn params_kind(tensor: &Tensor) -> Option<String> {
    let (quants, kind) = match &tensor.elements {
        Elements::Scaled { quants, .. } => (quants, "linear"),
        Elements::Looked { indices, .. } => (indices, "lookup table"),
        _ => return None,
    };
    let Elements::Stored { encoding, .. } = &quants.elements else { return None };
    Some(format!("{kind}, {} bits", encoding.width()))
}

/// Returns the fields of a message, which contain weights and shapes.
fn fields_of(walker: &mut Walker<'_>, mut message: Message) -> Result<Vec<Field>> {
    let mut fields = Vec::new();
    while let Some(field) = message.next(walker)? {
        walker.keep(size_of::<Field>() as u64)?;
        fields.push(field);
    }
    Ok(fields)
}

/// Collects the fields at the end of a path.
fn follow(
    walker: &mut Walker<'_>,
    fields: &[Field],
    path: &[u32],
    found: &mut Vec<Field>,
) -> Result<()> {
    let Some((number, rest)) = path.split_first() else { return Ok(()) };
    for field in fields.iter().filter(|field| field.number == *number) {
        if rest.is_empty() {
            walker.keep(size_of::<Field>() as u64)?;
            found.push(*field);
        } else {
            let inner = fields_of(walker, field.message()?)?;
            follow(walker, &inner, rest, found)?;
        }
    }
    Ok(())
}

impl Layer {
    /// The numbers of a field, packed or not.
    fn numbers(&self, walker: &mut Walker<'_>, number: u32) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for field in self.fields.iter().filter(|field| field.number == number) {
            field.integers(walker, &mut numbers)?;
        }
        let size = |number: i64| {
            u64::try_from(number).map_err(|_| Error::corrupt(format!("it has the size {number}")))
        };
        numbers.into_iter().map(size).collect()
    }

    fn number(&self, number: u32) -> Result<u64> {
        let mut fields = self.fields.iter().filter(|field| field.number == number);
        fields.next_back().map_or(Ok(0), Field::integer)
    }

    /// Returns `true` for a transposed convolution, whose output channels are the second dimension.
    fn is_transposed(&self) -> bool {
        let field = match self.kind {
            100 => 60,
            1471 => 86,
            _ => return false,
        };
        self.number(field).is_ok_and(|number| number != 0)
    }

    /// The shape that a weight should have; `None` for any.
    fn shape(&self, walker: &mut Walker<'_>, rule: ShapeRule) -> Result<Option<Vec<u64>>> {
        match rule {
            ShapeRule::List => Ok(None),
            ShapeRule::Sizes(fields) => {
                fields.iter().map(|&number| self.number(number)).collect::<Result<_>>().map(Some)
            }
            ShapeRule::Repeated(field) => self.numbers(walker, field).map(Some),
            ShapeRule::Kernel2 => {
                let mut kernel = self.numbers(walker, 20)?;
                if kernel.is_empty() {
                    kernel = vec![3, 3];
                }
                self.kernel(self.number(2)?, &kernel).map(Some)
            }
            ShapeRule::Kernel3 => {
                let kernel = [20, 21, 22].into_iter().map(|number| self.number(number));
                let inputs = self.number(2)?;
                let inputs = if self.is_transposed() { inputs } else { inputs / self.groups()? };
                self.kernel(inputs, &kernel.collect::<Result<Vec<_>>>()?).map(Some)
            }
        }
    }

    fn groups(&self) -> Result<u64> {
        Ok(self.number(10)?.max(1))
    }

    /// Channels and kernel of a convolution.
    fn kernel(&self, inputs: u64, kernel: &[u64]) -> Result<Vec<u64>> {
        let outputs = self.number(1)?;
        let channels = if self.is_transposed() {
            [inputs, outputs / self.groups()?]
        } else {
            [outputs, inputs]
        };
        Ok([&channels[..], kernel].concat())
    }
}

/// A weight, not read.
#[derive(Default)]
struct WeightParams {
    floats: Runs,
    range: apr_core::protobuf::Span,
    half: Option<apr_core::protobuf::Span>,
    raw: Option<apr_core::protobuf::Span>,
    signed: Option<apr_core::protobuf::Span>,
    bits: u64,
    scale: Runs,
    bias: Runs,
    table: Option<Runs>,
}

impl WeightParams {
    fn read(walker: &mut Walker<'_>, mut message: Message) -> Result<Self> {
        let mut params = Self::default();
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => {
                    params.floats.add(walker, &field, Element::Fixed32)?;
                    params.range = field.span;
                }
                2 => params.half = Some(field.range()?).filter(|span| span.len > 0),
                30 => params.raw = Some(field.range()?).filter(|span| span.len > 0),
                31 => params.signed = Some(field.range()?).filter(|span| span.len > 0),
                40 => params.read_quantization(walker, field.message()?)?,
                _ => {}
            }
        }
        Ok(params)
    }

    fn read_quantization(&mut self, walker: &mut Walker<'_>, mut message: Message) -> Result<()> {
        while let Some(field) = message.next(walker)? {
            match (field.number, field.value) {
                (1, Value::Varint(bits)) => self.bits = bits,
                (101, _) if is_delimited(&field) => {
                    let mut linear = field.message()?;
                    while let Some(field) = linear.next(walker)? {
                        match field.number {
                            1 => self.scale.add(walker, &field, Element::Fixed32)?,
                            2 => self.bias.add(walker, &field, Element::Fixed32)?,
                            _ => {}
                        }
                    }
                }
                (102, _) if is_delimited(&field) => {
                    let mut table = field.message()?;
                    let runs = self.table.get_or_insert_default();
                    while let Some(field) = table.next(walker)? {
                        if field.number == 1 {
                            runs.add(walker, &field, Element::Fixed32)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the tensor, and `true` if it has the shape that the layer requires.
    ///
    /// Returns `None` if there is no tensor.
    fn tensor(
        &self,
        walker: &mut Walker<'_>,
        dims: Option<Vec<u64>>,
        axis: usize,
        limits: &Limits,
    ) -> Result<Option<(Tensor, bool)>> {
        let plain = if !self.floats.runs().is_empty() {
            let bytes = of_runs(walker, &self.floats, Element::Fixed32, self.range)?;
            Some((bytes, Encoding::Whole(DType::F32)))
        } else {
            self.half.map(|span| (Bytes::File(in_model(span)), Encoding::Whole(DType::F16)))
        };
        if let Some((bytes, encoding)) = plain {
            let listed = list(bytes, encoding)?;
            let Some(dims) = dims else { return Ok(Some((listed, true))) };
            let fits = element_count(&dims) == Ok(listed.len());
            let tensor = if fits { Tensor { dims, ..listed } } else { listed };
            return Ok(Some((tensor, fits)));
        }

        let order = BitOrder::HighestFirst;
        let (span, encoding) = match (self.raw, self.signed) {
            (Some(span), _) => {
                let bits = u32::try_from(self.bits).ok().filter(|bits| (1..=8).contains(bits));
                let bits = bits.ok_or_else(|| {
                    Error::corrupt(format!("its quants have {} bits", self.bits)).at(span.offset)
                })?;
                (span, Encoding::Bits { bits, signed: false, order })
            }
            (None, Some(span)) => (span, Encoding::Whole(DType::I8)),
            (None, None) => return Ok(None),
        };
        let dims = dims.unwrap_or_else(|| vec![8 * span.len / encoding.width()]);
        let quants = Arc::new(Tensor::stored(Bytes::File(in_model(span)), encoding, dims)?);
        self.dequantized(walker, &quants, axis, limits).map(|tensor| Some((tensor, true)))
    }

    fn dequantized(
        &self,
        walker: &mut Walker<'_>,
        quants: &Arc<Tensor>,
        axis: usize,
        limits: &Limits,
    ) -> Result<Tensor> {
        let dims = quants.dims.clone();
        let mut by_block = |runs: &Runs, is_table: bool| {
            let bytes = of_runs(walker, runs, Element::Fixed32, in_span(quants.range()))?;
            let values = list(bytes, Encoding::Whole(DType::F32))?;
            values.check_values(limits)?;
            let mut blocks = vec![1; dims.len()];
            let axis = axis.min(dims.len().saturating_sub(1));
            if let Some(block) = blocks.get_mut(axis).filter(|_| !is_table && values.len() != 1) {
                *block = values.len();
            }
            Ok(ByBlock { grid: Grid::new(&dims, &blocks)?, values: Arc::new(values) })
        };
        let elements = if let Some(table) = &self.table {
            let tables = by_block(table, true)?;
            let entries = tables.values.len();
            Elements::Looked { indices: Arc::clone(quants), tables, entries, vectors: None }
        } else {
            if self.scale.runs().is_empty() {
                return Err(Error::corrupt("it is quantized, and has neither scales nor a table"));
            }
            let scales = by_block(&self.scale, false)?;
            let offsets = match self.bias.runs() {
                [] => None,
                _ => Some(by_block(&self.bias, false)?),
            };
            let rule = Linear::Network;
            Elements::Scaled { quants: Arc::clone(quants), scales, offsets, rule }
        };
        Ok(Tensor::computed(DType::F32, dims, elements, 1))
    }
}

fn in_span(range: apr_core::StoredRange) -> apr_core::protobuf::Span {
    apr_core::protobuf::Span { offset: range.offset, len: range.len }
}

/// Elements without a shape.
pub(crate) fn list(bytes: Bytes, encoding: Encoding) -> Result<Tensor> {
    let len = match &bytes {
        Bytes::File(range) => range.len,
        Bytes::Kept(bytes, _) => bytes.len() as u64,
    };
    Tensor::stored(bytes, encoding, vec![8 * len / encoding.width()])
}
