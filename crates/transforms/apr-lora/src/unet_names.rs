//! The two names of each module of Stable Diffusion's UNet: that of diffusers, by levels of
//! resolution (`down_blocks.1.attentions.0`), and that of the first implementation, by one number
//! for all blocks (`input_blocks.4.1`).

use std::collections::BTreeMap;

/// Modules outside the blocks: diffusers' name, and the other one.
const OUTSIDE: [(&str, &str); 7] = [
    ("time_embedding.linear_1", "time_embed.0"),
    ("time_embedding.linear_2", "time_embed.2"),
    ("add_embedding.linear_1", "label_emb.0.0"),
    ("add_embedding.linear_2", "label_emb.0.2"),
    ("conv_in", "input_blocks.0.0"),
    ("conv_norm_out", "out.0"),
    ("conv_out", "out.2"),
];

/// Modules of a residual block.
const RESIDUAL: [(&str, &str); 6] = [
    ("norm1", "in_layers.0"),
    ("conv1", "in_layers.2"),
    ("time_emb_proj", "emb_layers.1"),
    ("norm2", "out_layers.0"),
    ("conv2", "out_layers.3"),
    ("conv_shortcut", "skip_connection"),
];

/// The blocks of one level of resolution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Level {
    /// Number of residual blocks.
    blocks: usize,
    /// `true` if attention follows them.
    attends: bool,
    /// `true` if the level ends with a change of resolution.
    resamples: bool,
}

/// The levels of a UNet, from its input to the middle and from there to its output.
#[derive(Debug, Default, PartialEq, Eq)]
struct Levels {
    down: Vec<Level>,
    up: Vec<Level>,
}

/// Returns the other name of each module: diffusers' if the modules have the first implementation's
/// names, and the other way round; `None` for modules of other models.
pub(crate) fn other_names(modules: &[&str]) -> Vec<Option<String>> {
    let is_diffusers = modules.iter().any(|module| module.starts_with("down_blocks."));
    let is_first = modules.iter().any(|module| module.starts_with("input_blocks."));
    if is_diffusers == is_first {
        return vec![None; modules.len()];
    }
    let levels = if is_first { Levels::of_first(modules) } else { Levels::of_diffusers(modules) };
    let other = |module: &&str| match is_first {
        true => levels.diffusers_name(module),
        false => levels.first_name(module),
    };
    modules.iter().map(other).collect()
}

/// Splits `HEAD.NUMBER.REST`, of which the rest may be empty.
fn numbered<'n>(name: &'n str, head: &str) -> Option<(usize, &'n str)> {
    let rest = name.strip_prefix(head)?.strip_prefix('.')?;
    let (number, rest) = rest.split_once('.').unwrap_or((rest, ""));
    // No model has as many blocks, and a name is not a reason to allocate.
    Some((number.parse().ok().filter(|number| *number < 1000)?, rest))
}

/// Returns the name of a module of a residual block in the other column of [`RESIDUAL`].
fn residual(rest: &str, to_first: bool) -> Option<&'static str> {
    let pairs = RESIDUAL.iter();
    match to_first {
        true => pairs.clone().find(|(name, _)| *name == rest).map(|(_, other)| *other),
        false => pairs.clone().find(|(_, name)| *name == rest).map(|(other, _)| *other),
    }
}

impl Levels {
    fn of_diffusers(modules: &[&str]) -> Self {
        let side = |head: &str, resampler: &str| {
            let mut levels: BTreeMap<usize, Level> = BTreeMap::new();
            for module in modules {
                let Some((level, rest)) = numbered(module, head) else { continue };
                let level = levels.entry(level).or_default();
                if let Some((block, _)) = numbered(rest, "resnets") {
                    level.blocks = level.blocks.max(block + 1);
                }
                level.attends |= rest.starts_with("attentions.");
                level.resamples |= rest.starts_with(resampler);
            }
            levels.into_values().collect()
        };
        Self { down: side("down_blocks", "downsamplers."), up: side("up_blocks", "upsamplers.") }
    }

    fn of_first(modules: &[&str]) -> Self {
        let side = |head: &str, resampler: fn(&str) -> bool| {
            // Of each block: whether it has a residual block, attention, a change of resolution.
            let mut blocks: BTreeMap<usize, Level> = BTreeMap::new();
            for module in modules {
                let Some((block, rest)) = numbered(module, head) else { continue };
                let known = blocks.entry(block).or_default();
                known.blocks |= usize::from(rest.starts_with("0.in_layers."));
                known.attends |= rest.starts_with("1.proj_in");
                known.resamples |= resampler(rest);
            }
            let mut levels = vec![Level::default()];
            for block in blocks.into_values() {
                if let Some(level) = levels.last_mut() {
                    level.blocks += block.blocks;
                    level.attends |= block.attends;
                    level.resamples |= block.resamples;
                }
                if block.resamples {
                    levels.push(Level::default());
                }
            }
            levels.retain(|level| level.blocks > 0);
            levels
        };
        let is_down = |rest: &str| rest == "0.op";
        let is_up = |rest: &str| rest == "1.conv" || rest == "2.conv";
        Self { down: side("input_blocks", is_down), up: side("output_blocks", is_up) }
    }

    /// Number of the first block of a level. Blocks of the first implementation are also the
    /// input's convolution and, towards the middle, changes of resolution.
    fn start(levels: &[Level], level: usize, is_down: bool) -> usize {
        let count = |level: &Level| level.blocks + usize::from(is_down && level.resamples);
        usize::from(is_down) + levels.iter().take(level).map(count).sum::<usize>()
    }

    /// Level and position in it of a block of the first implementation.
    fn level_of(levels: &[Level], block: usize, is_down: bool) -> Option<(usize, usize)> {
        let starts = (0..levels.len()).map(|level| Self::start(levels, level, is_down));
        let (level, start) = starts.enumerate().take_while(|(_, start)| *start <= block).last()?;
        Some((level, block - start))
    }

    fn first_name(&self, module: &str) -> Option<String> {
        if let Some((_, other)) = OUTSIDE.iter().find(|(name, _)| *name == module) {
            return Some((*other).to_owned());
        }
        if let Some(rest) = module.strip_prefix("mid_block.") {
            return match (numbered(rest, "resnets"), numbered(rest, "attentions")) {
                (Some((at, rest)), _) => {
                    Some(format!("middle_block.{}.{}", 2 * at, residual(rest, true)?))
                }
                (_, Some((at, rest))) => Some(format!("middle_block.{}.{rest}", 2 * at + 1)),
                _ => None,
            };
        }
        let is_down = module.starts_with("down_blocks.");
        let (head, levels, first) = match is_down {
            true => ("down_blocks", &self.down, "input_blocks"),
            false => ("up_blocks", &self.up, "output_blocks"),
        };
        let (at, rest) = numbered(module, head)?;
        let (level, start) = (levels.get(at)?, Self::start(levels, at, is_down));
        if let Some((block, rest)) = numbered(rest, "resnets") {
            return Some(format!("{first}.{}.0.{}", start + block, residual(rest, true)?));
        }
        if let Some((block, rest)) = numbered(rest, "attentions") {
            return Some(format!("{first}.{}.1.{rest}", start + block));
        }
        match rest {
            "downsamplers.0.conv" => Some(format!("{first}.{}.0.op", start + level.blocks)),
            "upsamplers.0.conv" => {
                let place = 1 + usize::from(level.attends);
                Some(format!("{first}.{}.{place}.conv", start + level.blocks.checked_sub(1)?))
            }
            _ => None,
        }
    }

    fn diffusers_name(&self, module: &str) -> Option<String> {
        if let Some((other, _)) = OUTSIDE.iter().find(|(_, name)| *name == module) {
            return Some((*other).to_owned());
        }
        if let Some((at, rest)) = numbered(module, "middle_block") {
            return match at % 2 {
                0 => Some(format!("mid_block.resnets.{}.{}", at / 2, residual(rest, false)?)),
                _ => Some(format!("mid_block.attentions.{}.{rest}", at / 2)),
            };
        }
        let is_down = module.starts_with("input_blocks.");
        let (head, levels, other) = match is_down {
            true => ("input_blocks", &self.down, "down_blocks"),
            false => ("output_blocks", &self.up, "up_blocks"),
        };
        let (block, rest) = numbered(module, head)?;
        let (level, at) = Self::level_of(levels, block, is_down)?;
        match rest {
            "0.op" => return Some(format!("{other}.{level}.downsamplers.0.conv")),
            "1.conv" | "2.conv" => return Some(format!("{other}.{level}.upsamplers.0.conv")),
            _ => {}
        }
        match rest.split_once('.')? {
            ("0", rest) => Some(format!("{other}.{level}.resnets.{at}.{}", residual(rest, false)?)),
            ("1", rest) => Some(format!("{other}.{level}.attentions.{at}.{rest}")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Modules of Stable Diffusion 1.5, as the two implementations name them.
    const KNOWN: [(&str, &str); 12] = [
        ("conv_in", "input_blocks.0.0"),
        ("down_blocks.0.resnets.0.conv1", "input_blocks.1.0.in_layers.2"),
        ("down_blocks.0.attentions.0.proj_in", "input_blocks.1.1.proj_in"),
        ("down_blocks.0.resnets.1.conv_shortcut", "input_blocks.2.0.skip_connection"),
        ("down_blocks.0.downsamplers.0.conv", "input_blocks.3.0.op"),
        ("down_blocks.1.resnets.1.time_emb_proj", "input_blocks.5.0.emb_layers.1"),
        ("mid_block.attentions.0.proj_out", "middle_block.1.proj_out"),
        ("mid_block.resnets.1.norm2", "middle_block.2.out_layers.0"),
        ("up_blocks.0.resnets.2.conv2", "output_blocks.2.0.out_layers.3"),
        ("up_blocks.0.upsamplers.0.conv", "output_blocks.2.1.conv"),
        ("up_blocks.1.attentions.2.proj_in", "output_blocks.5.1.proj_in"),
        ("up_blocks.1.upsamplers.0.conv", "output_blocks.5.2.conv"),
    ];

    fn unet() -> Vec<String> {
        let mut names = vec!["conv_in".to_owned(), "time_embedding.linear_1".to_owned()];
        for level in 0..4 {
            for block in 0..2 {
                names.push(format!("down_blocks.{level}.resnets.{block}.conv1"));
                names.push(format!("down_blocks.{level}.resnets.{block}.conv_shortcut"));
                names.push(format!("down_blocks.{level}.resnets.{block}.time_emb_proj"));
                if level < 3 {
                    names.push(format!("down_blocks.{level}.attentions.{block}.proj_in"));
                }
            }
            if level < 3 {
                names.push(format!("down_blocks.{level}.downsamplers.0.conv"));
            }
            for block in 0..3 {
                names.push(format!("up_blocks.{level}.resnets.{block}.conv1"));
                names.push(format!("up_blocks.{level}.resnets.{block}.conv2"));
                if level > 0 {
                    names.push(format!("up_blocks.{level}.attentions.{block}.proj_in"));
                }
            }
            if level < 3 {
                names.push(format!("up_blocks.{level}.upsamplers.0.conv"));
            }
        }
        names.extend(
            ["mid_block.attentions.0.proj_out", "mid_block.resnets.1.norm2"].map(Into::into),
        );
        names
    }

    #[test]
    fn each_name_is_the_other_of_its_other() {
        let names = unet();
        let modules: Vec<&str> = names.iter().map(String::as_str).collect();
        let first: Vec<String> =
            other_names(&modules).into_iter().map(|name| name.expect("a block")).collect();
        for (name, expected) in KNOWN {
            let at = modules.iter().position(|module| *module == name).expect(name);
            assert_eq!(first[at], expected, "{name}");
        }
        let first: Vec<&str> = first.iter().map(String::as_str).collect();
        let back: Vec<String> =
            other_names(&first).into_iter().map(|name| name.expect("a block")).collect();
        assert_eq!(back, names);
    }

    #[test]
    fn names_of_other_models_have_no_other() {
        for name in ["double_blocks.0.img_attn.qkv", "layers.0.q", "input_blocks.x.0", ""] {
            assert_eq!(other_names(&[name]), [None], "{name}");
        }
        let modules = ["down_blocks.0.resnets.0.conv1", "down_blocks.99999999999.resnets.0.conv1"];
        assert_eq!(other_names(&modules)[1], None);
    }
}
