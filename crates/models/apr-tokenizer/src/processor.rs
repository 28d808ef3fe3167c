//! SentencePiece's own way to cut a text, for its `.model` files: normalization, then Unigram, BPE,
//! words or characters, with bytes for what is no piece.
//!
//! Ids are those of the library (`SentencePieceProcessor::Encode`), whose `normalizer.cc`,
//! `unigram_model.cc`, `bpe_model.cc`, `word_model.cc` and `char_model.cc` this follows.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::merging::MergedPiece;
use crate::vocabulary::SentencePiece;

/// Character for a space in a piece.
const SPACE: &str = "\u{2581}";

const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;
const BYTE: u64 = 6;

/// Log-probability penalty of an unknown character, relative to the least probable piece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Maximum number of bytes of a text per look-up in the table of replacements.
const LONGEST_RULE: usize = 256;

/// A model that cuts texts.
#[derive(Debug, Clone)]
pub(crate) struct Processor {
    kind: Kind,
    pieces: Vec<Piece>,
    /// Ids of pieces that a text may be cut into: ordinary, user-defined and unused ones.
    ids: HashMap<String, usize>,
    /// Ids of unknown and control pieces and of bytes.
    reserved: HashMap<String, usize>,
    unknown: usize,
    /// Ids of the byte pieces, if unknown text becomes bytes.
    bytes: Option<Vec<usize>>,
    /// Bytes of the longest piece.
    longest: usize,
    /// User-defined pieces, which are never merged or normalized; longest first.
    frozen: Vec<String>,
    least: f32,
    most: f32,
    rules: Rules,
    adds_prefix: bool,
    removes_spaces: bool,
    escapes_spaces: bool,
    /// `true` if a space belongs to the end of a word, not to its beginning.
    is_suffix: bool,
}

#[derive(Debug, Clone)]
struct Piece {
    score: f32,
    piece_type: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unigram,
    Bpe,
    Word,
    Char,
}

/// A normalized text with the origins of its bytes.
#[derive(Default)]
struct Normalized {
    text: String,
    /// Offset in the original of each byte's character, followed by the end of the original.
    origins: Vec<usize>,
}

impl Normalized {
    fn push(&mut self, text: &str, origin: usize) {
        self.text.push_str(text);
        self.origins.extend(std::iter::repeat_n(origin, text.len()));
    }
}

impl Processor {
    /// Creates the processor of a model, or returns `None` if the model has no unknown piece.
    pub(crate) fn of(model: &SentencePiece<'_>) -> Option<Self> {
        let (mut ids, mut reserved) = (HashMap::new(), HashMap::new());
        let (mut unknown, mut bytes) = (None, vec![None; 256]);
        // The library begins with these.
        let (mut least, mut most) = (f32::MAX, f32::MIN_POSITIVE);
        for (id, piece) in model.pieces.iter().enumerate() {
            let text = piece.text.to_owned();
            match piece.piece_type {
                NORMAL | USER_DEFINED | UNUSED => drop(ids.insert(text, id)),
                _ => drop(reserved.insert(text, id)),
            }
            match piece.piece_type {
                NORMAL => (least, most) = (least.min(piece.score), most.max(piece.score)),
                UNKNOWN => unknown = Some(id),
                BYTE => {
                    let digits = piece.text.strip_prefix("<0x")?.strip_suffix('>')?;
                    let byte = u8::from_str_radix(digits, 16).ok()?;
                    bytes[usize::from(byte)] = Some(id);
                }
                _ => {}
            }
        }
        let of_type = |piece_type: u64| {
            model.pieces.iter().filter(move |piece| piece.piece_type == piece_type)
        };
        let mut frozen: Vec<String> =
            of_type(USER_DEFINED).map(|piece| piece.text.to_owned()).collect();
        frozen.retain(|piece| !piece.is_empty());
        frozen.sort_by_key(|piece| std::cmp::Reverse(piece.len()));
        let kind = match model.kind() {
            "Unigram" => Kind::Unigram,
            "BPE" => Kind::Bpe,
            "Word" => Kind::Word,
            _ => Kind::Char,
        };
        let bytes: Option<Vec<usize>> = if model.falls_back_to_bytes() {
            Some(bytes.into_iter().collect::<Option<_>>()?)
        } else {
            None
        };
        Some(Self {
            kind,
            longest: ids.keys().map(String::len).max().unwrap_or(0),
            ids,
            reserved,
            unknown: unknown?,
            bytes,
            frozen,
            least,
            most,
            rules: Rules::read(model.charsmap)?,
            adds_prefix: model.adds_prefix,
            removes_spaces: model.removes_spaces,
            escapes_spaces: model.escapes_spaces,
            is_suffix: model.is_suffix(),
            pieces: model
                .pieces
                .iter()
                .map(|piece| Piece { score: piece.score, piece_type: piece.piece_type })
                .collect(),
        })
    }

    /// The pieces of a text that begins at this character of another.
    pub(crate) fn pieces(&self, text: &str, place: usize) -> Vec<MergedPiece> {
        let normalized = self.normalized(text);
        let parts = match self.kind {
            Kind::Unigram => self.unigram(&normalized.text),
            Kind::Bpe => self.bpe(&normalized.text),
            Kind::Word => self.known(words(&normalized.text)),
            Kind::Char => self.known(self.letters(&normalized.text)),
        };
        let mut made: Vec<MergedPiece> = Vec::with_capacity(parts.len());
        let (mut at, mut was_unknown) = (0, false);
        for (part, id) in parts {
            let origin = |byte: usize| normalized.origins.get(byte).copied().unwrap_or(0) + place;
            let (start, end) = (origin(at), origin(at + part.len()));
            at += part.len();
            let is_unknown = id == self.unknown;
            match (&self.bytes, made.last_mut()) {
                (Some(bytes), _) if is_unknown => {
                    let of =
                        |byte: u8| MergedPiece { id: bytes[usize::from(byte)] as i64, start, end };
                    made.extend(part.bytes().map(of));
                }
                // Unknown characters in a row are one piece.
                (None, Some(last)) if is_unknown && was_unknown => last.end = end,
                _ => made.push(MergedPiece { id: id as i64, start, end }),
            }
            was_unknown = is_unknown;
        }
        made
    }

    /// The user-defined piece that a text begins with.
    fn frozen<'t>(&self, text: &'t str) -> Option<&'t str> {
        let found = self.frozen.iter().find(|piece| text.starts_with(piece.as_str()));
        found.map(|piece| &text[..piece.len()])
    }

    /// Returns the replacement of the start of a text, and the length of the replaced part.
    fn replaced<'a>(&'a self, text: &'a str) -> (&'a str, usize) {
        if let Some(piece) = self.frozen(text) {
            return (piece, piece.len());
        }
        match self.rules.longest(text) {
            Some(found) => found,
            None => {
                let letter = first(text);
                (letter, letter.len())
            }
        }
    }

    fn normalized(&self, text: &str) -> Normalized {
        let mut rest = text;
        let mut made = Normalized::default();
        // Characters of the text that were read.
        let mut place = 0;
        if self.removes_spaces {
            while !rest.is_empty() {
                let (new, len) = self.replaced(rest);
                if new != " " {
                    break;
                }
                place += rest[..len].chars().count();
                rest = &rest[len..];
            }
        }
        if rest.is_empty() {
            return made;
        }
        let space = if self.escapes_spaces { SPACE } else { " " };
        if self.adds_prefix && !self.is_suffix {
            made.push(space, place);
        }
        let mut is_behind_space = self.removes_spaces;
        while !rest.is_empty() {
            let (mut new, len) = self.replaced(rest);
            if is_behind_space {
                new = new.trim_start_matches(' ');
            }
            if !new.is_empty() {
                for letter in new.chars() {
                    match letter {
                        ' ' => made.push(space, place),
                        letter => made.push(letter.encode_utf8(&mut [0; 4]), place),
                    }
                }
                is_behind_space = new.ends_with(' ');
            }
            is_behind_space &= self.removes_spaces;
            place += rest[..len].chars().count();
            rest = &rest[len..];
        }
        if self.removes_spaces {
            while let Some(shorter) = made.text.strip_suffix(space) {
                let len = shorter.len();
                place = made.origins[len];
                made.text.truncate(len);
                made.origins.truncate(len);
            }
        }
        if self.adds_prefix && self.is_suffix {
            made.push(space, place);
        }
        made.origins.push(place);
        made
    }

    /// The id of a piece.
    fn id(&self, piece: &str) -> usize {
        let found = self.reserved.get(piece).or_else(|| self.ids.get(piece));
        found.copied().unwrap_or(self.unknown)
    }

    fn known<'t>(&self, parts: Vec<&'t str>) -> Vec<(&'t str, usize)> {
        parts.into_iter().map(|part| (part, self.id(part))).collect()
    }

    /// Characters and user-defined pieces.
    fn letters<'t>(&self, mut text: &'t str) -> Vec<&'t str> {
        let mut letters = Vec::new();
        while !text.is_empty() {
            let letter = self.frozen(text).unwrap_or_else(|| first(text));
            letters.push(letter);
            text = &text[letter.len()..];
        }
        letters
    }

    /// The most probable pieces.
    fn unigram<'t>(&self, text: &'t str) -> Vec<(&'t str, usize)> {
        #[derive(Clone)]
        struct End {
            id: usize,
            score: f32,
            start: Option<usize>,
        }
        let mut ends = vec![End { id: self.unknown, score: 0.0, start: None }; text.len() + 1];
        let mut start = 0;
        while start < text.len() {
            let before = ends[start].score;
            let letter = first(&text[start..]).len();
            let mut is_piece = false;
            let longest = (start + self.longest).min(text.len());
            for end in (start + letter..=longest).filter(|end| text.is_char_boundary(*end)) {
                let Some(&id) = self.ids.get(&text[start..end]) else { continue };
                let piece = &self.pieces[id];
                if piece.piece_type == UNUSED {
                    continue;
                }
                // Sums are those of C++: of a double where one is there.
                let score = match piece.piece_type {
                    USER_DEFINED => f64::from((end - start) as f32 * self.most) - 0.1,
                    _ => f64::from(piece.score),
                };
                let score = score + f64::from(before);
                let there = &mut ends[end];
                if there.start.is_none() || score > f64::from(there.score) {
                    #[expect(clippy::cast_possible_truncation, reason = "as the library keeps it")]
                    let score = score as f32;
                    *there = End { id, score, start: Some(start) };
                }
                is_piece |= end - start == letter;
            }
            if !is_piece {
                let score = self.least - UNKNOWN_PENALTY + before;
                let there = &mut ends[start + letter];
                if there.start.is_none() || score > there.score {
                    *there = End { id: self.unknown, score, start: Some(start) };
                }
            }
            start += letter;
        }
        let mut parts = Vec::new();
        let mut end = text.len();
        while end > 0 {
            let start = ends[end].start.unwrap_or(0);
            parts.push((&text[start..end], ends[end].id));
            end = start;
        }
        parts.reverse();
        parts
    }

    /// Returns the pieces after all merges, applied in order of their scores, best first.
    fn bpe<'t>(&self, text: &'t str) -> Vec<(&'t str, usize)> {
        struct Symbol {
            start: usize,
            /// 0 for one that is gone.
            len: usize,
            before: Option<usize>,
            next: Option<usize>,
            is_frozen: bool,
        }
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut start = 0;
        while start < text.len() {
            let frozen = self.frozen(&text[start..]);
            let len = frozen.unwrap_or_else(|| first(&text[start..])).len();
            let at = symbols.len();
            let before = at.checked_sub(1);
            if let Some(before) = before {
                symbols[before].next = Some(at);
            }
            symbols.push(Symbol { start, len, before, next: None, is_frozen: frozen.is_some() });
            start += len;
        }
        // How pieces that no text is cut into were made.
        let mut halves: HashMap<&str, usize> = HashMap::new();
        let mut queue = BinaryHeap::new();
        let offer = |queue: &mut BinaryHeap<Pair>,
                     halves: &mut HashMap<&'t str, usize>,
                     symbols: &[Symbol],
                     left: Option<usize>,
                     right: Option<usize>| {
            let (Some(left), Some(right)) = (left, right) else { return };
            let (one, other) = (&symbols[left], &symbols[right]);
            if one.is_frozen || other.is_frozen {
                return;
            }
            let piece = &text[one.start..other.start + other.len];
            let Some(&id) = self.ids.get(piece) else { return };
            queue.push(Pair { score: self.pieces[id].score, left, right, len: piece.len() });
            if self.pieces[id].piece_type == UNUSED {
                halves.insert(piece, one.len);
            }
        };
        for right in 1..symbols.len() {
            offer(&mut queue, &mut halves, &symbols, Some(right - 1), Some(right));
        }
        while let Some(Pair { left, right, len, .. }) = queue.pop() {
            let (one, other) = (symbols[left].len, symbols[right].len);
            if one == 0 || other == 0 || one + other != len {
                continue;
            }
            symbols[left].len = len;
            symbols[right].len = 0;
            let next = symbols[right].next;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].before = Some(left);
            }
            let before = symbols[left].before;
            offer(&mut queue, &mut halves, &symbols, before, Some(left));
            offer(&mut queue, &mut halves, &symbols, Some(left), next);
        }
        let mut parts = Vec::new();
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            // The halves of a piece are shorter than it.
            let mut open = vec![&text[symbol.start..symbol.start + symbol.len]];
            while let Some(part) = open.pop() {
                let id = self.id(part);
                match halves.get(part).filter(|_| self.pieces[id].piece_type == UNUSED) {
                    Some(half) => open.extend([&part[*half..], &part[..*half]]),
                    None => parts.push((part, id)),
                }
            }
        }
        parts
    }
}

/// Two neighbours that make a piece.
#[derive(Debug, PartialEq)]
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Eq for Pair {}

impl Ord for Pair {
    /// The best score first, then the one further left.
    fn cmp(&self, other: &Self) -> Ordering {
        let scores = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        scores.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The first character of a text that has one.
fn first(text: &str) -> &str {
    &text[..text.chars().next().map_or(0, char::len_utf8)]
}

/// Words, each with the space before it.
fn words(text: &str) -> Vec<&str> {
    let mut starts: Vec<usize> = text.match_indices(SPACE).map(|(at, _)| at).collect();
    if !text.is_empty() && starts.first() != Some(&0) {
        starts.insert(0, 0);
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

/// Replacement rules: a double array of the replaced texts, with the offsets of their replacements.
#[derive(Debug, Clone, Default)]
struct Rules {
    units: Vec<u32>,
    texts: Vec<u8>,
}

impl Rules {
    /// Reads the rules, or returns `None` if the bytes are not such a table.
    fn read(charsmap: &[u8]) -> Option<Self> {
        if charsmap.is_empty() {
            return Some(Self::default());
        }
        let (len, rest) = charsmap.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (units, texts) = rest.split_at_checked(len)?;
        let (units, left) = units.as_chunks::<4>();
        let is_whole = left.is_empty() && !units.is_empty();
        is_whole.then(|| Self {
            units: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(),
            texts: texts.to_vec(),
        })
    }

    /// Returns the replacement of the longest prefix of a text in the table, and the prefix length.
    fn longest(&self, text: &str) -> Option<(&str, usize)> {
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut place = usize::try_from(offset(*self.units.first()?)).ok()?;
        let mut found = None;
        for (at, byte) in text.bytes().take(LONGEST_RULE).enumerate() {
            place ^= usize::from(byte);
            let Some(&unit) = self.units.get(place) else { break };
            if unit & ((1 << 31) | 0xff) != u32::from(byte) {
                break;
            }
            place ^= usize::try_from(offset(unit)).ok()?;
            if unit >> 8 & 1 == 1
                && let Some(&leaf) = self.units.get(place)
            {
                found = Some((usize::try_from(leaf & 0x7fff_ffff).ok()?, at + 1));
            }
        }
        let (start, len) = found?;
        let rest = self.texts.get(start..)?;
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        let text = std::str::from_utf8(&rest[..end]).ok()?;
        Some((text, len))
    }
}
