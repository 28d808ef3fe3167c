//! Layers of networks that have weights: where these are in their messages, and their shapes.

/// Names of layers, by their numbers: the `layer` of `NeuralNetworkLayer`.
pub(crate) const NAMES: &str = include_str!("layers.txt");

/// A weight of a layer.
pub(crate) struct WeightField {
    /// Numbers of fields, one in the other.
    pub(crate) path: &'static [u32],
    /// Name of the weight within its layer.
    pub(crate) name: &'static str,
    pub(crate) shape: ShapeRule,
}

/// Rule that derives the shape of a weight from the fields of its layer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ShapeRule {
    /// List with any number of values.
    List,
    /// The numbers of these fields.
    Sizes(&'static [u32]),
    /// The numbers of a repeated field.
    Repeated(u32),
    /// The kernel of a two-dimensional convolution.
    Kernel2,
    /// The kernel of a three-dimensional convolution.
    Kernel3,
}

use ShapeRule::{Kernel2, Kernel3, List, Repeated, Sizes};

const fn field(path: &'static [u32], name: &'static str, shape: ShapeRule) -> WeightField {
    WeightField { path, name, shape }
}

const MATRIX: ShapeRule = Sizes(&[2, 1]);
const SQUARE: ShapeRule = Sizes(&[2, 2]);
const ROW: ShapeRule = Sizes(&[2]);

/// Weights of activations, in the field of the layer that these are in.
macro_rules! activations {
    ($($number:literal $name:literal),*) => {
        [$(
            field(&[$number, 25, 1], concat!($name, "PReLU/alpha"), List),
            field(&[$number, 71, 1], concat!($name, "parametricSoftplus/alpha"), List),
            field(&[$number, 71, 2], concat!($name, "parametricSoftplus/beta"), List),
        )*]
    };
}

static CONVOLUTION: [WeightField; 2] =
    [field(&[90], "weight", Kernel2), field(&[91], "bias", Sizes(&[1]))];
static CONVOLUTION_3D: [WeightField; 2] =
    [field(&[60], "weight", Kernel3), field(&[61], "bias", Sizes(&[1]))];
static ACTIVATION: [WeightField; 3] = [
    field(&[25, 1], "PReLU/alpha", List),
    field(&[71, 1], "parametricSoftplus/alpha", List),
    field(&[71, 2], "parametricSoftplus/beta", List),
];
static MATRIX_AND_BIAS: [WeightField; 2] =
    [field(&[20], "weight", MATRIX), field(&[21], "bias", ROW)];
static MATMUL: [WeightField; 2] =
    [field(&[8], "weight", Sizes(&[6, 5])), field(&[9], "bias", Sizes(&[6]))];
static BATCH_NORM: [WeightField; 4] = [
    field(&[15], "gamma", Sizes(&[1])),
    field(&[16], "beta", Sizes(&[1])),
    field(&[17], "mean", Sizes(&[1])),
    field(&[18], "variance", Sizes(&[1])),
];
static LAYER_NORM: [WeightField; 2] =
    [field(&[3], "gamma", Repeated(1)), field(&[4], "beta", Repeated(1))];
static SCALE: [WeightField; 2] =
    [field(&[2], "scale", Repeated(1)), field(&[5], "bias", Repeated(4))];
static BIAS: [WeightField; 1] = [field(&[2], "bias", Repeated(1))];
static CONSTANT: [WeightField; 1] = [field(&[2], "data", Repeated(1))];
static CUSTOM: [WeightField; 1] = [field(&[20], "weight", List)];
static RECURRENT: [WeightField; 3] = [
    field(&[30], "weightMatrix", MATRIX),
    field(&[31], "recursionMatrix", SQUARE),
    field(&[32], "biasVector", ROW),
];
static RECURRENT_ACTIVATION: [WeightField; 3] = activations!(10 "activation/");
static GRU: [WeightField; 9] = [
    field(&[30], "updateGateWeightMatrix", MATRIX),
    field(&[31], "resetGateWeightMatrix", MATRIX),
    field(&[32], "outputGateWeightMatrix", MATRIX),
    field(&[50], "updateGateRecursionMatrix", SQUARE),
    field(&[51], "resetGateRecursionMatrix", SQUARE),
    field(&[52], "outputGateRecursionMatrix", SQUARE),
    field(&[70], "updateGateBiasVector", ROW),
    field(&[71], "resetGateBiasVector", ROW),
    field(&[72], "outputGateBiasVector", ROW),
];
static GATED_ACTIVATIONS: [WeightField; 3] = activations!(10 "activations/");
static LSTM: [WeightField; 15] = [
    field(&[20, 1], "inputGateWeightMatrix", MATRIX),
    field(&[20, 2], "forgetGateWeightMatrix", MATRIX),
    field(&[20, 3], "blockInputWeightMatrix", MATRIX),
    field(&[20, 4], "outputGateWeightMatrix", MATRIX),
    field(&[20, 20], "inputGateRecursionMatrix", SQUARE),
    field(&[20, 21], "forgetGateRecursionMatrix", SQUARE),
    field(&[20, 22], "blockInputRecursionMatrix", SQUARE),
    field(&[20, 23], "outputGateRecursionMatrix", SQUARE),
    field(&[20, 40], "inputGateBiasVector", ROW),
    field(&[20, 41], "forgetGateBiasVector", ROW),
    field(&[20, 42], "blockInputBiasVector", ROW),
    field(&[20, 43], "outputGateBiasVector", ROW),
    field(&[20, 60], "inputGatePeepholeVector", ROW),
    field(&[20, 61], "forgetGatePeepholeVector", ROW),
    field(&[20, 62], "outputGatePeepholeVector", ROW),
];
static BOTH_ACTIVATIONS: [WeightField; 6] =
    activations!(10 "activationsForwardLSTM/", 11 "activationsBackwardLSTM/");

/// The layer over two directions, whose weights are there twice.
pub(crate) const BIDIRECTIONAL_LSTM: u32 = 430;

/// Networks in a layer: the number of a branch and of a loop, and of the fields that these are in.
pub(crate) const NESTED: [(u32, u32, &str); 4] = [
    (605, 1, "ifBranch"),
    (605, 2, "elseBranch"),
    (615, 3, "conditionNetwork"),
    (615, 4, "bodyNetwork"),
];

/// The weights of a layer, by the number of its kind.
pub(crate) fn weights(layer: u32) -> [&'static [WeightField]; 2] {
    match layer {
        100 => [&CONVOLUTION, &[]],
        130 => [&ACTIVATION, &[]],
        140 | 150 | 1040 => [&MATRIX_AND_BIAS, &[]],
        160 => [&BATCH_NORM, &[]],
        245 => [&SCALE, &[]],
        250 => [&BIAS, &[]],
        290 | 1070 => [&CONSTANT, &[]],
        400 => [&RECURRENT, &RECURRENT_ACTIVATION],
        410 => [&GRU, &GATED_ACTIVATIONS],
        420 => [&LSTM, &GATED_ACTIVATIONS],
        BIDIRECTIONAL_LSTM => [&LSTM, &BOTH_ACTIVATIONS],
        500 => [&CUSTOM, &[]],
        1045 => [&MATMUL, &[]],
        1350 => [&LAYER_NORM, &[]],
        1471 => [&CONVOLUTION_3D, &[]],
        _ => [&[], &[]],
    }
}

/// Returns the name of a number in a list of `NUMBER NAME` lines.
pub(crate) fn name_of(names: &'static str, number: u32) -> Option<&'static str> {
    let mut lines = names.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(of, _)| of.parse() == Ok(number)).map(|(_, name)| name)
}
