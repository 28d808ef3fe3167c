//! The tables of the families that apr knows by itself.
//!
//! Reading one takes about a millisecond, and most runs need one of them. So each is read when it
//! is first asked for. What the family is called is known before that, and the text of its table is
//! searched for what else the family must have.

use std::sync::OnceLock;

use memchr::memmem;

use crate::family::Family;

/// Texts of the tables. Bases precede the families that extend them.
///
/// If the names alone do not decide between families, the first one is used.
const TEXTS: [&str; 155] = [
    include_str!("../families/llama.toml"),
    include_str!("../families/mistral.toml"),
    include_str!("../families/ministral.toml"),
    include_str!("../families/qwen2.toml"),
    include_str!("../families/qwen3.toml"),
    include_str!("../families/qwen3_5.toml"),
    include_str!("../families/qwen3_5_moe.toml"),
    include_str!("../families/qwen3_next.toml"),
    include_str!("../families/bamba.toml"),
    include_str!("../families/falcon_h1.toml"),
    include_str!("../families/nemotron_h.toml"),
    include_str!("../families/jamba.toml"),
    include_str!("../families/lfm2.toml"),
    include_str!("../families/lfm2_moe.toml"),
    include_str!("../families/afmoe.toml"),
    include_str!("../families/cwm.toml"),
    include_str!("../families/jais2.toml"),
    include_str!("../families/internlm3.toml"),
    include_str!("../families/iquestcoder.toml"),
    include_str!("../families/gemma.toml"),
    include_str!("../families/gemma2.toml"),
    include_str!("../families/gemma3.toml"),
    include_str!("../families/gemma3n.toml"),
    include_str!("../families/gemma4.toml"),
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
    include_str!("../families/deit.toml"),
    include_str!("../families/vit_msn.toml"),
    include_str!("../families/ijepa.toml"),
    include_str!("../families/vit_mae.toml"),
    include_str!("../families/beit.toml"),
    include_str!("../families/data2vec_vision.toml"),
    include_str!("../families/clip.toml"),
    include_str!("../families/wav2vec2.toml"),
    include_str!("../families/unispeech_sat.toml"),
    include_str!("../families/data2vec_audio.toml"),
    include_str!("../families/granite.toml"),
    include_str!("../families/granite_swa.toml"),
    include_str!("../families/exaone.toml"),
    include_str!("../families/hyperclovax.toml"),
    include_str!("../families/smollm3.toml"),
    include_str!("../families/minicpm.toml"),
    include_str!("../families/cohere.toml"),
    include_str!("../families/cohere2.toml"),
    include_str!("../families/olmo2.toml"),
    include_str!("../families/flex_olmo.toml"),
    include_str!("../families/stablelm.toml"),
    include_str!("../families/glm4.toml"),
    include_str!("../families/starcoder2.toml"),
    include_str!("../families/modernbert.toml"),
    include_str!("../families/siglip.toml"),
    include_str!("../families/chinese_clip.toml"),
    include_str!("../families/falcon.toml"),
    include_str!("../families/deepseek_v2.toml"),
    include_str!("../families/minicpm3.toml"),
    include_str!("../families/deepseek_v3.toml"),
    include_str!("../families/youtu.toml"),
    include_str!("../families/gpt_oss.toml"),
    include_str!("../families/resnet.toml"),
    include_str!("../families/regnet.toml"),
    include_str!("../families/convnext.toml"),
    include_str!("../families/convnextv2.toml"),
    include_str!("../families/dinov2.toml"),
    include_str!("../families/dinov2_with_registers.toml"),
    include_str!("../families/mamba.toml"),
    include_str!("../families/mamba2.toml"),
    include_str!("../families/falcon_mamba.toml"),
    include_str!("../families/swin.toml"),
    include_str!("../families/hubert.toml"),
    include_str!("../families/bart.toml"),
    include_str!("../families/mbart.toml"),
    include_str!("../families/marian.toml"),
    include_str!("../families/electra.toml"),
    include_str!("../families/albert.toml"),
    include_str!("../families/mpnet.toml"),
    include_str!("../families/deberta_v2.toml"),
    include_str!("../families/nomic_bert.toml"),
    include_str!("../families/opt.toml"),
    include_str!("../families/bloom.toml"),
    include_str!("../families/gptj.toml"),
    include_str!("../families/olmoe.toml"),
    include_str!("../families/exaone4.toml"),
    include_str!("../families/qwen2_vl.toml"),
    include_str!("../families/qwen3_vl.toml"),
    include_str!("../families/qwen3_vl_moe.toml"),
    include_str!("../families/seed_oss.toml"),
    include_str!("../families/arcee.toml"),
    include_str!("../families/apertus.toml"),
    include_str!("../families/olmo.toml"),
    include_str!("../families/ministral3.toml"),
    include_str!("../families/ernie4_5.toml"),
    include_str!("../families/hunyuan_v1_dense.toml"),
    include_str!("../families/hunyuan_v1_moe.toml"),
    include_str!("../families/bitnet.toml"),
    include_str!("../families/nemotron.toml"),
    include_str!("../families/helium.toml"),
    include_str!("../families/glm.toml"),
    include_str!("../families/minimax_m2.toml"),
    include_str!("../families/glm4_moe.toml"),
    include_str!("../families/solar_open.toml"),
    include_str!("../families/dots1.toml"),
    include_str!("../families/llama4.toml"),
    include_str!("../families/data2vec_text.toml"),
    include_str!("../families/ernie.toml"),
    include_str!("../families/xlm_roberta_xl.toml"),
    include_str!("../families/roberta_prelayernorm.toml"),
    include_str!("../families/eurobert.toml"),
    include_str!("../families/pegasus.toml"),
    include_str!("../families/blenderbot.toml"),
    include_str!("../families/vaultgemma.toml"),
    include_str!("../families/glm4_moe_lite.toml"),
    include_str!("../families/ernie4_5_moe.toml"),
    include_str!("../families/exaone_moe.toml"),
    include_str!("../families/gpt_bigcode.toml"),
    include_str!("../families/gpt_neo.toml"),
    include_str!("../families/openai_gpt.toml"),
    include_str!("../families/persimmon.toml"),
    include_str!("../families/biogpt.toml"),
    include_str!("../families/modernbert_decoder.toml"),
    include_str!("../families/m2m_100.toml"),
    include_str!("../families/xglm.toml"),
    include_str!("../families/granitemoe.toml"),
    include_str!("../families/granitemoeshared.toml"),
    include_str!("../families/granitemoehybrid.toml"),
    include_str!("../families/phimoe.toml"),
    include_str!("../families/wavlm.toml"),
    include_str!("../families/sew.toml"),
    include_str!("../families/ast.toml"),
    include_str!("../families/swinv2.toml"),
    include_str!("../families/yolos.toml"),
    include_str!("../families/sarvam_moe.toml"),
    include_str!("../families/sarvam_mla.toml"),
    include_str!("../families/hy_v3.toml"),
    include_str!("../families/mellum.toml"),
    include_str!("../families/kolibri1.toml"),
    include_str!("../families/flint.toml"),
    include_str!("../families/axk1.toml"),
    include_str!("../families/granitemoe_swa.toml"),
    include_str!("../families/laguna.toml"),
    include_str!("../families/cohere2_moe.toml"),
    include_str!("../families/mimo_v2_flash.toml"),
    include_str!("../families/codegen.toml"),
    include_str!("../families/nanochat.toml"),
    include_str!("../families/lfm3.toml"),
];

/// Parts for images, of models whose language model is of another family. A table extends that of
/// its tower, if there is one, or of a part above it.
const VISION: [&str; 12] = [
    include_str!("../families/vision/llava.toml"),
    include_str!("../families/vision/gemma3.toml"),
    include_str!("../families/vision/gemma4.toml"),
    include_str!("../families/vision/idefics3.toml"),
    include_str!("../families/vision/qwen2_vl.toml"),
    include_str!("../families/vision/qwen3_vl.toml"),
    include_str!("../families/vision/internvl.toml"),
    include_str!("../families/vision/mistral3.toml"),
    include_str!("../families/vision/paligemma.toml"),
    include_str!("../families/vision/llava_next.toml"),
    include_str!("../families/vision/llava_siglip.toml"),
    include_str!("../families/vision/llava_pixtral.toml"),
];

/// The families as far as they have been read: most runs need one of them.
static READ: [OnceLock<Family>; TEXTS.len()] = [const { OnceLock::new() }; TEXTS.len()];

/// Facts about a table that are known before it is parsed.
pub(crate) struct Table {
    at: usize,
    /// The family's own name, then what else configurations and users call it.
    names: Vec<&'static str>,
    /// Values of `general.architecture` in the family's GGUF files, if the table itself lists them.
    gguf: Vec<&'static str>,
    /// `true` if the table declares that there are no GGUF files of the family.
    is_refused: bool,
    /// Position of the table that it extends.
    base: Option<usize>,
}

/// The tables, in the order in which families are tried.
pub(crate) fn tables() -> &'static [Table] {
    static TABLES: OnceLock<Vec<Table>> = OnceLock::new();

    TABLES.get_or_init(|| {
        let mut tables: Vec<Table> = Vec::with_capacity(TEXTS.len());
        for (at, text) in TEXTS.into_iter().enumerate() {
            // In TOML, keys of the file itself come before its first table.
            let head = text.split("\n[").next().unwrap_or(text);
            let values = |keys: &'static [&str]| {
                let says = |line: &&str| keys.iter().any(|key| line.starts_with(key));
                head.lines().filter(says).flat_map(quoted)
            };
            let names: Vec<_> = values(&["name = ", "model_types = ", "aliases = "]).collect();
            let base = values(&["extends = "]).next();
            let base = base.and_then(|base| tables.iter().position(|table| table.name() == base));
            let gguf = section(text, "gguf");
            let refuses = gguf.lines().any(|line| line.starts_with("refused = "));
            let gguf: Vec<_> = gguf.lines().flat_map(architectures).collect();
            let is_refused = refuses && gguf.is_empty();
            tables.push(Table { at, names, gguf, is_refused, base });
        }
        tables
    })
}

/// The tables of parts for images. They are read together, for a model that has such a part.
///
/// # Panics
/// When a table is malformed; a test reads them all.
pub(crate) fn vision_parts() -> &'static [Family] {
    static PARTS: OnceLock<Vec<Family>> = OnceLock::new();

    let table = |name: &str| tables().iter().find(|table| table.name() == name).map(Table::family);
    PARTS.get_or_init(|| {
        let mut parts: Vec<Family> = Vec::new();
        for text in VISION {
            let part = |name: &str| parts.iter().find(|part| part.name() == name);
            match Family::read(text, |name| table(name).or_else(|| part(name))) {
                Ok(family) => parts.push(family),
                Err(_) => unreachable!("a table of a part for images is malformed"),
            }
        }
        parts
    })
}

/// Returns the lines of a section, without the lines of its subsections.
fn section(text: &'static str, name: &str) -> &'static str {
    let Some((_, after)) = text.split_once(&format!("\n[{name}]\n")) else { return "" };
    after.split("\n[").next().unwrap_or(after)
}

/// Returns the values that a line assigns to the key `architecture`: `architecture = "t5"`.
fn architectures(line: &str) -> impl Iterator<Item = &str> {
    let values = line.split("architecture = \"").skip(1);
    values.filter_map(|value| value.split('"').next())
}

/// Returns `true` if the table of a built-in family contains a word.
pub(crate) fn has_word(family: &Family, word: &str) -> bool {
    let table = tables().iter().find(|table| table.name() == family.name());
    is_builtin(family) && table.is_some_and(|table| table.has_word(word))
}

/// Returns `true` if the family is built in.
pub(crate) fn is_builtin(family: &Family) -> bool {
    READ.iter().filter_map(OnceLock::get).any(|known| std::ptr::eq(known, family))
}

impl Table {
    /// Returns the family that the table describes.
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

    /// The family's own name.
    pub(crate) fn name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    /// Returns the names of the family in configurations and commands, its own name first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.iter().copied()
    }

    /// Returns `true` if a GGUF file of such a model can have this `general.architecture`.
    pub(crate) fn may_be_in_gguf(&self, architecture: &str) -> bool {
        // A table that names no architecture has its base's, unless it refuses them.
        let said = self.lineage().find(|table| table.is_refused || !table.gguf.is_empty());
        said.is_some_and(|table| table.gguf.contains(&architecture))
    }

    /// Returns `true` if the table, or a table that it extends, contains a word.
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
    use crate::Families;
    use crate::gguf::Gguf;

    #[test]
    fn a_family_that_is_found_by_name_has_its_own_table_read_and_those_it_extends() {
        const ALONE: &str = "APR_TEST_ALONE";
        const NAME: &str = "builtin::tests::\
            a_family_that_is_found_by_name_has_its_own_table_read_and_those_it_extends";

        // What has been read is kept for the whole process, in which other tests read everything.
        if std::env::var_os(ALONE).is_none() {
            let tests = std::env::current_exe().unwrap();
            let alone = std::process::Command::new(tests)
                .args(["--exact", NAME])
                .env(ALONE, "1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&alone.stdout);
            assert!(alone.status.success() && said.contains("1 passed"), "{said}");
            return;
        }

        let read = || -> Vec<_> {
            READ.iter().filter_map(OnceLock::get).map(|family| family.name().to_owned()).collect()
        };
        let families = Families::builtin();
        families.find("bert").unwrap();
        assert_eq!(read(), ["bert"]);
        // Mistral's table extends LLaMA's.
        families.find("mistral").unwrap();
        assert_eq!(read(), ["llama", "mistral", "bert"]);
    }

    #[test]
    fn names_and_bases_are_known_before_tables_are_read() {
        for table in tables() {
            let family = table.family();
            assert!(table.names().eq(family.names()), "{}", family.name());
            assert_eq!(table.name(), family.name());
            let base = table.base().map(|base| base.family().name());
            assert_eq!(base, family.file.extends.as_deref(), "{}", family.name());
        }
    }

    #[test]
    fn parts_for_images_are_of_no_model_by_themselves() {
        for part in vision_parts() {
            assert!(!part.file.vision_of.is_empty(), "{}", part.name());
            assert!(part.file.images.is_some(), "{}", part.name());
            assert!(part.file.model_types.is_empty(), "{}", part.name());
        }
    }

    #[test]
    fn architectures_of_gguf_are_known_before_tables_are_read() {
        let all: Vec<&str> = tables()
            .iter()
            .filter_map(|table| table.family().gguf.as_ref())
            .flat_map(Gguf::architectures)
            .collect();
        assert!(all.contains(&"llama") && all.contains(&"t5encoder"), "{all:?}");
        for table in tables() {
            let family = table.family();
            for architecture in &all {
                let is_it = family.is_gguf_architecture(architecture);
                assert_eq!(table.may_be_in_gguf(architecture), is_it, "{}", family.name());
            }
        }
    }
}
