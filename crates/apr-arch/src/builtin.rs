//! The tables of the families that apr knows by itself.
//!
//! Reading one takes about a millisecond, and most runs need one of them. So each is read when it
//! is first asked for, and its text is searched before that for what the family must have.

use std::sync::OnceLock;

use memchr::memmem;

use crate::family::Family;

/// Bases before the families that extend them. Where names alone can't tell, the first family wins.
const TEXTS: [&str; 37] = [
    include_str!("../families/llama.toml"),
    include_str!("../families/mistral.toml"),
    include_str!("../families/qwen2.toml"),
    include_str!("../families/qwen3.toml"),
    include_str!("../families/gemma.toml"),
    include_str!("../families/gemma2.toml"),
    include_str!("../families/gemma3.toml"),
    include_str!("../families/phi3.toml"),
    include_str!("../families/mixtral.toml"),
    include_str!("../families/qwen2_moe.toml"),
    include_str!("../families/qwen3_moe.toml"),
    include_str!("../families/phi.toml"),
    include_str!("../families/gpt2.toml"),
    include_str!("../families/gpt_neox.toml"),
    include_str!("../families/bert.toml"),
    include_str!("../families/roberta.toml"),
    include_str!("../families/distilbert.toml"),
    include_str!("../families/t5.toml"),
    include_str!("../families/whisper.toml"),
    include_str!("../families/vit.toml"),
    include_str!("../families/clip.toml"),
    include_str!("../families/wav2vec2.toml"),
    include_str!("../families/granite.toml"),
    include_str!("../families/smollm3.toml"),
    include_str!("../families/minicpm.toml"),
    include_str!("../families/cohere.toml"),
    include_str!("../families/cohere2.toml"),
    include_str!("../families/olmo2.toml"),
    include_str!("../families/stablelm.toml"),
    include_str!("../families/glm4.toml"),
    include_str!("../families/starcoder2.toml"),
    include_str!("../families/modernbert.toml"),
    include_str!("../families/siglip.toml"),
    include_str!("../families/falcon.toml"),
    include_str!("../families/deepseek_v2.toml"),
    include_str!("../families/deepseek_v3.toml"),
    include_str!("../families/gpt_oss.toml"),
];

/// The families as far as they have been read: most runs need one of them.
static READ: [OnceLock<Family>; TEXTS.len()] = [const { OnceLock::new() }; TEXTS.len()];

/// What is known of a table before it is read.
pub(crate) struct Table {
    at: usize,
    /// What stands in quotes before the first section: the family's names, among others.
    head: Vec<&'static str>,
    /// Position of the table that it extends.
    base: Option<usize>,
}

/// The tables, in the order in which families are tried.
pub(crate) fn tables() -> &'static [Table] {
    static TABLES: OnceLock<Vec<Table>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut named: Vec<&str> = Vec::with_capacity(TEXTS.len());
        let table = |(at, text): (usize, &'static str)| {
            let head = text.split("\n[").next().unwrap_or(text);
            let value = |key: &str| quoted(head.lines().find(|line| line.starts_with(key))?).next();
            let base =
                value("extends = ").and_then(|base| named.iter().position(|name| *name == base));
            named.push(value("name = ").unwrap_or_default());
            Table { at, head: head.lines().flat_map(quoted).collect(), base }
        };
        TEXTS.into_iter().enumerate().map(table).collect()
    })
}

/// Whether this is a family of a table here.
pub(crate) fn is_builtin(family: &Family) -> bool {
    READ.iter().filter_map(OnceLock::get).any(|known| std::ptr::eq(known, family))
}

impl Table {
    /// The family.
    ///
    /// # Panics
    /// When the table is malformed; a test reads them all, so none that is leaves this repository.
    pub(crate) fn family(&self) -> &Family {
        READ[self.at].get_or_init(|| {
            match Family::read(TEXTS[self.at], |_| self.base().map(Self::family)) {
                Ok(family) => family,
                Err(_) => unreachable!("the table {} is malformed", self.at),
            }
        })
    }

    /// Whether a name stands in quotes in the table's head.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.head.contains(&name)
    }

    /// What stands in quotes in the table's head.
    pub(crate) fn head(&self) -> impl Iterator<Item = &'static str> {
        self.head.iter().copied()
    }

    /// Whether a name stands in quotes anywhere in the table, or in one that it extends.
    pub(crate) fn quotes(&self, name: &str) -> bool {
        self.has_word(&format!("\"{name}\""))
    }

    /// Whether a word stands anywhere in the table, or in one that it extends.
    pub(crate) fn has_word(&self, word: &str) -> bool {
        let finder = memmem::Finder::new(word);
        self.lineage().any(|table| finder.find(TEXTS[table.at].as_bytes()).is_some())
    }

    /// The table and those it extends.
    fn lineage(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |table| table.base())
    }

    /// The table that it extends.
    fn base(&self) -> Option<&'static Self> {
        self.base.map(|at| &tables()[at])
    }
}

fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bases_are_known_before_tables_are_read() {
        for table in tables() {
            let family = table.family();
            assert!(family.names().all(|name| table.mentions(name)), "{}", family.name());
            let base = table.base().map(|base| base.family().name());
            assert_eq!(base, family.file.extends.as_deref(), "{}", family.name());
        }
    }
}
