//! Numbers and names as reports show them to people.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Bytes in decimal units: `1.5 GB`.
#[must_use]
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KB", "MB", "GB", "TB", "PB", "EB"];
    if number < 1000 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1000.0;
    let mut unit = 0;
    // 999.95 would be shown as 1000.0.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A count with a prefix of a thousand, a million and so on: `1.5 G`.
#[must_use]
pub fn metric(number: u64) -> String {
    const PREFIXES: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let mut value = number as f64;
    let mut prefix = 0;
    while value >= 999.95 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    if prefix == 0 { format!("{number} ") } else { format!("{value:.1} {}", PREFIXES[prefix]) }
}

/// A name in at most `width` characters: the middle of a longer one is left out, since beginnings
/// and ends tell more.
#[must_use]
pub fn shortened(name: &str, width: usize) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= width || width == 0 {
        return name.to_owned();
    }
    let tail = (width - 1).div_ceil(2);
    let head = width - 1 - tail;
    let (head, tail) = (&chars[..head], &chars[chars.len() - tail..]);
    format!("{}…{}", head.iter().collect::<String>(), tail.iter().collect::<String>())
}

/// Returns the names in at most `width` characters each.
///
/// The middle of a long name is left out, as by [`shortened`]. Names that this makes equal lose
/// their beginning instead, if that tells them apart, and otherwise stay whole.
#[must_use]
pub fn shortened_apart(names: &[String], width: usize) -> Vec<String> {
    let count = |names: &[String]| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        names.iter().for_each(|name| *counts.entry(name.clone()).or_default() += 1);
        counts
    };
    let cut: Vec<String> = names.iter().map(|name| shortened(name, width)).collect();
    let tails: Vec<String> = names.iter().map(|name| tail(name, width)).collect();
    let (of_cut, of_tails) = (count(&cut), count(&tails));
    let is_single = |counts: &BTreeMap<String, usize>, name: &str| counts.get(name) == Some(&1);
    cut.into_iter()
        .zip(tails)
        .zip(names)
        .map(|((cut, tail), name)| match () {
            () if is_single(&of_cut, &cut) => cut,
            () if is_single(&of_tails, &tail) => tail,
            () => name.clone(),
        })
        .collect()
}

/// Returns the end of a name in at most `width` characters.
fn tail(name: &str, width: usize) -> String {
    let len = name.chars().count();
    if len <= width || width == 0 {
        return name.to_owned();
    }
    core::iter::once('…').chain(name.chars().skip(len + 1 - width)).collect()
}

/// A statistic in at most nine characters: four digits, in exponents when small or large.
#[must_use]
pub fn statistic(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        0.0 => "0".to_owned(),
        1e-3..10.0 => format!("{value:.4}"),
        10.0..100.0 => format!("{value:.3}"),
        100.0..1e5 => format!("{value:.1}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(999_999), "1.0 MB");
        assert_eq!(bytes(1_500_000_000), "1.5 GB");
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shortened("layers.10.attn.q_proj.weight", 15), "layers.….weight");
        assert_eq!(shortened("größe", 5), "größe");
        assert_eq!(shortened("größe", 4), "g…ße");
        assert_eq!(shortened("weight", 1), "…");
    }

    #[test]
    fn different_names_stay_different_when_they_are_shortened() {
        let names = ["layers.0.input_layernorm", "layers.0.post_layernorm", "layers.0.mlp"];
        let names = names.map(ToOwned::to_owned);
        assert_eq!(shortened(&names[0], 16), shortened(&names[1], 16));
        assert_eq!(
            shortened_apart(&names, 16),
            ["…input_layernorm", "….post_layernorm", "layers.0.mlp"]
        );
        let alike = ["model.layers.0.a.weight", "model.layers.1.a.weight"].map(ToOwned::to_owned);
        assert_eq!(shortened_apart(&alike, 8), alike);
        let again = [names[0].clone(), names[0].clone()];
        assert_eq!(shortened_apart(&again, 40), again);
    }

    #[test]
    fn statistics_fit_nine_characters() {
        let cases = [
            (0.0, "0"),
            (-5.97896, "-5.9790"),
            (11.21, "11.210"),
            (4095.61, "4095.6"),
            (-0.0000267, "-2.67e-5"),
            (-1.7e308, "-1.70e308"),
            (99_999.96, "100000.0"),
        ];
        for (value, expected) in cases {
            assert_eq!(statistic(value), expected);
            assert!(statistic(value).len() <= 9);
        }
    }
}
