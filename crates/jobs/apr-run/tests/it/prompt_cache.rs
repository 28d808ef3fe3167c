//! Files of keys and values. What is answered with them is what is answered without, to the bit, as
//! long as prompts are read in one piece.

use apr_registry::Code;
use apr_run::{
    Completion, GenerateOptions, GenerationOptions, Generator, NoHost, Prompt, RunError, Runner,
};
use apr_testkit::corrupt::{bit_flips, truncations};
use apr_testkit::{FolderInMemory, locate};

use crate::support::{folder, with_model};

const LLAMA: &str = "tiny-llama";

fn generator<'r>(runner: &Runner<'r>) -> Generator<'r> {
    let sampling = GenerationOptions { max_tokens: Some(4), ..GenerationOptions::default() };
    let options = GenerateOptions { sampling, logprobs: Some(3), ..GenerateOptions::default() };
    Generator::of(runner, options).expect("a generator")
}

/// The tokens of a text, of which each byte is one.
fn tokens(text: &str) -> Vec<i64> {
    std::iter::once(256).chain(text.bytes().map(i64::from)).collect()
}

fn answered(generator: &mut Generator<'_>, text: &str) -> Completion {
    let ids = tokens(text);
    generator.generate(Prompt::Tokens(&ids), &mut |_| Ok(())).expect("an answer")
}

/// The file of a prompt.
fn written(runner: &Runner<'_>, text: &str) -> Vec<u8> {
    let mut generator = generator(runner);
    generator.keep_prompts().expect("keys and values");
    answered(&mut generator, text);
    file_of(&generator)
}

fn file_of(generator: &Generator<'_>) -> Vec<u8> {
    let mut file = Vec::new();
    let mut sink = |bytes: &[u8]| {
        file.extend(bytes);
        Ok(())
    };
    generator.write_prompt_cache(&mut sink).expect("a file");
    file
}

fn read(generator: &mut Generator<'_>, file: Vec<u8>) -> Result<(), RunError> {
    generator.read_prompt_cache(file, "cache")
}

fn code(error: RunError) -> Code {
    match error {
        RunError::Model(error) => error.code(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_prompt_restored_from_a_file_has_the_same_answer() {
    with_model(&folder(LLAMA, &[]), &NoHost, |runner| {
        let file = written(runner, "12+34=");
        // A safetensors file with the ids and two layers of keys and values.
        let header = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
        let header = usize::try_from(header).expect("short");
        let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header]).expect("JSON");
        assert_eq!(header["tokens"]["shape"], serde_json::json!([7]));
        assert_eq!(header.as_object().map(serde_json::Map::len), Some(1 + 1 + 4));

        let cases =
            [("12+34=", 5), ("12+34=46\n", 7), ("12+35=", 5), ("12+3", 3), ("7+8=", 1), ("1", 0)];
        for (text, reused) in cases {
            let mut generator_of_file = generator(runner);
            read(&mut generator_of_file, file.clone()).expect("a prompt");
            assert_eq!(generator_of_file.kept_prompt(), tokens("12+34="));
            let made = answered(&mut generator_of_file, text);
            let fresh = answered(&mut generator(runner), text);
            assert_eq!((made.reused, fresh.reused), (Some(reused), None), "{text}");
            assert_eq!(made.added, fresh.added, "{text}");
            assert_eq!(format!("{:?}", made.logprobs), format!("{:?}", fresh.logprobs), "{text}");
            // What is kept then is the new prompt, as if it was read at once.
            assert_eq!(generator_of_file.kept_prompt(), tokens(text));
            assert_eq!(file_of(&generator_of_file), written(runner, text), "{text}");
        }
    });
}

#[test]
fn a_file_of_another_model_is_refused() {
    let file = with_model(&folder(LLAMA, &[]), &NoHost, |runner| written(runner, "12+34="));
    let refused = |folder: &FolderInMemory| {
        with_model(folder, &NoHost, |runner| match read(&mut generator(runner), file.clone()) {
            Err(RunError::Request { message, .. }) => message,
            other => panic!("{other:?}"),
        })
    };
    // One bit of a weight, wherever it is, and one number of the configuration.
    let mut other = folder(LLAMA, &[]);
    let weights = other.0.get_mut("model.safetensors").expect("weights");
    let inside = weights.len() - 3000;
    weights[inside] ^= 1;
    assert!(refused(&other).contains("cache: the prompt cache belongs to another model"));
    let config = std::fs::read_to_string(locate::fixture("tiny-llama/config.json")).expect("text");
    let config = config.replace("\"rope_theta\": 10000.0", "\"rope_theta\": 20000.0");
    assert!(refused(&folder(LLAMA, &[("config.json", &config)])).contains("another model"));
}

#[test]
fn models_without_keys_and_values_keep_no_prompts() {
    for name in ["run/tiny-mamba", "run/tiny-t5"] {
        with_model(&folder(name, &[]), &NoHost, |runner| {
            let refused = generator(runner).keep_prompts().expect_err("states, or a decoder");
            assert_eq!(code(refused), Code::Version, "{name}");
        });
    }
    with_model(&folder(LLAMA, &[]), &NoHost, |runner| {
        let nothing = generator(runner).write_prompt_cache(&mut |_| Ok(()));
        assert!(matches!(nothing, Err(RunError::Request { .. })), "{nothing:?}");
    });
}

#[test]
fn broken_files_are_refused() {
    with_model(&folder(LLAMA, &[]), &NoHost, |runner| {
        let file = written(runner, "1");
        let mut generator = generator(runner);
        for (at, cut) in truncations(&file).enumerate() {
            let error = read(&mut generator, cut).expect_err("a part of a file");
            assert!(matches!(code(error), Code::Format | Code::Corrupt), "cut at {at}");
        }
        // Each bit of the header; of the elements, which the digest covers, some.
        let header = file.len() - 16 - 4 * 2 * 2 * 32 * 4;
        let flips =
            bit_flips(&file, 0..header).chain(bit_flips(&file, header..file.len()).step_by(7));
        for (at, broken) in flips.enumerate() {
            if let Err(RunError::Model(error)) = read(&mut generator, broken) {
                let is_of_file = !matches!(error.code(), Code::Io | Code::Decrypt);
                assert!(is_of_file, "flip {at}: {error}");
            } else {
                // The name of the model, which no longer is that of this one.
                assert_eq!(generator.kept_prompt().len(), 0, "flip {at}");
            }
        }
        let other = std::fs::read(locate::fixture("tiny-llama/model.safetensors")).expect("a file");
        assert_eq!(code(read(&mut generator, other).expect_err("no cache")), Code::Format);
        read(&mut generator, file).expect("the file itself");
        assert_eq!(generator.kept_prompt(), tokens("1"));
    });
}
