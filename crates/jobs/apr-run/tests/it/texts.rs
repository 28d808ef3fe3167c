//! Texts that a model reads as a whole.

use apr_run::{TextEncoder, TextTask};

use crate::support::{Watched, folder, with_model};

#[test]
fn texts_of_one_length_run_together() {
    let host = Watched::default();
    with_model(&folder("run/tiny-bert", &[]), &host, |runner| {
        let encoder = TextEncoder::of_part(runner.prepare().expect("a graph")).expect("texts");
        let read = |texts: &[&str]| {
            let before = host.questions();
            let made = encoder.read_all(texts).expect("embeddings");
            (made, host.questions() - before)
        };
        let lines = ["a cat sat", "cat a sat", "sat a cat", "sat cat a"];
        let (together, of_four) = read(&lines);
        let (_, of_one) = read(&lines[..1]);
        assert_eq!(of_four, of_one, "one run reads all four");
        for (made, line) in together.iter().zip(lines) {
            let (alone, _) = read(&[line]);
            let (TextTask::Embedding { vector, .. }, TextTask::Embedding { vector: alone, .. }) =
                (made, &alone[0])
            else {
                panic!("{made:?} is no embedding");
            };
            assert_eq!(vector, alone, "{line}");
        }
        let (_, of_two_lengths) = read(&["a cat sat", "a cat", "cat sat a"]);
        assert_eq!(of_two_lengths, 2 * of_one);
    });
}
