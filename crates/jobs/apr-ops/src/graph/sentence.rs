//! The modules of sentence-transformers as nodes: from vectors of tokens to the vector of a text.

use apr_blocks::activate;
use apr_graph::{BodyBuilder, Constant, Dim, ElementType, Graph, GraphBuilder, Meaning, ValueId};
use apr_registry::{CheckpointReader, Error, Limits, Result, TensorInfo};
use apr_source::sentence::{
    DENSE_WEIGHT, Module, ModuleTensor, PoolingMode, Sentence, Slot, find_module_tensor,
    module_tensor,
};

/// The output with the vectors of texts, as Optimum names it.
pub const SENTENCE_OUTPUT: &str = "sentence_embedding";

/// Input names of the graph of [`sentence_graph`].
///
/// They are the token embeddings, the mask of tokens that are not padding, and the mask of tokens
/// that are pooled.
pub const SENTENCE_INPUTS: [&str; 3] = ["token_embeddings", "attention_mask", "pooling_mask"];

/// Version of ONNX's operators that the graph of [`sentence_graph`] is written in.
const OPSET: i64 = 17;

/// Returns the modules behind the first one as a separate graph.
///
/// The graph has no weights of the checkpoint: the weights of the modules are constants.
///
/// # Errors
/// E003 for a module that is not known; E001 when its weights are missing or have other shapes than
/// its settings; E007 and E008 when they can't be read.
pub fn sentence_graph(reader: &dyn CheckpointReader, sentence: &Sentence) -> Result<Graph> {
    let mut graph = GraphBuilder::new(OPSET);
    let body = graph.body();
    let [states, mask, counted] = SENTENCE_INPUTS;
    let dims = || [Dim::symbol("batch"), Dim::symbol("tokens")];
    let all = dims().into_iter().chain([Dim::Unknown]);
    let states = body.input(states, ElementType::F32, all, Meaning::Unknown);
    let mask = body.input(mask, ElementType::F32, dims(), Meaning::Unknown);
    let counted = body.input(counted, ElementType::F32, dims(), Meaning::Unknown);
    let vector = Modules { body, opset: OPSET, reader }.write(sentence, states, mask, counted)?;
    graph.body().output(SENTENCE_OUTPUT, vector, Meaning::Pooled);
    Ok(graph.finish())
}

/// Adds the vectors of texts to a graph that makes vectors of tokens, as the output
/// `sentence_embedding`. Tokens of a prompt count, because no input separates them. Returns whether
/// the graph has what they are made of: vectors of tokens, and the mask of the padding.
///
/// # Errors
/// Those of [`sentence_graph`].
pub(crate) fn add_sentence(
    graph: &mut Graph,
    reader: &dyn CheckpointReader,
    sentence: &Sentence,
) -> Result<bool> {
    let body = &graph.body;
    let of = |list: &[ValueId], meaning: Meaning| {
        list.iter().copied().find(|id| body.value(*id).meaning == meaning)
    };
    let made_of = if sentence.is_sparse() { Meaning::Logits } else { Meaning::HiddenStates };
    let states = of(&body.outputs, made_of);
    let mask = of(&body.inputs, Meaning::AttentionMask);
    let (Some(states), Some(mask)) = (states, mask) else { return Ok(false) };
    let opset = graph.opset("").unwrap_or(OPSET);
    let mut builder = BodyBuilder::continuing(std::mem::take(&mut graph.body));
    let made = builder.scope("sentence", |body| {
        let mask = cast(body, "mask", mask);
        let mut modules = Modules { body, opset, reader };
        let vector = modules.write(sentence, states, mask, mask)?;
        Ok(modules.kept(sentence, vector))
    });
    let added = made.map(|vector| builder.output(SENTENCE_OUTPUT, vector, Meaning::Pooled));
    graph.body = builder.finish();
    added.map(|()| true)
}

/// Returns the graph of a model whose first module is a table of vectors (StaticEmbedding), which
/// is of no family; `None` for others.
///
/// # Errors
/// E003 for a module that is not known; E001 where the table is missing or malformed; those of
/// [`Sentence::of`].
pub(crate) fn table_graph(reader: &dyn CheckpointReader) -> Result<Option<Graph>> {
    let Some(sentence) = Sentence::of(reader)? else { return Ok(None) };
    sentence.check()?;
    if sentence.modules.first() != Some(&Module::StaticEmbedding) {
        return Ok(None);
    }
    let find =
        |names: &[&str]| reader.tensors().iter().find(|info| names.contains(&info.name.as_str()));
    // The second name, and the two tensors beside it, are those of model2vec.
    let table = find(&["embedding.weight", "embeddings"]);
    let table = table.filter(|info| info.shape.dims().len() == 2).ok_or_else(|| {
        Error::format("the module StaticEmbedding lacks its matrix, 'embedding.weight'")
    })?;
    let mut graph = GraphBuilder::new(OPSET);
    let body = graph.body();
    let dims = || [Dim::symbol("batch"), Dim::symbol("tokens")];
    let mut ids = body.input("input_ids", ElementType::I64, dims(), Meaning::TokenIds);
    // The mask goes to the modules, which count the tokens by it.
    body.input("attention_mask", ElementType::I64, dims(), Meaning::AttentionMask);
    let weight = |body: &mut BodyBuilder, info: &TensorInfo, element: ElementType| {
        body.weight(&info.name, element, info.shape.dims().iter().copied())
    };
    let factors = find(&["weights"]).map(|info| {
        let factors = weight(body, info, ElementType::F32);
        let axes = body.ints(&[-1]);
        let chosen = body.op("Gather", [factors, ids]).output("factors");
        body.op("Unsqueeze", [chosen, axes]).output("factors_by_token")
    });
    if let Some(info) = find(&["mapping"]) {
        let rows = weight(body, info, ElementType::I64);
        ids = body.op("Gather", [rows, ids]).output("rows");
    }
    let table = weight(body, table, ElementType::F32);
    let mut vectors = body.op("Gather", [table, ids]).output("vectors");
    if let Some(factors) = factors {
        vectors = body.op("Mul", [vectors, factors]).output("weighted");
    }
    body.output("last_hidden_state", vectors, Meaning::HiddenStates);
    Ok(Some(graph.finish()))
}

fn cast(body: &mut BodyBuilder, name: &str, x: ValueId) -> ValueId {
    body.op("Cast", [x]).attribute("to", i64::from(ElementType::F32.onnx_code())).output(name)
}

/// Writes modules.
struct Modules<'m> {
    body: &'m mut BodyBuilder,
    opset: i64,
    reader: &'m dyn CheckpointReader,
}

impl Modules<'_> {
    /// `mask` has 1 for tokens and 0 for padding, `counted` 1 for the tokens that are pooled.
    fn write(
        &mut self,
        sentence: &Sentence,
        states: ValueId,
        mask: ValueId,
        counted: ValueId,
    ) -> Result<ValueId> {
        sentence.check()?;
        let (mut tokens, mut vector) = (states, None);
        for (position, module) in sentence.modules.iter().enumerate() {
            let name = position.to_string();
            let absent = || {
                let message = format!(
                    "module {position} reads the vector of the text before a \
                     pooling makes it"
                );
                Error::format(message).in_file(apr_source::sentence::MODULES)
            };
            let read = |slot: Slot| match slot {
                Slot::Tokens => Ok(tokens),
                Slot::Sentence => vector.ok_or_else(absent),
            };
            let (to, made) = match module {
                Module::Transformer | Module::Dropout | Module::TokenMask { .. } => continue,
                Module::Splade { sums, twice } => {
                    (Slot::Sentence, self.splade(&name, tokens, mask, (*sums, *twice)))
                }
                Module::Unsupported(_) => unreachable!("the modules were checked"),
                Module::StaticEmbedding => {
                    (Slot::Sentence, self.pool(&name, &[PoolingMode::Mean], tokens, mask, counted))
                }
                Module::Pooling { modes, .. } => {
                    (Slot::Sentence, self.pool(&name, modes, tokens, mask, counted))
                }
                Module::Dense { folder, from, to, activation, residual } => {
                    let x = read(*from)?;
                    (*to, self.dense(&name, folder, x, *activation, *residual)?)
                }
                Module::Normalize { from, to } => {
                    let x = read(*from)?;
                    (*to, self.normalize(&name, x))
                }
                Module::LayerNorm { folder } => {
                    let x = read(Slot::Sentence)?;
                    (Slot::Sentence, self.layer_norm(&name, folder, x)?)
                }
                _ => {
                    return Err(Error::version(format!("module {position} is of an unknown kind")));
                }
            };
            match to {
                Slot::Tokens => tokens = made,
                Slot::Sentence => vector = Some(made),
            }
        }
        // Tokens keep their vectors where those are compared.
        let made = vector.or_else(|| sentence.keeps_tokens().then_some(tokens));
        made.ok_or_else(|| {
            let message = "no module pools the token vectors into one vector";
            Error::format(message).in_file(apr_source::sentence::MODULES)
        })
    }

    /// Returns the elements of vectors that the model's settings keep: the first ones, or the
    /// largest ones of sparse vectors. Runs choose them by their options instead.
    fn kept(&mut self, sentence: &Sentence, vector: ValueId) -> ValueId {
        let signed = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
        if let Some(dimensions) = sentence.dimensions {
            let bounds = [0, signed(dimensions), -1].map(|bound| self.body.ints(&[bound]));
            let [start, end, axis] = bounds;
            return self.make("Slice", "kept", [vector, start, end, axis]);
        }
        let Some(most) = sentence.max_active else { return vector };
        // More than there are is all of them.
        let shape = self.body.op("Shape", [vector]).output("shape");
        let axis = self.body.ints(&[1]);
        let width = self.make("Gather", "width", [shape, axis]);
        let most = self.body.ints(&[signed(most)]);
        let most = self.make("Min", "most", [most, width]);
        let largest = self.body.op("TopK", [vector, most]);
        let [values, places] = largest.attribute("axis", -1).outputs("largest");
        let zero = self.body.float(0.0);
        let zeros = self.make("Mul", "zeros", [vector, zero]);
        let placed = self.body.op("ScatterElements", [zeros, places, values]);
        placed.attribute("axis", -1).output("kept")
    }

    fn make<const N: usize>(&mut self, op: &str, name: &str, inputs: [ValueId; N]) -> ValueId {
        self.body.op(op, inputs).output(name)
    }

    fn scope<T>(&mut self, name: &str, write: impl FnOnce(&mut Modules<'_>) -> T) -> T {
        let (opset, reader) = (self.opset, self.reader);
        self.body.scope(name, |body| write(&mut Modules { body, opset, reader }))
    }

    /// Returns the sum over an axis, which is kept with length 1.
    fn sum(&mut self, name: &str, x: ValueId, axis: i64) -> ValueId {
        let axes = self.body.ints(&[axis]);
        self.make("ReduceSum", name, [x, axes])
    }

    /// Joined vectors of tokens, one for each mode.
    fn pool(
        &mut self,
        name: &str,
        modes: &[PoolingMode],
        tokens: ValueId,
        mask: ValueId,
        counted: ValueId,
    ) -> ValueId {
        self.scope(name, |modules| {
            let pooled: Vec<ValueId> = modes
                .iter()
                .map(|mode| {
                    modules.scope(mode.name(), |one| one.pool_by(*mode, tokens, mask, counted))
                })
                .collect();
            match pooled.as_slice() {
                [one] => *one,
                all => {
                    let joined = modules.body.op("Concat", all.iter().copied());
                    joined.attribute("axis", -1).output("joined")
                }
            }
        })
    }

    fn pool_by(
        &mut self,
        mode: PoolingMode,
        tokens: ValueId,
        mask: ValueId,
        counted: ValueId,
    ) -> ValueId {
        let weights = match mode {
            PoolingMode::Max => return self.largest(tokens, counted),
            PoolingMode::First | PoolingMode::Last => {
                // The first token that counts is the one up to which there is one.
                let number = self.number(counted);
                let wanted = match mode {
                    PoolingMode::First => self.body.float(1.0),
                    _ => self.sum("count", counted, 1),
                };
                let is_it = self.make("Equal", "is_it", [number, wanted]);
                let is_it = cast(self.body, "chosen", is_it);
                self.make("Mul", "weights", [is_it, counted])
            }
            PoolingMode::WeightedMean => {
                let number = self.number(mask);
                let weights = self.make("Mul", "weights", [number, counted]);
                self.share(weights, false)
            }
            PoolingMode::MeanSqrt => self.share(counted, true),
            _ => self.share(counted, false),
        };
        // [batch, 1, tokens] times [batch, tokens, width].
        let axes = self.body.ints(&[1]);
        let row = self.make("Unsqueeze", "row", [weights, axes]);
        let sum = self.make("MatMul", "sum", [row, tokens]);
        let axes = self.body.ints(&[1]);
        self.make("Squeeze", "pooled", [sum, axes])
    }

    /// Returns the number of tokens up to and including each position.
    fn number(&mut self, mask: ValueId) -> ValueId {
        let axis = self.body.int(1);
        self.make("CumSum", "number", [mask, axis])
    }

    /// Weights, divided by their sum or by its square root.
    fn share(&mut self, weights: ValueId, by_root: bool) -> ValueId {
        let total = self.sum("total", weights, 1);
        // As in sentence-transformers, where nothing counts.
        let least = self.body.float(1e-9);
        let total = self.make("Max", "divisor", [total, least]);
        let divisor = if by_root { self.make("Sqrt", "root", [total]) } else { total };
        self.make("Div", "share", [weights, divisor])
    }

    /// The largest numbers of the tokens that count.
    fn largest(&mut self, tokens: ValueId, counted: ValueId) -> ValueId {
        let axes = self.body.ints(&[-1]);
        let column = self.make("Unsqueeze", "column", [counted, axes]);
        let half = self.body.float(0.5);
        let counts = self.make("Greater", "counts", [column, half]);
        let none = self.body.float(f32::NEG_INFINITY);
        let there = self.make("Where", "there", [counts, tokens, none]);
        if self.opset < 18 {
            let largest = self.body.op("ReduceMax", [there]).attribute("axes", [1]);
            return largest.attribute("keepdims", 0).output("pooled");
        }
        let axes = self.body.ints(&[1]);
        self.body.op("ReduceMax", [there, axes]).attribute("keepdims", 0).output("pooled")
    }

    /// Scores of words for each token, as one vector of the text.
    fn splade(
        &mut self,
        name: &str,
        tokens: ValueId,
        mask: ValueId,
        (sums, twice): (bool, bool),
    ) -> ValueId {
        self.scope(name, |modules| {
            let axes = modules.body.ints(&[-1]);
            let column = modules.make("Unsqueeze", "column", [mask, axes]);
            let counted = modules.make("Mul", "counted", [tokens, column]);
            let mut weights = modules.make("Relu", "above_zero", [counted]);
            for name in ["log", "log_again"].into_iter().take(1 + usize::from(twice)) {
                weights = modules.scope(name, |modules| {
                    let one = modules.body.float(1.0);
                    let more = modules.make("Add", "more", [weights, one]);
                    modules.make("Log", "log", [more])
                });
            }
            if sums {
                let axes = modules.body.ints(&[1]);
                let sum = modules.body.op("ReduceSum", [weights, axes]);
                return sum.attribute("keepdims", 0).output("pooled");
            }
            modules.largest(weights, mask)
        })
    }

    fn normalize(&mut self, name: &str, x: ValueId) -> ValueId {
        self.scope(name, |modules| {
            let square = modules.make("Mul", "square", [x, x]);
            let sum = modules.sum("sum", square, -1);
            let length = modules.make("Sqrt", "length", [sum]);
            // PyTorch's `normalize` divides by no less either.
            let least = modules.body.float(1e-12);
            let divisor = modules.make("Max", "divisor", [length, least]);
            modules.make("Div", "normalized", [x, divisor])
        })
    }

    fn dense(
        &mut self,
        name: &str,
        folder: &str,
        x: ValueId,
        activation: Option<&str>,
        residual: bool,
    ) -> Result<ValueId> {
        let tensor =
            |names: &[&str]| find_module_tensor(self.reader, folder, names, &Limits::default());
        let weight = module_tensor(self.reader, folder, &[DENSE_WEIGHT], &Limits::default())?;
        let bias = tensor(&["linear.bias"])?;
        let beside = tensor(&["residual.weight"])?.filter(|_| residual);
        let weight = transposed(&weight, folder)?;
        let beside = beside.as_ref().map(|beside| transposed(beside, folder)).transpose()?;
        self.scope(name, |modules| {
            let weight = modules.body.constant(weight);
            let mut made = modules.make("MatMul", "product", [x, weight]);
            if let Some(bias) = bias {
                let bias = modules.body.constant(constant(bias));
                made = modules.make("Add", "sum", [made, bias]);
            }
            if let Some(activation) = activation {
                made = activate(modules.body, "activation", activation, made).ok_or_else(|| {
                    Error::version(format!("the activation '{activation}' is not known"))
                })?;
            }
            if residual {
                let x = match beside {
                    Some(beside) => {
                        let beside = modules.body.constant(beside);
                        modules.make("MatMul", "beside", [x, beside])
                    }
                    None => x,
                };
                made = modules.make("Add", "residual", [made, x]);
            }
            Ok(made)
        })
    }

    fn layer_norm(&mut self, name: &str, folder: &str, x: ValueId) -> Result<ValueId> {
        let tensor = |tensor: &str| {
            module_tensor(self.reader, folder, &[tensor], &Limits::default()).map(constant)
        };
        let (weight, bias) = (tensor("norm.weight")?, tensor("norm.bias")?);
        let (weight, bias) = (self.body.constant(weight), self.body.constant(bias));
        let norm = self.body.op("LayerNormalization", [x, weight, bias]);
        Ok(norm.attribute("epsilon", 1e-5_f32).output(name))
    }
}

fn constant(tensor: ModuleTensor) -> Constant {
    Constant { shape: tensor.shape, ..Constant::floats(&tensor.values) }
}

/// The matrix of a linear layer as a factor from the right.
fn transposed(tensor: &ModuleTensor, folder: &str) -> Result<Constant> {
    let [rows, columns] = tensor.shape[..] else {
        return Err(Error::format("the weight of the module must be a matrix").in_file(folder));
    };
    let width = usize::try_from(columns).unwrap_or(usize::MAX).max(1);
    let turned: Vec<f32> = (0..width)
        .flat_map(|column| tensor.values.iter().skip(column).step_by(width).copied())
        .collect();
    Ok(Constant { shape: vec![columns, rows], ..Constant::floats(&turned) })
}
