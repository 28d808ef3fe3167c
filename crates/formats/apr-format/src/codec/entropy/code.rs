//! Code lengths and the codes that follow from them.

use super::MAX_LEN;

/// Code lengths of the 256 symbols; 0 for symbols without a code.
pub(super) type Lengths = [u8; 256];

/// The lengths, at most `limit`, that make the fewest bits of symbols that occur `counts` times:
/// package-merge (Larmore and Hirschberg, 1990). `None` when fewer than two symbols occur.
///
/// `limit` is 8 to [`MAX_LEN`], enough for 256 symbols.
pub(super) fn shortest(counts: &[u32; 256], limit: usize) -> Option<Lengths> {
    let mut leaves: [(u64, u8); 256] = [(0, 0); 256];
    let mut used = 0;
    for (symbol, &count) in (0..=255).zip(counts) {
        if count > 0 {
            leaves[used] = (u64::from(count), symbol);
            used += 1;
        }
    }

    let leaves = &mut leaves[..used];
    if leaves.len() < 2 {
        return None;
    }

    leaves.sort_unstable();

    let mut is_leaf = [[false; 512]; MAX_LEN];
    let mut weights = [0_u64; 512];
    let mut listed = 0;
    for level in &mut is_leaf[..limit] {
        listed = merge_level(leaves, &mut weights, listed, level);
    }

    // The cheapest 2 (used - 1) entries of the last list: each leaf among them, or in a package
    // among them, is a bit of its symbol's code.
    let mut lengths = [0; 256];
    let mut taken = 2 * (leaves.len() - 1);
    for level in is_leaf[..limit].iter().rev() {
        let taken_leaves = level[..taken].iter().filter(|&&is_leaf| is_leaf).count();
        for &(_, symbol) in &leaves[..taken_leaves] {
            lengths[usize::from(symbol)] += 1;
        }
        taken = 2 * (taken - taken_leaves);
    }

    Some(lengths)
}

/// Makes the next level's list, ascending by weight: the leaves, merged with packages of two
/// neighbours each of the `listed` previous weights. `is_leaf` marks the leaves. Returns the length
/// of the list.
#[inline]
fn merge_level(
    leaves: &[(u64, u8)],
    weights: &mut [u64; 512],
    listed: usize,
    is_leaf: &mut [bool; 512],
) -> usize {
    let mut packages = [0_u64; 256];
    for (package, pair) in packages.iter_mut().zip(weights[..listed].chunks_exact(2)) {
        *package = pair[0] + pair[1];
    }

    let packages = &packages[..listed / 2];
    let listed = leaves.len() + packages.len();
    let (mut leaf, mut package) = (0, 0);
    for (weight, is_leaf) in weights[..listed].iter_mut().zip(is_leaf) {
        *is_leaf =
            package == packages.len() || leaf < leaves.len() && leaves[leaf].0 <= packages[package];
        if *is_leaf {
            *weight = leaves[leaf].0;
            leaf += 1;
        } else {
            *weight = packages[package];
            package += 1;
        }
    }

    listed
}

/// Bits that the symbols take.
pub(super) fn coded_bits(counts: &[u32; 256], lengths: &Lengths) -> u64 {
    counts.iter().zip(lengths).map(|(&count, &length)| u64::from(count) * u64::from(length)).sum()
}

/// Calls `assign(symbol, length, code)` for every symbol that has a code, the code's first bit in
/// bit 0. `false`, and no call, unless the code is complete.
pub(super) fn assign_codes(lengths: &Lengths, mut assign: impl FnMut(u8, u8, u16)) -> bool {
    let mut of_length = [0_u16; MAX_LEN + 1];
    for &length in lengths {
        of_length[usize::from(length).min(MAX_LEN)] += u16::from(length > 0);
    }

    let mut next = [0_u16; MAX_LEN + 1];
    let mut code = 0;
    for (length, &count) in of_length.iter().enumerate().skip(1) {
        code <<= 1;
        next[length] = code;
        code += count;
        if code > 1 << length {
            return false;
        }
    }

    if code != 1 << MAX_LEN {
        return false;
    }

    for (symbol, &length) in (0..=255).zip(lengths) {
        if length > 0 {
            let code = &mut next[usize::from(length)];
            assign(symbol, length, code.reverse_bits() >> (16 - length));
            *code += 1;
        }
    }

    true
}
