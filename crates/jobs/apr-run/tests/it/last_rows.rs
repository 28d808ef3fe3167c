//! Logits of the last token, behind a prompt whose others have none.

use apr_graph::Node;
use apr_infer::{Alone, Flow, LanguageModel, Memory, Step, Tap, Unwatched};
use apr_run::NoHost;

use crate::batches::{families, made_up};
use crate::support::with_model;

/// Rows of the last node's result.
#[derive(Default)]
struct RowsOfLast(usize);

impl Tap for RowsOfLast {
    fn wants(&mut self, _: &str, _: &Node) -> bool {
        true
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, step: &Step<'_>) -> Flow {
        if let Some(Ok([.., rows, _])) =
            step.outputs.first().map(|value| value.tensor().map(apr_infer::Tensor::shape))
        {
            self.0 = *rows;
        }
        Flow::Continue
    }
}

#[test]
fn logits_of_the_last_token_are_bit_identical_to_those_of_all_tokens() {
    let mut compared = 0;
    for (name, family) in families() {
        with_model(&made_up(&family), &NoHost, |runner| {
            let part = runner.prepare().expect("a part");
            let language = LanguageModel::new(part.session()).expect("it continues texts");
            for count in [1, 2, 3, 9] {
                let tokens: Vec<i64> = (0..count).map(|at| 3 + at * 5 % 40).collect();
                let all = language.logits_behind(&[], &tokens, &Alone, &mut Unwatched);
                let Some(all) = all.expect("logits") else { continue };
                let all = all.floats().expect("floats").to_vec();
                let (mut memory, mut rows) = (Memory::default(), RowsOfLast::default());
                let last = language.next(&mut memory, &tokens, &Alone, &mut rows).expect("logits");
                let expected = &all[all.len() - last.len()..];
                let same = last.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{name}, {count} tokens");
                assert!(rows.0 <= 2, "{name}: {} rows of {count}", rows.0);
                compared += 1;
            }
        });
    }
    assert!(compared > 150, "{compared} compared");
}
