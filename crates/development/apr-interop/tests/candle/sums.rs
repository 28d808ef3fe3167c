//! candle runs what was written.
//!
//! A right sum takes right names, pairs, blocks and tokens, and rows of Q and K in the order that
//! GGUF has them in: candle turns neighbouring components (`rope_i`), the model was trained with
//! pairs half a head apart.

use std::io::Cursor;

use apr_quantize::Scheme;
use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::{Device, IndexOp, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use tokenizers::Tokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::Outcome;
use crate::written::gguf;

const END: u32 = 257;

/// No answer is longer: three digits, a newline, the end.
const LONGEST: usize = 5;

struct Calculator {
    model: ModelWeights,
    tokenizer: Tokenizer,
}

impl Calculator {
    fn new(file: &[u8]) -> Outcome<Self> {
        let mut file = Cursor::new(file);
        let content = Content::read(&mut file)?;
        let mut tokenizer = Tokenizer::from_gguf(&content)?;
        // candle puts a space in front of every text unless the pre-tokenizer is one of four it
        // knows; the pairs have no key for that, and this model never saw a space.
        tokenizer.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)));
        Ok(Self { model: ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?, tokenizer })
    }

    /// The greedy continuation of a prompt; whether the model ended it.
    fn continued(&mut self, prompt: &str) -> Outcome<(String, bool)> {
        let mut fresh = self.tokenizer.encode(prompt, true)?.get_ids().to_vec();
        let (mut position, mut answer) = (0, Vec::new());
        while answer.len() < LONGEST {
            let logits =
                self.model.forward(&Tensor::new(&*fresh, &Device::Cpu)?.unsqueeze(0)?, position)?;
            let token = logits.i(0)?.argmax(0)?.to_scalar::<u32>()?;
            if token == END {
                return Ok((self.tokenizer.decode(&answer, true)?, true));
            }
            position += fresh.len();
            fresh = vec![token];
            answer.push(token);
        }
        Ok((self.tokenizer.decode(&answer, true)?, false))
    }
}

#[test]
fn sums_are_right_in_floats_and_in_blocks_of_four_to_eight_bits() -> Outcome {
    for scheme in [Scheme::Fp16, Scheme::Q8_0, Scheme::Q5_1, Scheme::Q4_K_M] {
        let mut calculator = Calculator::new(&gguf(scheme)?)?;
        for a in (0..100).step_by(4) {
            // No two alike, from one digit to three.
            let b = a * 37 % 100;
            let sum = (format!("{}\n", a + b), true);
            assert_eq!(calculator.continued(&format!("{a}+{b}="))?, sum, "{scheme}: {a}+{b}");
        }
    }
    Ok(())
}

#[test]
fn tokens_equal_the_tokens_of_the_training() -> Outcome {
    let calculator = Calculator::new(&gguf(Scheme::Fp16)?)?;
    // One a byte, after the one that starts every text.
    let ids = calculator.tokenizer.encode("12+34=", true)?;
    assert_eq!(ids.get_ids(), [256, 49, 50, 43, 51, 52, 61]);
    Ok(())
}
