//! Names that may come twice, and names of which there is one each.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Gives each tensor, value or step a name of its own: one whose name is taken gets a number.
///
/// A name remembers which numbers it gave, so that many of one name take no more time than as many
/// different ones.
///
/// ```
/// use apr_core::UniqueNames;
///
/// let mut names = UniqueNames::of_tensors();
/// assert_eq!(names.unique("a"), "a");
/// assert_eq!(names.unique("a"), "a#2");
/// assert_eq!(names.unique("a#2"), "a#2#2");
/// assert_eq!(names.unique("a"), "a#3");
/// ```
#[derive(Debug, Clone)]
pub struct UniqueNames {
    mark: &'static str,
    first: u64,
    /// Taken names, with the number that the next of each may get.
    taken: BTreeMap<String, u64>,
}

impl UniqueNames {
    /// Returns names in which a second `a` becomes `a#2`, for tensors with repeated names.
    #[must_use]
    pub const fn of_tensors() -> Self {
        Self::new("#", 2)
    }

    /// Returns names in which a second `a` becomes `a_1`, for values and nodes of graphs.
    #[must_use]
    pub const fn of_values() -> Self {
        Self::new("_", 1)
    }

    /// Returns names in which a second `a` becomes `a`, the mark and the first number.
    #[must_use]
    pub const fn new(mark: &'static str, first: u64) -> Self {
        Self { mark, first, taken: BTreeMap::new() }
    }

    /// Returns `true` if a name is taken.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.taken.contains_key(name)
    }

    /// Takes a name unchanged. Returns `false` if it is taken already.
    pub fn take(&mut self, name: &str) -> bool {
        let is_new = !self.contains(name);
        if is_new {
            self.taken.insert(name.into(), self.first);
        }
        is_new
    }

    /// Lets another have a name.
    pub fn release(&mut self, name: &str) {
        self.taken.remove(name);
    }

    /// Takes the name, or a numbered one if it is taken.
    pub fn unique(&mut self, name: impl Into<String>) -> String {
        self.unique_beside(name, |_| false)
    }

    /// Takes the name, or a numbered one if it is taken or `is_taken` returns `true` for it.
    pub fn unique_beside(
        &mut self,
        name: impl Into<String>,
        is_taken: impl Fn(&str) -> bool,
    ) -> String {
        let name = name.into();
        if !is_taken(&name) && self.take(&name) {
            return name;
        }

        let mut number = self.taken.get(&name).copied().unwrap_or(self.first);
        loop {
            let numbered = format!("{name}{}{number}", self.mark);
            number = number.saturating_add(1);
            if !is_taken(&numbered) && self.take(&numbered) {
                // A name that only others have taken has no numbers here yet.
                self.taken.insert(name, number);
                return numbered;
            }
        }
    }

    /// Gives each of these tensors a name of its own. The first of each name keeps it, and no other
    /// gets a name that one of them has.
    pub fn tell_apart<'n>(names: impl Iterator<Item = &'n mut String>) {
        let mut taken = Self::of_tensors();
        let repeated: Vec<&mut String> = names
            .filter_map(|name| {
                let is_first = taken.take(name);
                (!is_first).then_some(name)
            })
            .collect();
        for name in repeated {
            *name = taken.unique(core::mem::take(name));
        }
    }
}

/// The default is [`of_values`](Self::of_values).
impl Default for UniqueNames {
    fn default() -> Self {
        Self::of_values()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec;

    use super::*;

    #[test]
    fn names_of_the_file_are_not_given_to_others() {
        let mut names: Vec<String> = ["a", "a", "a#2", "b", "a"].map(String::from).to_vec();
        UniqueNames::tell_apart(names.iter_mut());
        assert_eq!(names, ["a", "a#3", "a#2", "b", "a#4"]);
    }

    #[test]
    fn all_are_different_whatever_the_names_look_like() {
        let alphabet = ["a", "a#2", "a#3", "a#2#2", "", "#2"];
        for seed in 0..6_usize.pow(5) {
            let mut names: Vec<String> = vec![];
            let mut rest = seed;
            for _ in 0..5 {
                names.push(alphabet[rest % 6].into());
                rest /= 6;
            }
            let mut one_by_one = UniqueNames::of_tensors();
            let given: BTreeSet<String> =
                names.iter().map(|name| one_by_one.unique(name.as_str())).collect();
            assert_eq!(given.len(), 5, "{names:?}");
            UniqueNames::tell_apart(names.iter_mut());
            let told: BTreeSet<&String> = names.iter().collect();
            assert_eq!(told.len(), 5, "{names:?}");
        }
    }

    #[test]
    fn a_name_that_is_taken_elsewhere_gets_a_number() {
        let mut names = UniqueNames::of_values();
        assert_eq!(names.unique_beside("x", |name| name == "x" || name == "x_1"), "x_2");
        assert_eq!(names.unique("y"), "y");
        names.release("y");
        assert_eq!(names.unique("y"), "y");
    }
}
