//! Which names a typed text means.

/// A text that is typed to find names: words that all occur, or else letters in their order.
pub(crate) struct Wanted {
    words: Vec<String>,
    letters: Vec<char>,
}

impl Wanted {
    pub(crate) fn new(text: &str) -> Self {
        let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
        let letters = words.iter().flat_map(|word| word.chars()).collect();
        Self { words, letters }
    }

    /// Returns the positions of the matching names.
    ///
    /// These are the names with all words or, if there are none, with all letters in their order.
    pub(crate) fn of<'n>(&self, names: &(impl Iterator<Item = &'n str> + Clone)) -> Vec<usize> {
        let with = |is_meant: &dyn Fn(&str) -> bool| -> Vec<usize> {
            let names = names.clone().enumerate();
            names.filter(|(_, name)| is_meant(name)).map(|(at, _)| at).collect()
        };
        let found = with(&|name| {
            let name = name.to_lowercase();
            self.words.iter().all(|word| name.contains(word))
        });
        if !found.is_empty() { found } else { with(&|name| self.has_letters(name)) }
    }

    fn has_letters(&self, name: &str) -> bool {
        let mut letters = name.chars().flat_map(char::to_lowercase);
        self.letters.iter().all(|wanted| letters.any(|letter| letter == *wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_anywhere_and_letters_in_their_order() {
        let names = ["layers.0.attn.q_proj", "layers.1.mlp.up", "Norm.weight"];
        let found = |text: &str| Wanted::new(text).of(&names.iter().copied());
        assert_eq!(found(""), [0, 1, 2]);
        assert_eq!(found("proj layers"), [0]);
        assert_eq!(found("norm"), [2]);
        assert_eq!(found("l1up"), [1], "letters");
        assert_eq!(found("xyz"), [0; 0]);
    }
}
