//! Tensors of a checkpoint, as members of their family.

use std::collections::BTreeMap;

use apr_core::Shape;

use crate::dimensions::Dimensions;
use crate::family::{Family, FamilyTensor, GGUF, Required};
use crate::names::Match;

use super::gguf::gguf_numbers;

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) tensor: usize,
    pub(super) numbers: Vec<u64>,
    pub(super) canonical: String,
}

/// Resolves tensors that have the same name in GGUF to the one that the configuration requires.
pub(super) fn tell_namesakes(
    family: &Family,
    members: &mut [Option<Member>],
    dimensions: &Dimensions<'_>,
) {
    for (taken, other) in family.namesakes(GGUF) {
        let is_asked_for =
            |tensor: usize, numbers: &[(&str, u64)]| match &family.tensors[tensor].required {
                Required::Stated(stated) => Some(*stated),
                Required::Computed(condition) => dimensions.truth(condition, numbers),
            };
        for member in members.iter_mut().flatten().filter(|member| member.tensor == taken) {
            let named = numbers(&family.tensors[taken], member);
            if is_asked_for(taken, &named) != Some(false)
                || is_asked_for(other, &named) != Some(true)
            {
                continue;
            }
            let number = |index: &str| {
                named.iter().find(|(name, _)| *name == index).map(|(_, number)| *number)
            };
            let Some(canonical) = family.tensors[other].pattern.name("", number) else { continue };
            *member = Member { tensor: other, numbers: member.numbers.clone(), canonical };
        }
    }
}

/// Gives members of a GGUF file the numbers of their indices, in place of those in the file.
pub(super) fn renumber(
    family: &Family,
    members: &mut [Option<Member>],
    dimensions: &Dimensions<'_>,
) {
    if family.gguf.as_ref().is_none_or(|gguf| gguf.numbers.is_empty()) {
        return;
    }
    for member in members.iter_mut().flatten() {
        let pattern = &family.tensors[member.tensor].pattern;
        let own = pattern.indices().iter().zip(&member.numbers).map(|(index, number)| {
            let list = gguf_numbers(family, dimensions, index);
            let place = |list: Vec<u64>| list.iter().position(|listed| listed == number);
            list.and_then(place).map_or(*number, |place| place as u64)
        });
        let numbers: Vec<u64> = own.collect();
        if let Some(canonical) = pattern.filled(&numbers).filter(|_| numbers != member.numbers) {
            *member = Member { tensor: member.tensor, numbers, canonical };
        }
    }
}

pub(super) fn member(family: &Family, Match { tensor, numbers }: Match) -> Option<Member> {
    let canonical = family.tensors[tensor].pattern.filled(&numbers)?;
    Some(Member { tensor, numbers, canonical })
}

pub(crate) fn numbers<'f>(tensor: &'f FamilyTensor, member: &Member) -> Vec<(&'f str, u64)> {
    tensor
        .pattern
        .indices()
        .iter()
        .map(String::as_str)
        .zip(member.numbers.iter().copied())
        .collect()
}

/// Returns the number of inputs for each output of a matrix or a kernel.
///
/// Outputs are the first dimension, or the last if the tensor is transposed.
pub(super) fn inputs(shape: &Shape, is_turned: bool) -> u64 {
    let outputs = if is_turned { shape.dims().last() } else { shape.dims().first() };
    shape.elements().unwrap_or(u64::MAX).checked_div(outputs.copied().unwrap_or(1)).unwrap_or(1)
}

/// Returns the number of values of each index: from the configuration, or else from the tensors.
pub(super) fn counts<'a>(
    family: &'a Family,
    members: &[Option<Member>],
    dimensions: &Dimensions<'_>,
) -> BTreeMap<&'a str, u64> {
    let seen = |index: &str| {
        let of = |member: &Member| {
            let tensor = &family.tensors[member.tensor];
            numbers(tensor, member)
                .into_iter()
                .find(|(name, _)| *name == index)
                .map(|(_, number)| number)
        };

        // A name may hold any number of 64 bits.
        members.iter().flatten().filter_map(of).max().map(|last| last.saturating_add(1))
    };

    let count = |(index, count)| {
        Some((String::as_str(index), dimensions.size(count).or_else(|| seen(index))?))
    };
    family.indices.iter().filter_map(count).collect()
}
