use apr_core::{Code, Limits};
use apr_testkit::locate;
use serde_json::Value as Json;

use super::*;

/// Returns values and their quantized form from gguf-py.
fn golden() -> (Vec<f32>, Shape, Json) {
    let text =
        std::fs::read_to_string(locate::fixture("quantize/blocks.json")).expect("the fixture");
    let json: Json = serde_json::from_str(&text).expect("JSON");
    let dims: Vec<u64> =
        json["shape"].as_array().expect("a shape").iter().filter_map(Json::as_u64).collect();
    (floats(&json["values"]), Shape::from(dims), json)
}

fn floats(json: &Json) -> Vec<f32> {
    let bits = json.as_array().expect("a list").iter().map(|bits| bits.as_u64().expect("bits"));
    bits.map(|bits| f32::from_bits(u32::try_from(bits).expect("32 bits"))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tiny_llama() -> Box<dyn apr_registry::CheckpointReader> {
    let bytes =
        std::fs::read(locate::fixture("tiny-llama/model.safetensors")).expect("the fixture");
    apr_registry::open(bytes, "model.safetensors", &Limits::default()).expect("a model")
}

#[test]
fn built_in_quantizers_give_the_bytes_of_gguf_py() {
    let (values, shape, golden) = golden();
    let registry = QuantizerRegistry::default();
    for name in ["q8_0", "q4_0", "q4_1"] {
        let quantizer = registry.get(name).expect("built in");
        let block = quantizer.quantize(&values, &shape).expect("blocks");
        block.check().expect("as many as the shape asks for");
        assert_eq!(hex(&block.blocks), golden[name]["blocks"].as_str().expect("hex"), "{name}");
        assert_eq!(
            quantizer.dequantize(&block).expect("values"),
            floats(&golden[name]["values"]),
            "{name}"
        );
        let bits = block.blocks.len() as f32 * 8.0 / values.len() as f32;
        assert_eq!(bits, quantizer.bits_per_weight(), "{name}");
    }
}

#[test]
fn a_tensor_with_one_scale_is_within_half_a_step() {
    let (values, shape, _) = golden();
    let block = Q8TensorQuantizer.quantize(&values, &shape).expect("blocks");
    let tensor = QuantizedTensor::try_from(&block).expect("one scale");
    assert_eq!(
        (tensor.data.len(), tensor.zero_point, tensor.shape),
        (values.len(), 0, shape.clone())
    );
    assert!(
        tensor.data.iter().any(|value| value.unsigned_abs() == 127),
        "the greatest fills the range"
    );
    for (value, restored) in
        values.iter().zip(Q8TensorQuantizer.dequantize(&block).expect("values"))
    {
        assert!((value - restored).abs() <= tensor.scale * 0.500_01, "{value} became {restored}");
    }
    let zeros = Q8TensorQuantizer.quantize(&[0.0; 4], &Shape::from([4])).expect("blocks");
    assert_eq!(Q8TensorQuantizer.dequantize(&zeros), Ok(vec![0.0; 4]));
}

#[test]
fn an_unknown_type_is_unsupported() {
    for code in 0..=u8::MAX {
        match QuantType::from_code(code) {
            Ok(known) => assert_eq!(known.code(), code),
            Err(error) => {
                assert_eq!(error.code(), Code::Format);
                assert!(error.message().starts_with("UnsupportedQuantization"), "{error}");
            }
        }
    }
    assert_eq!(
        [0x01, 0x02, 0x03, 0x10, 0xFF].map(|code| QuantType::from_code(code).is_ok()),
        [true; 5]
    );
    let (model, registry) = (tiny_llama(), QuantizerRegistry::default());
    let error =
        quantize_with_registry(&*model, "q4-0", &registry).err().expect("no such quantizer");
    assert!(
        error.message().contains("UnsupportedQuantization") && error.message().contains("q4_0"),
        "{error}"
    );
}

#[test]
fn blocks_that_do_not_go_with_the_shape_are_corrupt() {
    let registry = QuantizerRegistry::default();
    let block = |quant_type, bytes, block_size| QuantizedBlock {
        quant_type,
        shape: Shape::from([2, 64]),
        blocks: vec![0; bytes],
        block_size,
    };
    for (quant_type, right, block_size) in [
        (QuantType::Q8_0, 136, 32),
        (QuantType::Q4_0, 72, 32),
        (QuantType::Q4_1, 80, 32),
        (QuantType::Q8Tensor, 132, 128),
    ] {
        let quantizer =
            registry.get(quant_type.quantizer().expect("built in")).expect("registered");
        assert_eq!(block(quant_type, right, block_size).check(), Ok(()));
        for wrong in [
            block(quant_type, right - 1, block_size),
            block(quant_type, right + 34, block_size),
            block(quant_type, 0, block_size),
            block(quant_type, right, 16),
            QuantizedBlock {
                shape: Shape::from([u64::MAX, 32]),
                ..block(quant_type, right, block_size)
            },
        ] {
            let error = quantizer.dequantize(&wrong).expect_err("corrupt");
            assert_eq!(error.code(), Code::Corrupt, "{error}");
            assert!(error.message().starts_with("QuantizationCorrupt"), "{error}");
        }
    }
    let other = block(QuantType::Q4_0, 72, 32);
    assert_eq!(Q8_0Quantizer.dequantize(&other).expect_err("another type").code(), Code::Format);
}

/// Loses everything.
struct Zeros;

impl Quantizer for Zeros {
    fn name(&self) -> &str {
        "zeros"
    }

    fn quantize(&self, data: &[f32], shape: &Shape) -> Result<QuantizedBlock> {
        let block_size = data.len();
        Ok(QuantizedBlock {
            quant_type: QuantType::Custom,
            shape: shape.clone(),
            blocks: Vec::new(),
            block_size,
        })
    }

    fn dequantize(&self, block: &QuantizedBlock) -> Result<Vec<f32>> {
        Ok(vec![0.0; block.elements()?])
    }

    fn bits_per_weight(&self) -> f32 {
        0.0
    }
}

#[test]
fn a_great_loss_is_a_warning_and_no_error() {
    let model = tiny_llama();
    let mut registry = QuantizerRegistry::default();
    assert!(registry.register(Box::new(Zeros)).is_none());
    let mut quantized = 0;
    for tensor in quantize_with_registry(&*model, "zeros", &registry).expect("registered") {
        if let Outcome::Quantized { info, .. } = tensor.expect("a tensor").outcome {
            assert_eq!(
                info.warning.as_deref(),
                Some("the error has 100.0 % of the energy of the values")
            );
            assert_eq!(serde_json::to_value(&info).expect("JSON")["quantizer"], "zeros");
            quantized += 1;
        }
    }
    assert!(quantized > 0);
    let careful = quantize_with_registry(&*model, "q8_tensor", &registry).expect("built in");
    for tensor in careful {
        if let Outcome::Quantized { info, .. } = tensor.expect("a tensor").outcome {
            assert_eq!(info.warning, None, "{}", info.error);
        }
    }
}

#[test]
fn hooks_choose_by_tensor_and_a_rejected_one_carries_a_warning() {
    struct Picky;

    impl QuantizationHooks for Picky {
        fn select_quantizer(&self, layer_name: &str, _: &Shape) -> Option<QuantType> {
            layer_name.contains("q_proj").then_some(QuantType::Q8Tensor)
        }

        fn validate(&self, _: &str, original: &[f32], quantized: &QuantizedBlock) -> bool {
            original.len() + 4 != quantized.blocks.len()
        }
    }

    let model = tiny_llama();
    let outcomes: Vec<_> =
        quantize_with_hooks(&*model, &Picky).collect::<Result<_>>().expect("all tensors");
    assert_eq!(outcomes.len(), model.tensors().len());
    for outcome in outcomes {
        match outcome.outcome {
            Outcome::Kept => assert!(!outcome.name.contains("q_proj"), "{}", outcome.name),
            Outcome::Quantized { info, .. } => assert!(info.warning.is_some(), "{}", outcome.name),
        }
    }
    let custom = UniformQuantization { quant_type: QuantType::Custom };
    let error =
        quantize_with_hooks(&*model, &custom).find_map(Result::err).expect("no plug-in by type");
    assert!(
        error.tensor().is_some() && error.message().starts_with("UnsupportedQuantization"),
        "{error}"
    );
}

#[test]
fn mixed_precision_hooks_detect_embeddings_and_output() {
    let hooks = MixedPrecisionHooks {
        default_type: QuantType::Q4_0,
        embedding_type: QuantType::Q8_0,
        output_type: QuantType::Q8Tensor,
    };
    let select = |name, dims: &[u64]| hooks.select_quantizer(name, &Shape::from(dims.to_vec()));
    assert_eq!(select("model.embed_tokens.weight", &[8, 64]), Some(QuantType::Q8_0));
    assert_eq!(select("lm_head.weight", &[8, 64]), Some(QuantType::Q8Tensor));
    assert_eq!(select("blk.0.attn_q.weight", &[8, 64]), Some(QuantType::Q4_0));
    assert_eq!(select("blk.0.attn_q.weight", &[8, 48]), None, "48 is not a multiple of 32");
    assert_eq!(select("blk.0.attn_norm.weight", &[64]), None);
}

#[test]
fn values_that_are_not_finite_and_shapes_that_do_not_fit_are_refused() {
    let registry = QuantizerRegistry::default();
    assert_eq!(registry.names().collect::<Vec<_>>(), ["q4_0", "q4_1", "q8_0", "q8_tensor"]);
    for name in registry.names() {
        let quantizer = registry.get(name).expect("registered");
        let refused = |data: &[f32], dims: &[u64]| {
            let error = quantizer.quantize(data, &Shape::from(dims.to_vec())).expect_err("refused");
            assert_eq!(error.code(), Code::Format, "{name}: {error}");
        };
        refused(&[f32::NAN; 32], &[32]);
        refused(&[f32::INFINITY; 32], &[32]);
        refused(&[1.0; 32], &[2, 32]);
    }
    assert!(Q8_0Quantizer.quantize(&[1.0; 48], &Shape::from([48])).is_err(), "half a block");
}
