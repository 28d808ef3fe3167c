//! Tensors in the order in which a forward pass first needs them (`docs/format/apr2.md`, "Header",
//! STREAMING): what takes the input, layer after layer, what follows the layers, the head; an
//! encoder before its decoder.

use crate::view::View;

/// Stage of a forward pass in which a tensor is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Embeddings, and the convolutions before the first layer.
    Input,
    /// The repeated part.
    Layers,
    /// Norms and projections after the last layer.
    Output,
    /// Logits, labels, pooled outputs.
    Head,
}

/// Piece of a name; numbers are compared by value, so that layer 10 comes after layer 9.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Piece {
    Number(u64),
    Text(String),
}

/// Sorts key by key: half of the model, stage, and within it by name, numbers by value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct UseOrder {
    half: u8,
    stage: Stage,
    pieces: Vec<Piece>,
}

/// Parts of the names of heads.
const HEADS: [&str; 11] = [
    "predictions",
    "head",
    "embed_out",
    "qa_outputs",
    "vocab_",
    "proj_out",
    "output_projection",
    "pooler",
    "classifier",
    "score",
    "logits",
];

/// Parts of the names of input layers.
const INPUTS: [&str; 9] =
    ["embd", "embed", "layer_tokens", "patch", "position", "rope_freqs", "shared", "wpe", "wte"];

/// Sorts the tensors of a view by their first use, as far as their names reveal it.
///
/// This supports the canonical names of the families, and other names that follow the conventions
/// of Hugging Face or GGUF.
///
/// ```
/// use apr_registry::{CheckpointReader, Limits};
/// use apr_view::sort_by_first_use;
/// use apr_view::View;
///
/// let header = br#"{"head":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
///     "layers.10.w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},
///     "layers.9.w":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},
///     "token_embedding":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[0; 4]);
/// let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
///
/// let mut view = View::new(&*model);
/// sort_by_first_use(&mut view);
/// let names: Vec<&str> = view.tensors().iter().map(|info| info.name.as_str()).collect();
/// assert_eq!(names, ["token_embedding", "layers.9.w", "layers.10.w", "head"]);
/// # Ok::<(), apr_registry::Error>(())
/// ```
pub fn sort_by_first_use(view: &mut View<'_>) {
    view.sort_by_key(place);
}

fn place(name: &str) -> UseOrder {
    let parts: Vec<&str> = name.split(['.', '/']).collect();
    let half = u8::from(parts.iter().take(2).any(|part| *part == "decoder"));
    let numbered = parts.iter().any(|part| part.parse::<u64>().is_ok());
    let has =
        |words: &[&str]| parts.iter().any(|part| words.iter().any(|word| part.contains(word)));

    // `output.weight` is GGUF's head, `attention.output.dense` a part of a layer.
    let is_head = parts.first().is_some_and(|first| matches!(*first, "cls" | "output"));
    let stage = if !numbered && (is_head || has(&HEADS)) {
        Stage::Head
    } else if (!numbered && has(&INPUTS)) || (has(&["conv"]) && !has(&["block", "layer"])) {
        Stage::Input
    } else if numbered {
        Stage::Layers
    } else {
        Stage::Output
    };

    // A head belongs to the model, not to a half of it.
    let half = if stage == Stage::Head { 2 } else { half };
    let piece =
        |part: &&str| part.parse().map_or_else(|_| Piece::Text((*part).to_owned()), Piece::Number);
    UseOrder { half, stage, pieces: parts.iter().map(piece).collect() }
}

#[cfg(test)]
mod tests {
    use apr_arch::{Families, TensorKind};

    use super::*;

    #[test]
    fn embeddings_of_all_families_precede_the_layers_and_heads_follow_them() {
        for family in Families::builtin().iter() {
            for name in family.example_names() {
                let stage = place(&name).stage;
                let (family_name, kind) = (family.name(), family.kind(&name));
                let numbered = name.split('.').any(|part| part.parse::<u64>().is_ok());
                match kind {
                    Some(TensorKind::Embedding | TensorKind::Position) if !numbered => {
                        assert_eq!(stage, Stage::Input, "{family_name}: {name}");
                    }
                    Some(TensorKind::Head) => {
                        assert_eq!(stage, Stage::Head, "{family_name}: {name}");
                    }
                    _ if numbered => assert!(stage <= Stage::Layers, "{family_name}: {name}"),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_whisper_model_starts_with_the_encoder_input_and_ends_with_the_decoder_output() {
        let mut names = [
            "decoder.layers.0.fc1.weight",
            "decoder.token_embedding",
            "encoder.layers.2.fc1.weight",
            "proj_out.weight",
            "encoder.layers.10.fc1.weight",
            "encoder.conv1.weight",
            "decoder.layer_norm.weight",
            "encoder.layer_norm.weight",
            "encoder.positional_embedding",
        ];
        names.sort_by_key(|name| place(name));
        let expected = [
            "encoder.conv1.weight",
            "encoder.positional_embedding",
            "encoder.layers.2.fc1.weight",
            "encoder.layers.10.fc1.weight",
            "encoder.layer_norm.weight",
            "decoder.token_embedding",
            "decoder.layers.0.fc1.weight",
            "decoder.layer_norm.weight",
            "proj_out.weight",
        ];
        assert_eq!(names, expected);
    }
}
