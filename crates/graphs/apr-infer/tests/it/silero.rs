//! Silero's detector of speech on the start of a real recording: branches, convolutions and a
//! recurrent layer, a state from run to run. `apr run` hears all of it.

use apr_core::Limits;
use apr_infer::{Alone, Engine, RunLimits, Tensor, Unwatched, Value};
use apr_testkit::locate::shared_data;
use serde_json::Value as Json;

#[test]
fn speech_is_found_where_onnxruntime_finds_it() {
    let expected: Json =
        serde_json::from_str(include_str!("../../../../../fixtures/infer/silero.json"))
            .expect("JSON");
    let path = |name: &str| shared_data(expected[name].as_str().expect("a path"));
    let (Some(model), Some(audio)) = (path("model"), path("audio")) else { return };
    let reader =
        apr_onnx::open(std::fs::read(model).expect("the model"), "silero.onnx", &Limits::default())
            .expect("a model");
    let graph = reader.graph().expect("a graph").expect("a graph");
    let session = Engine::prepare(&graph, &reader, RunLimits::default()).expect("a session");
    let file = std::fs::read(audio).expect("the recording");
    let start = file.windows(4).position(|four| four == b"data").expect("samples") + 8;
    let sample = |bytes: &[u8; 2]| f32::from(i16::from_le_bytes(*bytes)) / 32768.0;
    let samples: Vec<f32> = file[start..].as_chunks().0.iter().map(sample).collect();
    let mut state =
        Value::from(Tensor::new(vec![2, 1, 128], vec![0.0_f32; 256]).expect("a tensor"));
    let mut before = vec![0.0_f32; 64];
    let speech = expected["speech"].as_array().expect("numbers");
    for (number, (piece, expected)) in samples.chunks_exact(512).zip(speech).take(100).enumerate() {
        let input = [&before[..], piece].concat();
        let inputs = vec![
            (
                "input".to_owned(),
                Tensor::new(vec![1, input.len()], input).expect("a tensor").into(),
            ),
            ("state".to_owned(), state),
            ("sr".to_owned(), Tensor::scalar(16_000_i64).into()),
        ];
        let outcome =
            session.run(inputs, &["output", "stateN"], &Alone, &mut Unwatched).expect("a run");
        let [output, next] = &outcome.outputs[..] else { panic!("two outputs are expected") };
        let ours = output.tensor().and_then(Tensor::values::<f32>).expect("a float")[0];
        let theirs = expected.as_f64().expect("a number");
        assert!((f64::from(ours) - theirs).abs() <= 1e-4, "piece {number}: {ours} and {theirs}");
        state = next.clone();
        before = piece[512 - 64..].to_vec();
    }
    assert!(speech.len() > 100);
}
