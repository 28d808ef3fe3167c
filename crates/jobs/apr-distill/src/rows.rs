//! What a student learns from: texts, chats, or tokens, one to a line.

use apr_core::{Error, Escaped, Result};
use serde_json::{Map, Value as Json};

/// Training example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Token ids of the example.
    pub tokens: Vec<i64>,
    /// Position of the first label. The tokens before it, such as a prompt, are only context.
    pub first_label: usize,
    /// Position of the first token of the second text of a pair, from which on the token type is 1.
    pub second_text: Option<usize>,
}

impl Row {
    /// A single text: all its tokens are labels.
    #[must_use]
    pub fn new(tokens: Vec<i64>) -> Self {
        Self { tokens, first_label: 0, second_text: None }
    }
}

/// Content of a line.
enum Line {
    Text(String),
    Pair(String, String),
    Completed { prompt: String, completion: String },
    Chat { messages: Vec<(String, String)>, answer: String },
    Tokens(Vec<i64>),
}

/// Conversion of texts to tokens.
pub trait Tokenize {
    /// Tokenizes a text. With `special`, the model's special tokens are added around it.
    ///
    /// # Errors
    /// Returns the errors of the tokenizer.
    fn text(&self, text: &str, special: bool) -> Result<Vec<i64>>;

    /// Tokenizes two texts with the model's special tokens around and between them.
    ///
    /// Also returns the position of the first token of type 1.
    ///
    /// # Errors
    /// Returns the errors of the tokenizer.
    fn pair(&self, texts: [&str; 2]) -> Result<(Vec<i64>, Option<usize>)>;

    /// Tokenizes messages (roles and contents) with the chat template, up to the model's answer.
    ///
    /// # Errors
    /// E003 if the model has no template. Also the errors of the template.
    fn chat(&self, messages: &[(String, String)]) -> Result<Vec<i64>>;

    /// Returns the token that ends an answer, if there is one.
    fn end(&self) -> Option<i64>;
}

/// The rows of a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowsRead {
    /// The rows to learn from.
    pub rows: Vec<Row>,
    /// Number of rows that were cut.
    pub cut: usize,
    /// Number of lines that were skipped: texts without a character, and rows without a token to
    /// predict.
    pub empty: usize,
}

/// Reads rows: JSON lines with `text`, `text` and `text_pair`, `prompt` and `completion`,
/// `messages`, or `tokens`; any other file has a text in each line. Rows are cut to `most` tokens.
///
/// # Errors
/// E001 with the number of the line, for what is no JSON object, has none of these fields, or has
/// tokens that are not below `vocabulary`; E001 for no rows.
pub fn read_rows(
    text: &str,
    is_json: bool,
    tokenize: &dyn Tokenize,
    vocabulary: Option<usize>,
    most: usize,
) -> Result<RowsRead> {
    let mut read = RowsRead::default();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let of_line = || {
            let line = if is_json { parsed(line)? } else { Line::Text(line.to_owned()) };
            let is_blank = matches!(&line, Line::Text(text) if text.trim().is_empty());
            Ok((row(line, tokenize, vocabulary)?, is_blank))
        };
        let (mut row, is_blank) = of_line().map_err(|error| at_line(&error, number + 1))?;
        let is_cut = row.tokens.len() > most;
        row.tokens.truncate(most);
        if !is_blank && (row.tokens.len() > 1 || !row.tokens.is_empty() && row.first_label == 0) {
            read.rows.push(row);
            read.cut += usize::from(is_cut);
        } else {
            read.empty += 1;
        }
    }
    if read.rows.is_empty() {
        return Err(Error::format("it does not contain rows to learn from"));
    }
    Ok(read)
}

fn at_line(error: &Error, number: usize) -> Error {
    Error::new(error.code(), format!("line {number}: {}", error.message()))
}

/// Keys of answers that are better or worse than others.
const PREFERENCES: [&str; 2] = ["chosen", "rejected"];

fn parsed(line: &str) -> Result<Line> {
    const EXPECTED: &str = "expected \"text\", and perhaps \"text_pair\", \"prompt\" and \
                            \"completion\", \"messages\", or \"tokens\"";
    let json: Map<String, Json> = serde_json::from_str(line).map_err(|error| {
        Error::format(format!("not a JSON object: {}", apr_core::foreign(&error)))
    })?;
    let field = |name: &str| {
        let value = json.get(name)?;
        let wrong = || Error::format(format!("\"{name}\" must be a string"));
        Some(value.as_str().map(str::to_owned).ok_or_else(wrong))
    };
    if let Some(key) = PREFERENCES.into_iter().find(|key| json.contains_key(*key)) {
        return Err(Error::format(format!(
            "\"{key}\" is of preference data, which can't be learnt from: {EXPECTED}"
        )));
    }
    if let Some(messages) = json.get("messages") {
        return chat(messages);
    }
    if let Some(tokens) = json.get("tokens").or_else(|| json.get("input_ids")) {
        let ids = tokens.as_array().and_then(|ids| ids.iter().map(Json::as_i64).collect());
        return ids.map(Line::Tokens).ok_or_else(|| Error::format("\"tokens\" must be integers"));
    }
    match (field("prompt"), field("completion"), field("text")) {
        (Some(_), Some(_), _) if json.get("label").is_some_and(Json::is_boolean) => {
            Err(Error::format(format!(
                "\"label\" judges a completion, which can't be learnt from: {EXPECTED}"
            )))
        }
        (Some(prompt), Some(completion), _) => {
            Ok(Line::Completed { prompt: prompt?, completion: completion? })
        }
        (_, _, Some(text)) => match field("text_pair") {
            Some(pair) => Ok(Line::Pair(text?, pair?)),
            None => text.map(Line::Text),
        },
        _ => Err(Error::format(EXPECTED)),
    }
}

/// Messages whose last one is the answer that is learnt.
fn chat(messages: &Json) -> Result<Line> {
    let wrong = || Error::format("\"messages\" must be a list of messages with role and content");
    let message = |message: &Json| {
        let text = |key: &str| message.get(key)?.as_str().map(str::to_owned);
        text("role").zip(text("content"))
    };
    let messages = messages.as_array().and_then(|all| all.iter().map(message).collect());
    let mut messages: Vec<(String, String)> = messages.ok_or_else(wrong)?;
    match messages.pop() {
        Some((role, answer)) if role == "assistant" && !messages.is_empty() => {
            Ok(Line::Chat { messages, answer })
        }
        Some(_) => {
            Err(Error::format("the last of \"messages\" must be an answer of the assistant"))
        }
        None => Err(wrong()),
    }
}

fn row(line: Line, tokenize: &dyn Tokenize, vocabulary: Option<usize>) -> Result<Row> {
    let mut second_text = None;
    let (tokens, first_label) = match line {
        Line::Text(text) => (tokenize.text(&text, true)?, 0),
        Line::Pair(first, second) => {
            let (tokens, place) = tokenize.pair([&first, &second])?;
            second_text = place;
            (tokens, 0)
        }
        Line::Tokens(tokens) => (tokens, 0),
        Line::Completed { prompt, completion } => {
            let mut tokens = tokenize.text(&prompt, true)?;
            let first = tokens.len();
            tokens.extend(tokenize.text(&completion, false)?);
            (tokens, first)
        }
        Line::Chat { messages, answer } => {
            let mut tokens = tokenize.chat(&messages)?;
            let first = tokens.len();
            tokens.extend(tokenize.text(&answer, false)?);
            tokens.extend(tokenize.end());
            (tokens, first)
        }
    };

    check_tokens(&tokens, vocabulary)?;
    Ok(Row { tokens, first_label, second_text })
}

/// Refuses a token that the model does not have.
pub(crate) fn check_tokens(tokens: &[i64], vocabulary: Option<usize>) -> Result<()> {
    let known = |id: &i64| {
        let place = usize::try_from(*id).ok();
        place.is_some_and(|place| vocabulary.is_none_or(|vocabulary| place < vocabulary))
    };
    match tokens.iter().find(|id| !known(id)) {
        Some(id) => Err(Error::format(format!(
            "token {} is not one of the model's {}",
            Escaped(&id.to_string()),
            vocabulary.unwrap_or_default()
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes;

    impl Tokenize for Bytes {
        fn text(&self, text: &str, special: bool) -> Result<Vec<i64>> {
            Ok(special.then_some(1).into_iter().chain(text.bytes().map(i64::from)).collect())
        }

        fn pair(&self, [first, second]: [&str; 2]) -> Result<(Vec<i64>, Option<usize>)> {
            let bytes = |text: &str| text.bytes().map(i64::from).collect::<Vec<_>>();
            let tokens = [&[1][..], &bytes(first), &[2], &bytes(second), &[2]].concat();
            Ok((tokens, Some(2 + first.len())))
        }

        fn chat(&self, messages: &[(String, String)]) -> Result<Vec<i64>> {
            let texts = messages.iter().flat_map(|(_, text)| text.bytes().map(i64::from));
            Ok([2].into_iter().chain(texts).chain([3]).collect())
        }

        fn end(&self) -> Option<i64> {
            Some(4)
        }
    }

    fn read(text: &str) -> Result<RowsRead> {
        read_rows(text, true, &Bytes, Some(128), 6)
    }

    #[test]
    fn rows_are_texts_prompts_chats_and_tokens() {
        let text = "{\"text\": \"ab\"}\n\n{\"prompt\": \"a\", \"completion\": \"b\"}\n\
                    {\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, \
                    {\"role\": \"assistant\", \"content\": \"b\"}]}\n{\"tokens\": [5, 6]}\n\
                    {\"text\": \"abcdefgh\"}\n{\"text\": \" \"}\n{\"tokens\": []}\n";
        let RowsRead { rows, cut, empty } = read(text).unwrap();
        let row = |tokens: &[i64], first_label| Row { first_label, ..Row::new(tokens.to_vec()) };
        let expected = [
            row(&[1, 97, 98], 0),
            row(&[1, 97, 98], 2),
            row(&[2, 97, 3, 98, 4], 3),
            row(&[5, 6], 0),
            row(&[1, 97, 98, 99, 100, 101], 0),
        ];
        assert_eq!(rows, expected);
        assert_eq!((cut, empty), (1, 2));
        let lines = read_rows("ab\ncd\n", false, &Bytes, None, 9).unwrap();
        assert_eq!(lines.rows, [row(&[1, 97, 98], 0), row(&[1, 99, 100], 0)]);
    }

    #[test]
    fn a_pair_has_two_types_of_tokens() {
        let RowsRead { rows, .. } = read("{\"text\": \"a\", \"text_pair\": \"b\"}").unwrap();
        assert_eq!(rows[0].tokens, [1, 97, 2, 98, 2]);
        assert_eq!(rows[0].second_text, Some(3));
    }

    #[test]
    fn invalid_rows_are_rejected_with_their_line_number() {
        for (text, message) in [
            ("{\"text\": \"a\"}\n[]", "line 2: not a JSON object"),
            ("{\"texts\": \"a\"}", "line 1: expected \"text\""),
            ("{\"text\": 3}", "line 1: \"text\" must be a string"),
            (
                "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}",
                "\"chosen\" is of preference",
            ),
            ("{\"text\": \"a\", \"rejected\": \"c\"}", "\"rejected\" is of preference"),
            ("{\"prompt\": \"a\", \"completion\": \"b\", \"label\": false}", "\"label\" judges"),
            ("{\"tokens\": [1, 128]}", "line 1: token 128 is not one of the model's 128"),
            ("{\"tokens\": [-1]}", "line 1: token -1 is not"),
            ("{\"tokens\": \"a\"}", "line 1: \"tokens\" must be integers"),
            ("{\"messages\": []}", "line 1: \"messages\" must be a list"),
            ("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "must be an answer"),
            ("\n", "it does not contain rows"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.message().contains(message), "{error}");
        }
    }
}
