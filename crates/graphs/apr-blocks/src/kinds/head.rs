//! Heads: what becomes of the vectors after the last layer.

use apr_core::{Error, Result};
use apr_graph::{ElementType, Meaning, ValueId, View};

use super::vision;
use crate::blocks::activation::Activation;
use crate::blocks::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Maximum number of layers of a head. YOLOS has three.
const MAX_LAYERS: u64 = 64;

/// The tokens that vectors are of.
#[derive(Clone, Copy)]
pub(crate) struct Tokens {
    /// Ids of the tokens, `[batch, tokens]`.
    pub(crate) ids: ValueId,
    /// 0 for padding tokens, and 1 for the others.
    pub(crate) mask: Option<ValueId>,
}

impl From<ValueId> for Tokens {
    fn from(ids: ValueId) -> Self {
        Self { ids, mask: None }
    }
}

/// Writes the head that option `head` names, and its outputs:
///
/// - `states`: the vectors themselves, and one for the whole where the checkpoint has a `pooler`,
///   or option `pool` says which it is: the `first`, the `mean`, the `normed_mean` of all but the
///   first, or the `mean_of_two`, of the first and the second;
/// - `language`: scores of the next token;
/// - `masked_language`: scores of each token, from its vector through a dense layer and a norm;
/// - `last_token`: scores of classes, from the last token that is no padding;
/// - `pooled`: scores of classes, from the pooler;
/// - `first_token`: scores of classes, from the first token, through a dense layer where the
///   checkpoint has it;
/// - `counted_mean`: scores of classes, from the mean of the tokens that are no padding, through a
///   dense layer where the checkpoint has it;
/// - `mean_token`: scores of classes, from the mean of all vectors;
/// - `first_and_mean`: scores of classes, from the first vector and the mean of the others in a
///   row, without the registers of an image;
/// - `first_and_second`: the mean of the scores of two classifiers, of the first vector and of the
///   second;
/// - `normed_mean`: scores of classes, from the mean of all vectors but the first, through the norm
///   `pooler_norm`;
/// - `mean_of_two`: scores of classes, from the mean of the first vector and the second, through
///   the norm `head_norm`;
/// - `each_token`: scores of classes for each token;
/// - `one_of_each_token`: one score for each token, through a dense layer where the checkpoint has
///   it;
/// - `end_token`: scores of classes, from the last token that is option `end_id`, through a dense
///   layer;
/// - `mean_frame`: scores of classes, from the mean of all vectors after a projection;
/// - `boxes`: scores of classes and a box (middle, width and height, as parts of the picture's) for
///   each of the `detection_vectors`, each through linear layers `class_layer` and `box_layer`, as
///   many as option `head_layers` says;
/// - `span`: scores of the first and the last token of an answer.
///
/// # Errors
/// E003 when it names none that is known, or nothing for this task.
pub(crate) fn write(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    tokens: Option<Tokens>,
) -> Result<()> {
    let head = place.required_head()?;
    match head.as_str() {
        "states" => return states(w, place, x),
        "span" => return span(w, place, x),
        "boxes" => return boxes(w, place, x),
        _ => {}
    }
    let logits = logits(w, place, &head, x, tokens)?;
    w.body().output("logits", logits, Meaning::Logits);
    Ok(())
}

/// Writes the head that option `head` names, for texts that are answers to choose from, and its
/// output.
///
/// The output is one score for each answer, `[batch, choices]`. `sizes` are those two numbers.
///
/// # Errors
/// E003 if the option names a head that does not compute one score for a text.
pub(crate) fn write_choices(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    sizes: ValueId,
) -> Result<()> {
    let head = place.text("head")?;
    if !matches!(head.as_str(), "pooled" | "first_token") {
        return Err(place.unknown("head", &head));
    }
    let scores = logits(w, place, &head, x, None)?;
    let logits = w.scope("head", |w| w.make("Reshape", "by_choice", [scores, sizes]));
    w.body().output("logits", logits, Meaning::Logits);
    Ok(())
}

/// Scores, by the head of this name.
fn logits(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    head: &str,
    x: ValueId,
    tokens: Option<Tokens>,
) -> Result<ValueId> {
    Ok(match (head, tokens) {
        ("one_of_each_token", _) => {
            let x = w.scope("head", |w| dense(w, place, x))?;
            let column = scores(w, place, x)?;
            let axis = w.ints(&[-1]);
            w.make("Squeeze", "logits", [column, axis])
        }
        ("end_token", Some(tokens)) => end_token(w, place, x, tokens.ids)?,
        ("language", _) => language(w, place, x)?,
        ("masked_language", _) => masked_language(w, place, x)?,
        ("last_token", Some(tokens)) => last_token(w, place, x, tokens.ids)?,
        ("pooled", _) => {
            let pooled = w.pooled(place, x, &place.module("pooler")?)?;
            scores(w, place, pooled)?
        }
        ("first_token", _) => first_token(w, place, x)?,
        ("counted_mean", tokens) => counted_mean(w, place, x, tokens.and_then(|it| it.mask))?,
        ("mean_token", _) => {
            let mean = w.scope("pooler", |w| w.mean_vector(x));
            scores(w, place, mean)?
        }
        ("first_and_mean", _) => {
            let first_patch = 1 + signed(vision::registers(place)?);
            let both = w.scope("pooler", |w| {
                let first = w.first_vector(x);
                let others = w.slice("others", x, 1, first_patch, i64::MAX);
                let mean = w.mean_vector(others);
                w.concat("first_and_mean", &[first, mean], -1)
            });
            scores(w, place, both)?
        }
        ("first_and_second", _) => first_and_second(w, place, x)?,
        ("normed_mean", _) => {
            let mean = w.scope("pooler", |w| w.normed_mean(place, x))?;
            scores(w, place, mean)?
        }
        ("mean_of_two", _) => {
            let mean = w.scope("pooler", |w| w.mean_of_two(x));
            let norm = place.module_or_none("head_norm");
            let x = w.scope("head", |w| w.norm_part(Norm::of(place)?, "norm", mean, norm))?;
            scores(w, place, x)?
        }
        ("each_token", _) => {
            let x = w.scope("head", |w| dense(w, place, x))?;
            scores(w, place, x)?
        }
        ("mean_frame", _) => mean_frame(w, place, x)?,
        _ => return Err(place.unknown("head", head)),
    })
}

fn states(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<()> {
    w.body().output("last_hidden_state", x, Meaning::HiddenStates);
    if let Some(pooler) = place.module_or_none("pooler") {
        let pooled = w.pooled(place, x, &pooler)?;
        w.body().output("pooler_output", pooled, Meaning::Pooled);
    } else if let Some(pool) = place.text_or_none("pool")? {
        let pooled = w.scope("pooler", |w| match pool.as_str() {
            "first" => Ok(w.first_vector(x)),
            "mean" => Ok(w.mean_vector(x)),
            "normed_mean" => w.normed_mean(place, x),
            "mean_of_two" => Ok(w.mean_of_two(x)),
            other => Err(place.unknown("pool", other)),
        })?;
        w.body().output("pooler_output", pooled, Meaning::Pooled);
    }
    Ok(())
}

impl Writer<'_> {
    /// The vector of the first token, `[batch, hidden]`.
    pub(crate) fn first_vector(&mut self, x: ValueId) -> ValueId {
        let first = self.int(0);
        self.op("Gather", [x, first]).attribute("axis", 1).output("first")
    }

    /// The mean of the first vector and the second, `[batch, hidden]`.
    fn mean_of_two(&mut self, x: ValueId) -> ValueId {
        let first = self.first_vector(x);
        let one = self.int(1);
        let second = self.op("Gather", [x, one]).attribute("axis", 1).output("second");
        let sum = self.make("Add", "sum", [first, second]);
        self.scaled("mean", sum, 0.5)
    }

    /// The norm `pooler_norm` of the mean of all vectors but the first, `[batch, hidden]`.
    fn normed_mean(&mut self, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
        let patches = self.slice("patches", x, 1, 1, i64::MAX);
        let mean = self.mean_vector(patches);
        self.norm("norm", Norm::of(place)?, mean, &place.module("pooler_norm")?)
    }

    /// `activation(W x[0] + b)`, option `pooler_activation` or the hyperbolic tangent.
    pub(crate) fn pooled(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        pooler: &str,
    ) -> Result<ValueId> {
        let activation = match place.text_or_none("pooler_activation")? {
            Some(_) => Activation::of(place, "pooler_activation")?,
            None => Activation::Tanh,
        };
        self.scope("pooler", |w| {
            let first = w.first_vector(x);
            let dense = w.outer_linear("dense", first, pooler)?;
            Ok(w.activate("activation", activation, dense))
        })
    }

    /// The vector at a place of each row, `[batch, hidden]`; places are `[batch, 1]`.
    pub(crate) fn vector_at(&mut self, name: &str, x: ValueId, places: ValueId) -> ValueId {
        self.op("GatherND", [x, places]).attribute("batch_dims", 1).output(name)
    }

    /// Returns the first or last position along axis 1 with a true value, `[batch, 1]`.
    ///
    /// Without a true value, it is the first or last position of all.
    pub(crate) fn place_of(&mut self, name: &str, truths: ValueId, is_last: bool) -> ValueId {
        // ArgMax takes numbers alone.
        let numbers = self.cast("as_numbers", truths, ElementType::I32);
        let place = self.op("ArgMax", [numbers]).attribute("axis", 1).attribute("keepdims", 1);
        place.attribute("select_last_index", i64::from(is_last)).output(name)
    }
}

/// Scores of classes of vectors, by the module `score`.
fn scores(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let module = place.module("score")?;
    w.scope("head", |w| w.outer_linear("scores", x, &module))
}

/// Returns `norm(activation(W x + b))` by the modules `head_dense` and `head_norm`, if the
/// checkpoint has them.
///
/// Options `head_activation` and `head_norm_eps`.
fn dense(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let Some(module) = place.module_or_none("head_dense") else { return Ok(x) };
    let dense = w.outer_linear("dense", x, &module)?;
    let activation = Activation::of(place, "head_activation")?;
    let x = w.activate("activation", activation, dense);
    w.norm_part(Norm::of(place)?, "norm", x, place.module_or_none("head_norm"))
}

fn first_token(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let x = w.scope("head", |w| {
        let first = w.first_vector(x);
        dense(w, place, first)
    })?;
    scores(w, place, x)
}

/// The mean of the scores of two classifiers: of the first vector, by the module `score`, and of
/// the second, by `second_score`.
fn first_and_second(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let first = w.scope("pooler", |w| w.first_vector(x));
    let first = scores(w, place, first)?;
    let module = place.module("second_score")?;
    w.scope("head", |w| {
        let one = w.int(1);
        let second = w.op("Gather", [x, one]).attribute("axis", 1).output("second");
        let second = w.outer_linear("second_scores", second, &module)?;
        let sum = w.make("Add", "sum", [first, second]);
        Ok(w.scaled("logits", sum, 0.5))
    })
}

fn counted_mean(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    mask: Option<ValueId>,
) -> Result<ValueId> {
    let mean = w.scope("pooler", |w| {
        let Some(mask) = mask else { return w.mean_vector(x) };
        let counts = w.cast("counts", mask, ElementType::F32);
        let by_token = w.unsqueeze("counts_by_token", counts, &[2]);
        let counted = w.make("Mul", "counted", [x, by_token]);
        let axis = w.ints(&[1]);
        let sum = w.op("ReduceSum", [counted, axis]).attribute("keepdims", 0).output("sum");
        let axis = w.ints(&[1]);
        let count = w.make("ReduceSum", "count", [counts, axis]);
        w.make("Div", "mean", [sum, count])
    });
    let x = w.scope("head", |w| dense(w, place, mean))?;
    scores(w, place, x)
}

/// Scores of the last token that ends a text.
fn end_token(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    tokens: ValueId,
) -> Result<ValueId> {
    let end = place.size("end_id")?;
    let x = w.scope("head", |w| {
        let end = w.int(signed(end));
        let is_end = w.make("Equal", "is_end", [tokens, end]);
        let last = w.place_of("last", is_end, true);
        let x = w.vector_at("end", x, last);
        dense(w, place, x)
    })?;
    scores(w, place, x)
}

/// Returns class scores for the mean of all vectors, `[batch, frames, hidden]`.
///
/// Each vector first passes through the module `head_projection`.
fn mean_frame(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let projection = place.module("head_projection")?;
    let mean = w.scope("head", |w| -> Result<ValueId> {
        let projected = w.outer_linear("projection", x, &projection)?;
        Ok(w.mean_vector(projected))
    })?;
    scores(w, place, mean)
}

fn boxes(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<()> {
    let count = place.size("head_layers")?;
    let detections = signed(vision::detections(place)?);
    if count > MAX_LAYERS {
        return Err(Error::memory(format!("a head has {count} layers")));
    }
    let x = w.scope("head", |w| w.slice("detections", x, 1, -detections, i64::MAX));
    let mut through = |part: &str| {
        w.scope(part, |w| {
            let mut x = x;
            for number in 0..count {
                let module = place
                    .numbered(part, &[("number", number)])
                    .ok_or_else(|| Error::format("a layer of a head has no name"))?;
                if number > 0 {
                    x = w.make("Relu", "activation", [x]);
                }
                x = w.outer_linear("dense", x, &module)?;
            }
            Ok::<_, Error>(x)
        })
    };
    let (logits, boxes) = (through("class_layer")?, through("box_layer")?);
    let boxes = w.scope("head", |w| w.make("Sigmoid", "boxes", [boxes]));
    w.body().output("logits", logits, Meaning::Logits);
    w.body().output("pred_boxes", boxes, Meaning::Unknown);
    Ok(())
}

fn span(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<()> {
    let x = w.scope("head", |w| dense(w, place, x))?;
    let both = scores(w, place, x)?;
    let (start, end) = w.scope("head", |w| {
        let [start, end] = w.split("ends", both, -1, [1, 1]);
        let axis = w.ints(&[-1]);
        (w.make("Squeeze", "start", [start, axis]), w.make("Squeeze", "end", [end, axis]))
    });
    w.body().output("start_logits", start, Meaning::Logits);
    w.body().output("end_logits", end, Meaning::Logits);
    Ok(())
}

/// Returns class scores for the last token that is not option `padding_id`, or for the last token
/// without that option.
fn last_token(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    tokens: ValueId,
) -> Result<ValueId> {
    let all = scores(w, place, x)?;
    w.scope("head", |w| {
        let Some(padding) = place.size_or_none("padding_id")? else {
            let last = w.int(-1);
            return Ok(w.op("Gather", [all, last]).attribute("axis", 1).output("logits"));
        };
        let padding = w.int(signed(padding));
        let is_padding = w.make("Equal", "is_padding", [tokens, padding]);
        let counts = w.make("Not", "counts", [is_padding]);
        let last = w.place_of("last", counts, true);
        Ok(w.vector_at("logits", all, last))
    })
}

/// Scores of all tokens of the vocabulary, from vectors that went through a dense layer and a norm
/// (BERT).
fn masked_language(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let x = w.scope("head", |w| dense(w, place, x))?;
    language(w, place, x)
}

/// `x W^T + b`, times option `logit_scale`, through `logit_cap tanh(logits / logit_cap)`. W is the
/// table of the tokens where option `tied` holds, unless the head is known to differ from it, or
/// where the option says nothing and the checkpoint has no other.
pub(crate) fn language(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
) -> Result<ValueId> {
    w.scope("head", |w| {
        let own = place.module_or_none("head");
        let is_untied = own.as_ref().is_some_and(|own| w.model.is_untied(&format!("{own}.weight")));
        let is_tied = place.truth_or("tied", own.is_none())? && !is_untied;
        let weight = if is_tied {
            let table = place.module("tokens")?;
            let dims = w.model.using(&table)?;
            w.viewed(&table, vec![View::Transposed(vec![1, 0])], dims.into_iter().rev().collect())?
        } else {
            w.matrix(&format!("{}.weight", place.module("head")?), false)?
        };
        let mut logits = w.make("MatMul", "logits", [x, weight]);
        // The bias of the head's own layer, or one that stands apart as in BERT.
        for bias in [
            place.name("head").map(|head| format!("{head}.bias")),
            place.tensor_or_none("head_bias"),
        ] {
            if let Some(bias) = bias.filter(|bias| w.model.has(bias)) {
                logits = w.biased("logits", logits, &bias)?;
                break;
            }
        }
        if let Some(scale) = place.number_or_none("logit_scale")?.filter(|scale| *scale != 1.0) {
            logits = w.scaled("scaled", logits, scale);
        }
        match place.number_or_none("logit_cap")?.filter(|cap| *cap > 0.0) {
            Some(cap) => Ok(w.capped("capped_logits", logits, cap)),
            None => Ok(logits),
        }
    })
}
