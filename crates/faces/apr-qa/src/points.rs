//! The 100 points, as a table.

use serde::Serialize;

use crate::bench::Bench;
use crate::judge::{
    behaviour, conversion, files, format, import, learnt, merging, numbers, pruning, screens,
    tooling, values,
};
use crate::judgement::Judgement;

/// What a quarter of the points is about, in the order of the quality plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// 1 to 25: format and structural integrity
    Format,
    /// 26 to 50: tensor physics and statistics, and what the model computes
    Physics,
    /// 51 to 75: tooling and operations
    Tooling,
    /// 76 to 100: conversion and interoperability
    Conversion,
}

/// What a quarter of the points counts for, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Heading {
    /// Container, layout, shapes and forms.
    Structure,
    /// Damage, malice, keys and signatures; what is refused, and how work fails.
    Security,
    /// Values of tensors, what they compute, and what changes them.
    Weights,
    /// Configuration, vocabulary and names; inputs, outputs and reports.
    Metadata,
}

impl Heading {
    /// In the order of the report.
    pub(crate) const ALL: [Self; 4] =
        [Self::Structure, Self::Security, Self::Weights, Self::Metadata];

    /// As the report writes it.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Structure => "Structure",
            Self::Security => "Security",
            Self::Weights => "Weights",
            Self::Metadata => "Metadata",
        }
    }
}

/// What a point is judged of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Judged {
    /// The model's files.
    Model,
    /// What the model computes.
    Run,
    /// The tool, on files that it makes; in some points also on the model.
    Tool,
    /// Nothing here: it takes another program, or what this version does not have.
    Elsewhere,
}

/// A point of the quality plan.
pub struct Point {
    /// From 1 to 100; from 101 on, points beyond the plan.
    pub number: u8,
    /// The name in the quality plan.
    pub name: &'static str,
    /// What is claimed.
    pub claim: &'static str,
    /// What it counts for.
    pub heading: Heading,
    /// What it is judged of.
    pub judged: Judged,
    pub(crate) judge: fn(&Bench<'_>) -> Judgement,
}

impl Point {
    /// The category: each has 25 points of the plan, and what a model computes is physics.
    #[must_use]
    pub fn category(&self) -> Category {
        match self.number {
            ..=25 => Category::Format,
            26..=50 | 101.. => Category::Physics,
            51..=75 => Category::Tooling,
            76..=100 => Category::Conversion,
        }
    }
}

macro_rules! points {
    ($(#[$about:meta])* $table:ident: $count:literal; $(
        $number:literal $heading:ident $judged:ident $judge:path, $name:literal: $claim:literal;
    )*) => {
        $(#[$about])*
        pub static $table: [Point; $count] = [$(Point {
            number: $number,
            name: $name,
            claim: $claim,
            heading: Heading::$heading,
            judged: Judged::$judged,
            judge: $judge,
        }),*];
    };
}

points! {
    /// All of the plan, by number.
    POINTS: 100;
    1 Structure Model format::magic, "Magic bytes": "A file starts with its magic.";
    2 Structure Model format::header_size, "Header size":
        "The header has a fixed size; an inserted byte is reported.";
    3 Structure Tool format::version, "Version": "An unknown major version is rejected (E003).";
    4 Security Model format::checksum, "Checksum": "The checksum finds one flipped bit (E004).";
    5 Metadata Model format::json_metadata, "JSON metadata":
        "The metadata are JSON; broken JSON is rejected.";
    6 Structure Model format::alignment, "Tensor alignment":
        "Tensors are aligned; lint warns if they are not.";
    7 Structure Model format::sorted_index, "Index order":
        "The index is sorted; another order is rejected.";
    8 Structure Tool files::compression, "Compression":
        "A known codec is reported; an unknown one is rejected.";
    9 Structure Tool files::shards, "Shards":
        "A sharded model loads; a missing shard is an error (E007).";
    10 Structure Tool format::endianness, "Byte order": "A big-endian header is rejected.";
    11 Structure Model format::flags, "Flags":
        "Flags are listed; an undefined one gives a warning.";
    12 Structure Model format::footer, "Footer": "A file without its footer is rejected.";
    13 Structure Model format::file_size, "File size":
        "The stated size equals the file's; bytes after it give a warning.";
    14 Security Model format::offsets, "Tensor offsets":
        "An offset beyond the end is an error (E002).";
    15 Structure Tool format::empty, "Empty model": "A model without tensors is valid.";
    16 Security Tool format::huge_metadata, "Huge metadata":
        "Metadata of 200 MB are rejected without allocating memory.";
    17 Security Model format::utf8_names, "Names in UTF-8": "Names are UTF-8.";
    18 Security Model format::unique_names, "Unique names": "Names are unique.";
    19 Structure Model format::dimensions, "Dimension limit":
        "A tensor has at most eight dimensions.";
    20 Structure Tool format::scalar, "Scalars": "A scalar has no dimensions.";
    21 Structure Tool format::dtypes, "Data types":
        "Every dtype is read; an undefined one is rejected.";
    22 Structure Model format::padding, "Padding": "Padding is zero; other bytes give a warning.";
    23 Security Tool files::signature, "Signature": "A changed signature is an error (E006).";
    24 Security Tool files::encryption, "Encryption": "A wrong key is an error (E005).";
    25 Security Elsewhere format::wasm, "WebAssembly": "Files load in WebAssembly.";
    26 Weights Model values::nan, "No NaN": "NaN is found.";
    27 Weights Model values::infinity, "No infinity": "Infinity is found.";
    28 Weights Model values::norm_weights, "Norm weights":
        "The mean of a norm's weight is 0.5 to 3.";
    29 Weights Model values::norm_biases, "Norm biases":
        "The mean of a norm's bias is -0.5 to 0.5.";
    30 Weights Model values::embeddings, "Embeddings":
        "The deviation of an embedding is below 0.2.";
    31 Weights Model values::zeros, "Zero tensors": "A tensor of zeros gives a warning.";
    32 Structure Model values::shapes, "Shapes": "Shapes match the configuration.";
    33 Metadata Model values::vocabulary, "Vocabulary":
        "The vocabulary size matches the embedding.";
    34 Weights Model values::quants, "Quantization range": "Values of q8_0 are -127 to 127.";
    35 Weights Model values::linear_weights, "Linear weights":
        "The mean of a linear weight is near 0.";
    36 Weights Run behaviour::softmax, "Softmax": "A softmax sums to 1.";
    37 Weights Model values::filterbank, "Mel filterbank":
        "A mel filterbank has no negative values.";
    38 Structure Model values::positions, "Positional embeddings":
        "Positional embeddings cover the context.";
    39 Metadata Run behaviour::tokens, "Token ids":
        "Generated tokens are in the vocabulary.";
    40 Metadata Tool numbers::audio_range, "Audio range": "Audio beyond -1 to 1 gives a warning.";
    41 Weights Tool numbers::half_range, "F16 range":
        "Values beyond f16 become infinite, and the report counts them.";
    42 Weights Tool numbers::sparsity, "Sparsity":
        "A dense tensor that is stored as sparse gives a warning.";
    43 Weights Run behaviour::dead_neurons, "Dead neurons": "Dead neurons are found.";
    44 Weights Run behaviour::explosions, "Exploding activations":
        "Exploding activations are found.";
    45 Metadata Run behaviour::repetition, "Repetition": "Repeated tokens are found.";
    46 Metadata Run behaviour::silence, "Silence": "Silence gives no text.";
    47 Metadata Run behaviour::noise, "Noise": "Noise gives no confident answer.";
    48 Metadata Model values::mels, "Mels": "The filterbank has the model's number of mels.";
    49 Metadata Run behaviour::context, "Context":
        "Text longer than the context is rejected or truncated.";
    50 Weights Tool numbers::distance, "L2 distance":
        "The difference is the Euclidean distance, and a limit makes it a gate.";
    51 Metadata Model tooling::inspect_speed, "Speed of inspect":
        "Headers are enough: inspect takes less than 100 ms.";
    52 Metadata Model tooling::lint, "Lint": "Lint warns of a missing licence.";
    53 Metadata Tool tooling::drama, "Drama mode": "The drama works without a terminal.";
    54 Structure Tool screens::graph, "TUI graph": "The terminal view draws the graph.";
    55 Metadata Tool screens::statistics, "TUI statistics":
        "The terminal view shows the statistics of the command.";
    56 Weights Model tooling::identity, "Identity": "A file is equal to itself.";
    57 Weights Tool tooling::change, "Changes": "A changed value is found.";
    58 Weights Tool merging::averages, "Merge": "A linear merge averages.";
    59 Weights Tool merging::ties, "TIES": "A TIES merge masks by sign.";
    60 Structure Tool conversion::onnx, "ONNX export": "An ONNX export passes ONNX's rules.";
    61 Structure Elsewhere conversion::llama_cpp, "GGUF export":
        "A GGUF export loads in llama.cpp.";
    62 Weights Tool conversion::int8, "int8": "int8 takes a quarter of f32.";
    63 Weights Tool pruning::share, "Pruning":
        "Pruning removes the requested share.";
    64 Security Tool tooling::trace_output, "Trace":
        "A trace is JSON; damaged audio is an error.";
    65 Metadata Tool tooling::error_codes, "Error codes":
        "Error codes are explained; others are unknown.";
    66 Metadata Tool tooling::tensor_names, "Tensor names":
        "A tensor is explained; similar names are proposed.";
    67 Security Tool tooling::analysis, "Source analysis": "A broken source fails its analysis.";
    68 Security Tool tooling::inline_validation, "Inline validation":
        "A conversion stops at a bad tensor.";
    69 Security Tool tooling::relaxed, "Forced conversion":
        "A forced conversion continues and records the reason.";
    70 Security Tool tooling::cache_folder, "Cache folder":
        "The configured cache folder is used.";
    71 Metadata Tool tooling::configuration, "Configuration": "The configuration file is used.";
    72 Security Tool tooling::canary, "Canary": "A canary finds a regression.";
    73 Metadata Tool tooling::json, "JSON reports": "Reports are JSON.";
    74 Security Tool tooling::anomaly, "Anomalies": "A trace shows an anomaly.";
    75 Metadata Tool tooling::trace_diff, "Trace comparison":
        "Traces of equal models are equal.";
    76 Security Tool import::safetensors, "safetensors":
        "safetensors are imported; a renamed text file is rejected.";
    77 Security Tool import::pytorch, "PyTorch":
        "PyTorch files are imported; a malicious pickle is rejected.";
    78 Structure Tool import::gguf, "GGUF import":
        "GGUF is imported; an unknown architecture is rejected.";
    79 Structure Tool conversion::round_trip, "Round trip":
        "APR to ONNX and back keeps the values.";
    80 Metadata Tool import::mapping, "Hugging Face names":
        "Hugging Face names are mapped; a renamed layer is rejected.";
    81 Weights Tool conversion::quantized, "Quantized tensors":
        "Quantized tensors stay quantized.";
    82 Weights Tool conversion::to_bf16, "F32 to BF16": "A conversion to bf16 gives BF16.";
    83 Weights Tool conversion::to_f32, "BF16 to F32": "A conversion to f32 gives F32.";
    84 Metadata Tool import::tokens, "Vocabulary import": "The whole vocabulary is imported.";
    85 Metadata Tool import::special_tokens, "Special tokens": "Special tokens keep their ids.";
    86 Metadata Tool import::card, "Model card": "Model card and licence are imported.";
    87 Metadata Tool import::normalized, "Name normalization": "Names are normalized.";
    88 Structure Tool import::transposed, "Transposition":
        "Weights that GGUF transposes are transposed back; a transposed source is rejected.";
    89 Weights Tool import::scaled, "Scale factors":
        "Norms that GGUF shifts are shifted back; a scaled one is rejected.";
    90 Structure Tool import::shards, "Sharded import":
        "Shards are imported; a missing one is reported.";
    91 Security Tool import::no_network, "Remote import":
        "A remote import without a network is an error.";
    92 Security Elsewhere import::cached, "Cached import": "A second import comes from the cache.";
    93 Security Tool import::sha256, "Source digest": "The SHA-256 of a source is checked.";
    94 Metadata Tool import::licence, "Licence warning":
        "A non-commercial licence gives a warning.";
    95 Metadata Tool import::family, "Family":
        "The family is found; an unknown one is reported.";
    96 Security Tool conversion::output, "Output path": "Output is written to the requested path.";
    97 Security Tool conversion::overwrite, "Overwriting":
        "An existing file is replaced only on request.";
    98 Security Tool conversion::full_disk, "Full disk": "A full disk leaves no partial file.";
    99 Security Tool conversion::memory_limit, "Memory limit": "The memory limit is kept.";
    100 Security Elsewhere behaviour::golden, "Canonical trace": "A canonical trace passes.";
}

points! {
    /// Points beyond the plan: what the model learnt, and whether its layers fit together. They
    /// count for its score, and not among the hundred.
    LEARNT: 5;
    101 Weights Run learnt::passages, "Language":
        "A text is likelier than the same tokens in another order.";
    102 Weights Run learnt::meanings, "Meaning":
        "Sentences of the same meaning are nearer than sentences with the same words.";
    103 Weights Model values::layers, "Layers":
        "A weight has the same magnitude in all layers, and no layer occurs twice.";
    104 Weights Run learnt::blocks, "Blocks":
        "The model does not predict better without a block or with layers exchanged.";
    105 Weights Model values::orientation, "Orientation":
        "No weight of attention fits its partner better if it is transposed.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_its_number_and_every_heading_25() {
        assert!(POINTS.iter().zip(1..).all(|(point, number)| point.number == number));
        for heading in Heading::ALL {
            let points = POINTS.iter().filter(|point| point.heading == heading);
            assert_eq!(points.count(), 25, "{heading:?}");
        }
    }
}
