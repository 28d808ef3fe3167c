//! What TorchScript programs say of themselves.

use apr_core::{
    Alignments, Computes, Convention, Entries, Format, QuantizedTypes, Sharding, Target,
};

/// TorchScript: parameters with a program, for models with a known graph.
pub static FORMAT: Format = Format {
    id: "torchscript",
    name: "TorchScript",
    option: Some("torchscript"),
    about: "PyTorch parameters with a program that computes, for torch.jit.load",
    extensions: &[],
    recognises: |_| false,
    convention: Convention::Framework,
    target: Some(Target {
        // .pt stands for a state dict, unless --format says otherwise.
        extensions: &["pt", "pth", "ts"],
        file_name: "model.pt",
        folder: true,
        self_contained: false,
        sharding: Sharding::None,
        seals: false,
        computes: Computes::IfKnown,
        streaming: false,
        alignments: Alignments::Fixed,
        quantized: QuantizedTypes::None,
        entries: Entries::Values,
    }),
    successor: None,
};
