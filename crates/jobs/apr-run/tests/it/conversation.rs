//! Conversations. What a turn with kept keys and values answers is what the whole chat is answered
//! that is read at once; the sums that the trained model of the fixtures answers are known.

use apr_registry::IoCause;
use apr_run::{
    Completion, Conversation, GenerateOptions, GenerationOptions, Generator, NoHost, Prompt,
    RunError, Runner,
};

use crate::support::{Watched, folder, with_model};

/// Puts an end behind each answer.
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% if m.role == \
                        'assistant' %}{{ eos_token }}{% endif %}{% endfor %}";

const LLAMA: &str = "tiny-llama";

fn with_template(template: &str) -> apr_testkit::FolderInMemory {
    folder(LLAMA, &[("chat_template.jinja", template)])
}

fn options(max_tokens: Option<usize>) -> GenerateOptions {
    let sampling = GenerationOptions { max_tokens, ..GenerationOptions::default() };
    GenerateOptions { sampling, ..GenerateOptions::default() }
}

fn conversation<'r>(runner: &Runner<'r>, options: GenerateOptions) -> Conversation<'r> {
    let generator = Generator::of(runner, options).expect("a generator");
    Conversation::new(generator, None).expect("a conversation")
}

fn said(conversation: &mut Conversation<'_>, message: &str) -> Completion {
    conversation.turn(message, &mut |_| Ok(())).expect("an answer")
}

/// Returns the answer to the tokens of a prompt if all of it is read at a time.
fn fresh(runner: &Runner<'_>, options: GenerateOptions, given: &[i64]) -> Vec<i64> {
    let mut generator = Generator::of(runner, options).expect("a generator");
    generator.generate(Prompt::Tokens(given), &mut |_| Ok(())).expect("an answer").added
}

#[test]
fn a_turn_reads_what_is_new_and_answers_as_the_whole_chat_is_answered() {
    with_model(&with_template(TEMPLATE), &NoHost, |runner| {
        let mut chat = conversation(runner, options(None));
        let first = said(&mut chat, "12+34=");
        assert_eq!((first.text.as_deref(), first.reused), (Some("46\n"), Some(0)));

        let second = said(&mut chat, "20+22=");
        assert_eq!(second.prompt.as_deref(), Some("<s>12+34=46\n</s>20+22="));
        // The mark at the beginning, the sum and its answer.
        assert_eq!((second.given.len(), second.reused), (17, Some(10)));
        assert_eq!(second.added, fresh(runner, options(None), &second.given));
        assert_eq!(second.ended, "end");

        let history: Vec<_> =
            chat.messages().iter().map(|(role, text)| (role.as_str(), text.as_str())).collect();
        let answer = second.text.as_deref().expect("a text");
        assert_eq!(
            history,
            [("user", "12+34="), ("assistant", "46\n"), ("user", "20+22="), ("assistant", answer)]
        );
    });
}

#[test]
fn a_conversation_that_is_resumed_goes_on_as_one_that_was_kept() {
    with_model(&with_template(TEMPLATE), &NoHost, |runner| {
        let mut kept = conversation(runner, options(None));
        said(&mut kept, "12+34=");
        let expected = said(&mut kept, "20+22=");

        let mut first = conversation(runner, options(None));
        said(&mut first, "12+34=");
        let history = first.messages().to_vec();
        let memory = first.into_memory();
        let generator = Generator::of(runner, options(None)).expect("a generator");
        let mut second = Conversation::resumed(generator, None, history, memory).expect("resumed");
        let answer = said(&mut second, "20+22=");
        assert_eq!((answer.given, answer.reused), (expected.given.clone(), expected.reused));
        assert_eq!(answer.added, expected.added);
        let memory = second.into_memory();

        // Of a memory of another history, the common beginning is used.
        let history =
            vec![("user".to_owned(), "12+5=".to_owned()), ("assistant".into(), "17".into())];
        let generator = Generator::of(runner, options(None)).expect("a generator");
        let mut other = Conversation::resumed(generator, None, history, memory).expect("resumed");
        let answer = said(&mut other, "20+22=");
        assert_eq!(answer.reused, Some(4));
        assert_eq!(answer.added, fresh(runner, options(None), &answer.given));
    });
}

#[test]
fn messages_that_the_template_rewrites_are_read_again() {
    // Line breaks behind earlier answers go, so that only what is before them is kept.
    let template = TEMPLATE.replace("m.content", "(m.content | trim)");
    with_model(&with_template(&template), &NoHost, |runner| {
        let mut chat = conversation(runner, options(Some(4)));
        said(&mut chat, "12+34=");
        let second = said(&mut chat, "1+2=");
        assert_eq!((second.given.len(), second.reused), (14, Some(9)));
        assert_eq!(second.added, fresh(runner, options(Some(4)), &second.given));
    });
    // Another system message changes the beginning.
    let template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}";
    with_model(&with_template(template), &NoHost, |runner| {
        let mut chat = conversation(runner, options(Some(2)));
        said(&mut chat, "12+34=");
        chat.set_system(Some("sum".to_owned()));
        let second = said(&mut chat, "1+2=");
        assert_eq!(second.reused, Some(0));
        assert!(second.prompt.as_deref().is_some_and(|text| text.starts_with("ssumu12+34=a")));
        assert_eq!(second.added, fresh(runner, options(Some(2)), &second.given));

        chat.reset();
        assert_eq!((chat.messages().len(), chat.system()), (0, Some("sum")));
        let third = said(&mut chat, "1+2=");
        assert_eq!(third.prompt.as_deref(), Some("ssumu1+2="));
        assert_eq!(third.reused, Some(0));
    });
}

#[test]
fn states_are_kept_as_a_whole_or_not_at_all() {
    let letters: Vec<String> = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXY"
        .chars()
        .enumerate()
        .map(|(id, letter)| format!("\"{letter}\":{id}"))
        .collect();
    let tokenizer = format!(
        r#"{{"version":"1.0","added_tokens":[],"decoder":{{"type":"Fuse"}},
           "model":{{"type":"BPE","vocab":{{{}}},"merges":[]}}}}"#,
        letters.join(",")
    );
    let mamba = |template: &str| {
        let files = [("tokenizer.json", &*tokenizer), ("chat_template.jinja", template)];
        folder("run/tiny-mamba", &files)
    };
    let all = "{% for m in messages %}{{ m.content }}{% endfor %}";
    with_model(&mamba(all), &NoHost, |runner| {
        let mut chat = conversation(runner, options(Some(3)));
        said(&mut chat, "hello");
        let second = said(&mut chat, "you");
        // All but the last token of the answer was read.
        assert_eq!((second.given.len(), second.reused), (11, Some(7)));
        assert_eq!(second.added, fresh(runner, options(Some(3)), &second.given));
    });
    let last = "{{ messages[0].content }}{{ messages[-1].content }}";
    with_model(&mamba(last), &NoHost, |runner| {
        let mut chat = conversation(runner, options(Some(3)));
        said(&mut chat, "hello");
        let second = said(&mut chat, "you");
        assert_eq!((second.given.len(), second.reused), (8, Some(0)));
        assert_eq!(second.added, fresh(runner, options(Some(3)), &second.given));
    });
}

#[test]
fn generated_special_tokens_are_not_part_of_the_history() {
    // Nothing ends an answer, so that the model goes on behind its own end.
    let settings = r#"{"eos_token_id": 258, "max_new_tokens": 6}"#;
    let files = [("chat_template.jinja", TEMPLATE), ("generation_config.json", settings)];
    with_model(&folder(LLAMA, &files), &NoHost, |runner| {
        let mut chat = conversation(runner, GenerateOptions::default());
        let first = said(&mut chat, "12+34=");
        assert!(first.added.contains(&257), "{:?}", first.added);
        assert_eq!(chat.messages()[1].1, first.text.clone().expect("a text"));
        assert!(!chat.messages()[1].1.contains("</s>"), "{:?}", chat.messages());
        let second = said(&mut chat, "1+2=");
        assert_eq!(second.given.iter().filter(|id| **id == 257).count(), 1);
        assert_eq!(second.added, fresh(runner, GenerateOptions::default(), &second.given));
    });
}

#[test]
fn the_oldest_messages_are_dropped_where_the_context_is_full() {
    let host = Watched::default();
    with_model(&with_template(TEMPLATE), &host, |runner| {
        let mut chat = conversation(runner, options(Some(4)));
        let mut dropped = 0;
        for turn in 0..12 {
            let made = said(&mut chat, "12+34=");
            dropped += made.dropped;
            assert_eq!(chat.messages().len(), 2 * (turn + 1) - dropped);
            assert!(made.given.len() + 4 <= 64, "{}", made.given.len());
            assert_eq!(made.added, fresh(runner, options(Some(4)), &made.given));
        }
        assert!(dropped > 0);
        let warnings = host.warnings.lock().expect("no panic").clone();
        assert!(
            warnings.contains(
                &"the model's context of 64 tokens is full: the 2 oldest messages were dropped"
                    .to_owned()
            ),
            "{warnings:?}"
        );

        // What fits no context changes nothing.
        let before = chat.messages().to_vec();
        let refused = chat.turn(&"1".repeat(64), &mut |_| Ok(()));
        let Err(RunError::Request { message, .. }) = refused else { panic!("{refused:?}") };
        assert!(message.contains("65 tokens long in the chat template"), "{message}");
        assert_eq!(chat.messages(), before);
    });
}

#[test]
fn an_answer_that_is_interrupted_stays_and_the_conversation_goes_on() {
    let host = Watched::default();
    with_model(&with_template(TEMPLATE), &host, |runner| {
        let mut chat = conversation(runner, options(None));
        let mut pieces = Vec::new();
        let made = chat.turn("12+34=", &mut |piece| {
            pieces.push(piece.to_owned());
            host.cancel_after(0);
            Ok(())
        });
        let made = made.expect("a part of an answer");
        assert_eq!((made.text.as_deref(), made.ended), (Some("4"), "interrupted"));
        assert_eq!(pieces.concat(), "4");
        assert_eq!(chat.messages()[1].1, "4");

        host.cancel_after(i64::MAX);
        let second = said(&mut chat, "20+22=");
        assert_eq!(second.prompt.as_deref(), Some("<s>12+34=4</s>20+22="));
        // The prompt was read; the token that came last was not.
        assert_eq!(second.reused, Some(7));
        assert_eq!(second.added, fresh(runner, options(None), &second.given));
    });
}

#[test]
fn a_prompt_whose_reading_is_interrupted_leaves_the_history_as_it_was() {
    let host = Watched::default();
    with_model(&with_template(TEMPLATE), &host, |runner| {
        let mut chat = conversation(runner, options(None));
        said(&mut chat, "12+34=");
        let before = chat.messages().to_vec();
        // One question comes before the prompt is read.
        host.cancel_after(3);
        let stopped = chat.turn("20+22=", &mut |_| Ok(()));
        let Err(RunError::Model(error)) = stopped else { panic!("{stopped:?}") };
        assert_eq!(error.cause(), Some(IoCause::Interrupted));
        host.cancel_after(0);
        let made = said(&mut chat, "20+22=");
        assert_eq!((made.ended, made.added.len()), ("interrupted", 0));
        assert_eq!(chat.messages(), before);

        host.cancel_after(i64::MAX);
        let second = said(&mut chat, "20+22=");
        assert_eq!(second.prompt.as_deref(), Some("<s>12+34=46\n</s>20+22="));
        // What was stopped halfway took the keys and values with it.
        assert_eq!(second.reused, Some(0));
        assert_eq!(second.added, fresh(runner, options(None), &second.given));
    });
}

#[test]
fn models_without_conversations_are_rejected_before_a_message_is_written() {
    let begun = |folder: &apr_testkit::FolderInMemory| {
        with_model(folder, &NoHost, |runner| {
            let generator = Generator::of(runner, options(None)).expect("a generator");
            Conversation::new(generator, None).map(drop).expect_err("no conversation").to_string()
        })
    };
    let pair = begun(&folder("run/tiny-t5", &[("chat_template.jinja", TEMPLATE)]));
    assert!(pair.contains("encoder-decoder models"), "{pair}");
    let plain = begun(&folder(LLAMA, &[]));
    assert!(plain.contains("missing chat template"), "{plain}");
}
