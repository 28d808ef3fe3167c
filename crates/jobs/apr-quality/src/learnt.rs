//! Whether a model learnt a language: passages beside the same tokens in another order.

use apr_run::{Prepared, RunResult, Tokenizer};

use crate::samples::random;
use crate::scores::{Logits, no_number};
use crate::subject::Subject;
use crate::text_part::{Beside, TextPart};
use crate::windows::Window;

/// Maximum number of tokens per passage.
const MOST: usize = 96;
/// Tokens of the shortest text.
const LEAST: usize = 8;
/// Tokens of the beginning of a text, of which the second half is scored. The last third of
/// [`MOST`] tokens has none of them.
const BEGINNING: usize = 48;

/// Nats per byte of a text that a model predicts, at most, if its tokens are [`LONG`].
///
/// Twice the worst of three trained models with 4 bits per weight on the first text: `a story`
/// takes 0.70 in Qwen2.5 Coder 0.5B, 0.64 in Gemma 3 270M, and 0.60 in SmolLM2 135M.
const MOST_PER_BYTE: f64 = 1.4;
/// Bytes of a token, on average, in a language that the vocabulary was made for: 4.1 in these
/// models. A model with tokens of letters, or of another language, need not know the text.
const LONG: f64 = 3.5;
/// Nats per byte of the answers to sums, at most. Guessed digits take 1.5, and tiny-llama 0.000.
const MOST_PER_BYTE_OF_SUMS: f64 = 0.5;
/// Name of the passage with sums.
const SUMS: &str = "sums";

/// Texts of the kinds that models are trained on. A language model should predict at least one of
/// them.
const PASSAGES: [(&str, &[&str]); 9] = [
    (
        "a story",
        &["Once upon a time, there was a small brown dog who lived with an old man in a little \
         house. The dog liked to dig in the garden. One day he found a key under a tree. He was \
         very happy and ran back to the house. \"Look what you found!\" said the old man. They \
         opened the door of the shed together, and inside there was a big red ball. They played \
         until it was dark."],
    ),
    (
        "prose",
        &["The capital of France is Paris, which lies on the river Seine. The city is known for \
             its museums and for the Eiffel Tower, which was built in 1889. Water boils at 100 \
             degrees Celsius at sea level. The Earth goes around the Sun once a year, and the Moon \
             goes around the Earth about once a month. The United States of America has fifty \
             states."],
    ),
    (
        "code",
        &["import os\n\n\ndef read_file(path):\n    with open(path, \"r\") as f:\n        return \
         f.read()\n\n\ndef main():\n    for name in os.listdir(\".\"):\n        if \
         name.endswith(\".txt\"):\n            print(name, len(read_file(name)))\n\n\nif __name__ \
         == \"__main__\":\n    main()\n"],
    ),
    (
        "Chinese",
        &["中国是世界上人口最多的国家之一，首都是北京。北京有很多著名的地方，例如故宫和长城。\
         春天来了，天气慢慢变暖，公园里的花都开了。孩子们在公园里玩，老人们坐在树下喝茶。"],
    ),
    (
        "Spanish",
        &["La capital de España es Madrid, que está en el centro del país. En verano hace mucho \
         calor, y muchas personas van a la playa. El español es una de las lenguas más habladas \
         del mundo. Después de comer, los niños salieron a jugar al parque con sus amigos."],
    ),
    (
        "Russian",
        &["Москва является столицей России. Зимой здесь холодно и часто идёт снег, а летом \
             бывает жарко. Моя сестра работает в школе и учит детей читать и писать. Вечером вся \
             семья сидит за столом и пьёт чай."],
    ),
    (
        "Japanese",
        &["日本の首都は東京です。春になると桜の花が咲き、多くの人が公園へ行きます。\
         昨日は雨が降りましたが、今日はとても良い天気です。私は毎朝七時に起きて、電車で会社に行きます。"],
    ),
    (
        "Arabic",
        &["القاهرة هي عاصمة مصر وأكبر مدينة فيها. يذهب الأطفال إلى المدرسة كل صباح، \
         ويلعبون في الحديقة بعد الظهر. الماء ضروري للحياة، والشمس تشرق من الشرق."],
    ),
    (SUMS, &["12+34=46\n", "25+13=38\n", "40+7=47\n", "31+52=83\n", "18+21=39\n", "60+25=85\n"]),
];

/// Losses of a language model on a passage.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PassageScore {
    /// The kind of text.
    pub name: &'static str,
    /// Tokens that were scored.
    pub scored: usize,
    /// Mean negative log-likelihood of a token, in nats.
    pub loss: f64,
    /// Loss on the same tokens in shuffled order.
    pub shuffled: f64,
    /// Loss of a guess: the natural logarithm of the number of tokens.
    pub guess: f64,
    /// Bytes of a token of the text, on average.
    pub bytes: f64,
}

impl PassageScore {
    /// Returns the nats per token that the order of the text saves, 0 for an untrained model.
    #[must_use]
    pub fn gain(&self) -> f64 {
        self.shuffled - self.loss
    }

    /// Returns the nats per byte of the text, which do not depend on the vocabulary.
    #[must_use]
    pub fn per_byte(&self) -> f64 {
        self.loss / self.bytes
    }

    /// Returns the maximum number of nats per byte for a model that knows the text; infinite if its
    /// tokens are too short for its language to be known.
    #[must_use]
    pub fn most_per_byte(&self) -> f64 {
        match self.name {
            SUMS => MOST_PER_BYTE_OF_SUMS,
            _ if self.bytes >= LONG => MOST_PER_BYTE,
            _ => f64::INFINITY,
        }
    }

    /// Returns `true` if the order saves at least `enough` nats, and the text is likelier than a
    /// guess and than [its bytes](Self::most_per_byte) allow.
    #[must_use]
    pub fn is_learnt(&self, enough: f64) -> bool {
        self.gain() >= enough && self.loss < self.guess && self.per_byte() <= self.most_per_byte()
    }
}

/// Scores the built-in passages, until one [is learnt](PassageScore::is_learnt).
///
/// The same tokens in another order are the measure: it takes no table of what a vocabulary or a
/// size should reach, and random weights gain nothing. The decoder of a speech model reads them
/// behind the states of silence. Returns no scores for a model that does not continue texts.
///
/// # Errors
/// E003 for a model without logits for each token, E001 where they are NaN or infinite, and those
/// of [`Prepared::run`].
pub fn passages(model: &Subject<'_>, enough: f64) -> RunResult<Vec<PassageScore>> {
    let mut found = Vec::new();
    let Some(TextPart { part, tokenizer, beside }) = TextPart::of(model)? else {
        return Ok(found);
    };
    for passage in &PASSAGES {
        let text = Known::of(tokenizer, &beside, passage)?;
        found.extend(text.score(part)?);
        if found.last().is_some_and(|score: &PassageScore| score.is_learnt(enough)) {
            break;
        }
    }
    Ok(found)
}

/// Returns up to `most` built-in passages that a model [knows](PassageScore::is_learnt).
pub(crate) fn known(
    TextPart { part, tokenizer, beside }: &TextPart<'_, '_>,
    enough: f64,
    most: usize,
) -> RunResult<Vec<Known>> {
    let mut found = Vec::new();
    for passage in &PASSAGES {
        let text = Known::of(tokenizer, beside, passage)?;
        if found.len() < most && text.score(part)?.is_some_and(|score| score.is_learnt(enough)) {
            found.push(text);
        }
    }
    Ok(found)
}

/// Tokens of the texts of a passage.
pub(crate) struct Known {
    name: &'static str,
    beside: Beside,
    texts: Vec<Vec<i64>>,
    /// Bytes of a token.
    bytes: f64,
}

impl Known {
    fn of(
        tokenizer: &Tokenizer<'_>,
        beside: &Beside,
        &(name, texts): &(&'static str, &[&str]),
    ) -> RunResult<Self> {
        let mut all = Vec::new();
        let (mut bytes, mut tokens) = (0, 0);
        for text in texts {
            let mut ids = tokenizer.encode(text, false)?;
            (bytes, tokens) = (bytes + text.len(), tokens + ids.len());
            ids.truncate(MOST.min(beside.longest));
            // Too few to have an order.
            if ids.len() >= LEAST {
                all.push(ids);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a short text")]
        let bytes = bytes as f64 / tokens.max(1) as f64;
        Ok(Self { name, beside: beside.clone(), texts: all, bytes })
    }

    /// Number of tokens that one run over all texts reads.
    pub(crate) fn tokens(&self) -> usize {
        self.texts.iter().map(Vec::len).sum()
    }

    /// Loss of a token.
    pub(crate) fn loss(&self, part: &Prepared<'_>) -> RunResult<f64> {
        Ok(self.sum(part, Vec::clone)?.mean())
    }

    /// Number of tokens that a run over the beginnings reads.
    pub(crate) fn tokens_of_beginning(&self) -> usize {
        self.texts.iter().map(|ids| ids.len().min(BEGINNING)).sum()
    }

    /// Loss of a token in the second half of the beginning. Texts that are not longer are scored as
    /// [`loss`](Self::loss) does.
    pub(crate) fn loss_of_beginning(&self, part: &Prepared<'_>) -> RunResult<f64> {
        let mut all = Losses::default();
        for ids in &self.texts {
            let one = match ids.get(..BEGINNING) {
                Some(ids) => losses(part, &self.beside, ids, BEGINNING / 2)?,
                None => losses(part, &self.beside, ids, last_third(ids))?,
            };
            all.add(&one);
        }
        Ok(all.mean())
    }

    /// The losses of all texts, whose tokens are changed before.
    fn sum(&self, part: &Prepared<'_>, change: fn(&Vec<i64>) -> Vec<i64>) -> RunResult<Losses> {
        let mut all = Losses::default();
        for ids in &self.texts {
            all.add(&losses(part, &self.beside, &change(ids), last_third(ids))?);
        }
        Ok(all)
    }

    /// Losses in this order and in another; `None` if the tokens are too few.
    fn score(&self, part: &Prepared<'_>) -> RunResult<Option<PassageScore>> {
        if self.texts.is_empty() {
            return Ok(None);
        }
        let text = self.sum(part, Vec::clone)?;
        let shuffled = self.sum(part, |ids| shuffled(ids))?;
        let (name, scored, guess, bytes) = (self.name, text.scored, text.guess, self.bytes);
        let (loss, shuffled) = (text.mean(), shuffled.mean());
        Ok(Some(PassageScore { name, scored, loss, shuffled, guess, bytes }))
    }
}

/// Negative log-likelihoods of a text.
#[derive(Default)]
struct Losses {
    scored: usize,
    sum: f64,
    /// Loss per token of a guess.
    guess: f64,
}

impl Losses {
    fn add(&mut self, other: &Self) {
        self.scored += other.scored;
        self.sum += other.sum;
        self.guess = other.guess;
    }

    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    fn mean(&self) -> f64 {
        self.sum / self.scored as f64
    }
}

/// Number of tokens of a text that are scored.
///
/// In arithmetic, only the answer is predictable, and many models are trained on answers alone.
fn last_third(ids: &[i64]) -> usize {
    ids.len().div_ceil(3)
}

/// Returns the losses of the last tokens. The tokens before them are only context.
fn losses(part: &Prepared<'_>, beside: &Beside, ids: &[i64], scored: usize) -> RunResult<Losses> {
    let input: Vec<i64> = beside.start.into_iter().chain(ids.iter().copied()).collect();
    let first = input.len() - scored - 1;
    let window = Window { targets: input[first + 1..].to_vec(), input, first };
    let logits = match &beside.states {
        Some(states) => Logits::behind(part, &window, states)?,
        None => Logits::of(part, &window)?,
    };
    let floats = logits.floats()?;
    let rows = window.targets.iter().enumerate();
    let sum: f64 = rows.map(|(at, token)| -logits.row(&floats, at).get(*token)).sum();
    if !sum.is_finite() {
        return Err(no_number("the model", 0));
    }
    #[expect(clippy::cast_precision_loss, reason = "the size of a vocabulary")]
    let guess = (logits.width() as f64).ln();
    Ok(Losses { scored: window.targets.len(), sum, guess })
}

/// Returns the tokens in an unrelated order, which is always the same for the same tokens.
fn shuffled(ids: &[i64]) -> Vec<i64> {
    let mut state = 1_u64;
    let mut mixed = ids.to_vec();
    for at in (1..mixed.len()).rev() {
        let other = usize::try_from(random(&mut state)).unwrap_or(0) % (at + 1);
        mixed.swap(at, other);
    }
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_order_has_the_same_tokens() {
        let ids: Vec<i64> = (0..96).collect();
        let mut mixed = shuffled(&ids);
        let neighbours = mixed.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(neighbours < 5, "{neighbours}");
        mixed.sort_unstable();
        assert_eq!(mixed, ids);
    }

    #[test]
    fn a_gain_counts_below_a_guess_and_below_the_limit_of_a_byte() {
        let score = |name, loss, bytes| PassageScore {
            name,
            scored: 9,
            loss,
            shuffled: 8.0,
            guess: 7.0,
            bytes,
        };
        assert!(score("a", 3.0, 4.0).is_learnt(0.5) && !score("a", 7.2, 9.0).is_learnt(0.5));
        assert!(!score("a", 6.9, 9.0).is_learnt(2.0));
        assert!(!score("a", 6.0, 4.0).is_learnt(0.5) && !score(SUMS, 3.0, 4.0).is_learnt(0.5));
        assert!(score("a", 6.0, 2.0).is_learnt(0.5), "short tokens");
        assert!(score(SUMS, 0.05, 1.0).is_learnt(0.5));
    }
}
