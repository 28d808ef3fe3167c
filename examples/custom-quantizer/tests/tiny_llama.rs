//! The plug-in at work on a model.

use apr_core::{Code, Limits, Result, Shape};
use apr_quantize::plugin::{Outcome, Quantizer, QuantizerRegistry, quantize_with_registry};
use apr_testkit::locate;
use custom_quantizer::BinaryQuantizer;

#[test]
fn a_model_is_quantized_by_a_type_that_the_library_does_not_know() {
    let bytes =
        std::fs::read(locate::fixture("tiny-llama/model.safetensors")).expect("the fixture");
    let model =
        apr_registry::open(bytes, "model.safetensors", &Limits::default()).expect("a model");
    let mut registry = QuantizerRegistry::default();
    registry.register(Box::new(BinaryQuantizer));

    let tensors = quantize_with_registry(&*model, "binary", &registry).expect("registered");
    let outcomes = tensors.collect::<Result<Vec<_>>>().expect("every tensor");

    assert_eq!(outcomes.len(), model.tensors().len());
    let mut quantized = 0;
    for outcome in &outcomes {
        let info = &model.tensors()[outcome.tensor];
        match &outcome.outcome {
            Outcome::Kept => assert!(info.name.contains("norm"), "{}", info.name),
            Outcome::Quantized { block, info: how } => {
                assert_eq!((how.quantizer.as_str(), &block.shape), ("binary", &info.shape));
                // Of normally distributed weights, signs and one magnitude lose 1 - 2/π = 36 % of
                // the energy.
                assert!((0.05..0.6).contains(&how.error), "{}: {}", info.name, how.error);
                assert!(how.warning.is_some(), "{}", info.name);
                quantized += 1;
            }
        }
    }
    assert!(quantized > 0);
}

#[test]
fn rows_that_end_within_a_group_come_back_with_their_signs() {
    let shape = Shape::from([2, 35]);
    let values: Vec<f32> = (0..70_u8).map(|i| if i % 3 == 0 { -2.0 } else { 2.0 }).collect();
    let block = BinaryQuantizer.quantize(&values, &shape).expect("blocks");
    assert_eq!(block.blocks.len(), 2 * 2 * 8);
    assert_eq!(BinaryQuantizer.dequantize(&block), Ok(values));
}

#[test]
fn bytes_that_do_not_go_with_the_shape_are_corrupt() {
    let mut block = BinaryQuantizer.quantize(&[1.0; 64], &Shape::from([2, 32])).expect("blocks");
    block.blocks.pop();
    assert_eq!(BinaryQuantizer.dequantize(&block).expect_err("cut").code(), Code::Corrupt);
    block.shape = Shape::from([u64::MAX, 32]);
    assert_eq!(BinaryQuantizer.dequantize(&block).expect_err("too large").code(), Code::Corrupt);
}
