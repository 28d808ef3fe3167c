//! Classical machine learning: the domain `ai.onnx.ml`.
//!
//! Where the specification leaves open what scores and labels are (two classes with one score,
//! votes of machines), it is as in ONNX Runtime, which exporters of scikit-learn and XGBoost are
//! tested with.

mod encode;
mod features;
mod forest;
mod linear;
mod maps;
mod scores;
mod trees;
mod vectors;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::call::Call;
use crate::operator::{Operator, moves};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    moves("ai.onnx.ml::ArrayFeatureExtractor", features::extract),
    moves("ai.onnx.ml::Binarizer", features::binarize),
    moves("ai.onnx.ml::CastMap", maps::cast),
    moves("ai.onnx.ml::CategoryMapper", encode::categories),
    moves("ai.onnx.ml::DictVectorizer", maps::vectorize),
    moves("ai.onnx.ml::FeatureVectorizer", features::join),
    moves("ai.onnx.ml::Imputer", features::impute),
    moves("ai.onnx.ml::LabelEncoder", encode::classes),
    moves("ai.onnx.ml::LabelEncoder", encode::encode).since(2),
    moves("ai.onnx.ml::LinearClassifier", linear::classify),
    moves("ai.onnx.ml::LinearRegressor", linear::regress),
    moves("ai.onnx.ml::Normalizer", features::normalise),
    moves("ai.onnx.ml::OneHotEncoder", encode::one_hot),
    moves("ai.onnx.ml::SVMClassifier", vectors::classify),
    moves("ai.onnx.ml::SVMRegressor", vectors::regress),
    moves("ai.onnx.ml::Scaler", features::scale),
    moves("ai.onnx.ml::TreeEnsemble", trees::ensemble),
    moves("ai.onnx.ml::TreeEnsembleClassifier", trees::classify),
    moves("ai.onnx.ml::TreeEnsembleRegressor", trees::regress),
    moves("ai.onnx.ml::ZipMap", maps::zip),
];

/// Rows of features.
struct Rows {
    count: usize,
    width: usize,
    values: Vec<f64>,
}

impl Rows {
    /// The first input: rows, or one alone.
    fn of(call: &Call<'_>) -> Result<Self> {
        let x = call.tensor(0)?;
        let (count, width) = match *x.shape() {
            [width] => (1, width),
            [count, width] => (count, width),
            _ => {
                return Err(Error::format(format!(
                    "expected rows of features, found shape {:?}",
                    x.shape()
                )));
            }
        };
        call.room_for(x.shape(), size_of::<f64>() as u64)?;
        call.work(&[x.len()])?;
        Ok(Self { count, width, values: x.doubles()? })
    }

    fn row(&self, at: usize) -> &[f64] {
        &self.values[at * self.width..][..self.width]
    }
}

/// Returns the floats of an attribute, or of the tensor that replaces it for doubles.
fn floats(call: &Call<'_>, name: &str) -> Result<Vec<f64>> {
    match super::layout::tensor_attribute(call, &format!("{name}_as_tensor"))? {
        Some(tensor) => tensor.doubles(),
        None => Ok(call.floats(name).unwrap_or_default().into_iter().map(f64::from).collect()),
    }
}

/// Names of classes.
enum Labels {
    Ints(Vec<i64>),
    Texts(Vec<String>),
}

impl Labels {
    /// Reads the labels from `classlabels_strings`, or from the attribute for integers.
    fn of(call: &Call<'_>, ints: &str) -> Result<Self> {
        let found = match call.texts("classlabels_strings").filter(|texts| !texts.is_empty()) {
            Some(texts) => Self::Texts(texts),
            None => Self::Ints(call.ints(ints).unwrap_or_default()),
        };
        if found.len() == 0 { Err(Error::format("labels are missing")) } else { Ok(found) }
    }

    fn len(&self) -> usize {
        match self {
            Self::Ints(labels) => labels.len(),
            Self::Texts(labels) => labels.len(),
        }
    }

    /// Returns the label of each row. If there is only one label, the other classes get the labels
    /// of a plain choice: 0 and 1, or an empty text.
    fn tensor(&self, call: &Call<'_>, classes: &[usize]) -> Result<Value> {
        let shape = vec![classes.len()];
        Ok(match self {
            Self::Ints(labels) => {
                call.room(&shape, ElementType::I64)?;
                let of = |&class: &usize| labels.get(class).copied().unwrap_or(class as i64);
                Tensor::new(shape, classes.iter().map(of).collect())?.into()
            }
            Self::Texts(labels) => {
                let longest = labels.iter().map(String::len).max().unwrap_or(0);
                call.room_for(&shape, (size_of::<String>() + longest) as u64)?;
                let of = |&class: &usize| labels.get(class).cloned().unwrap_or_default();
                Tensor::new(shape, classes.iter().map(of).collect::<Vec<String>>())?.into()
            }
        })
    }
}
