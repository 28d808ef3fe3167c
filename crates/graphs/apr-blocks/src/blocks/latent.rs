//! Attention whose keys and values are made of a short vector for each token (DeepSeek-V2, 2024,
//! <https://arxiv.org/abs/2405.04434>).

use apr_core::Result;
use apr_graph::ValueId;

use super::attention::{Given, KeyValue};
use super::frequencies::Rotation;
use super::heads::Heads;
use super::norm::Norm;
use super::rotary::{Rotary, Turn};
use crate::LatentCache;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// The epsilon of the norms of the short vectors, which no configuration states.
const EPS: f64 = 1e-6;

/// Lengths of the parts of a head, and of the short vector.
struct Lengths {
    /// Length of the short vector from which keys and values are computed.
    latent: u64,
    /// Length of the part of a key that rotary positions rotate; all heads share it.
    rope: u64,
    /// Length of the part of a key that is not rotated.
    nope: u64,
    value: u64,
}

impl Lengths {
    /// Options `latent_dim`, `rope_dim`, `nope_dim`, `value_dim`.
    fn of(place: BlockPosition<'_>) -> Result<Self> {
        Ok(Self {
            latent: place.size("latent_dim")?,
            rope: place.size("rope_dim")?,
            nope: place.size("nope_dim")?,
            value: place.size("value_dim")?,
        })
    }
}

/// Heads, length of a key and length of a value in the cache of a layer.
pub(crate) fn cache_dims(place: BlockPosition<'_>) -> Result<[u64; 3]> {
    if is_latent(place)? {
        let Lengths { latent, rope, nope, value } = Lengths::of(place)?;
        return Ok(match place.model.latent_cache {
            LatentCache::Latents => [1, latent, rope],
            LatentCache::Heads => [Heads::of(place)?.heads, nope + rope, value],
        });
    }
    let heads = Heads::of(place)?;
    Ok([heads.kv_heads, heads.head_dim, heads.value_dim])
}

/// Option `attention`: `heads` (the default), or `latent`.
pub(crate) fn is_latent(place: BlockPosition<'_>) -> Result<bool> {
    match place.text_or_none("attention")?.as_deref() {
        None | Some("heads") => Ok(false),
        Some("latent") => Ok(true),
        Some(other) => Err(place.unknown("attention", other)),
    }
}

impl Writer<'_> {
    /// Returns multi-head latent attention.
    ///
    /// The cache stores the short vector of a token as `key` and the rotary part of its key as
    /// `value`, or the keys and values of each head.
    pub(crate) fn latent_attention(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        rotary: Option<&Rotary>,
        given: Given,
    ) -> Result<(ValueId, KeyValue)> {
        let lengths = Lengths::of(place)?;
        let mut heads = Heads::of(place)?;
        let factor = Rotation::of(place)?.score_factor();
        // Queries and keys both grow by the factor, so scores grow by its square.
        heads.scale *= factor * factor;
        self.scope("attention", |w| {
            let query = w.latent_query(place, x)?;
            let query = w.heads_of("query", query, heads.heads, lengths.nope + lengths.rope);
            let query = w.with_rotary_part(&lengths, rotary, given.turn, query);
            let short = w.linear_part(place, "latent", x)?;
            let [latent, rope] = w.split("latent_parts", short, -1, [lengths.latent, lengths.rope]);
            let latent = w.norm(
                "latent_norm",
                Norm::of(place)?.with_eps(EPS),
                latent,
                &place.module("latent_norm")?,
            )?;
            let latent = w.unsqueeze("latent_as_head", latent, &[1]);
            let rope = w.unsqueeze("rope_key_as_head", rope, &[1]);
            let rope = match (rotary, given.turn) {
                (Some(rotary), Some(turn)) => {
                    w.rotated("key_rotary", rotary, rope, turn, lengths.rope)
                }
                _ => rope,
            };
            let short = KeyValue { key: latent, value: rope };
            let (cache, expanded) = match place.model.latent_cache {
                LatentCache::Latents => {
                    let all = w.with_past(short, given.past);
                    (all, w.expanded(place, &heads, &lengths, all)?)
                }
                LatentCache::Heads => {
                    let fresh = w.expanded(place, &heads, &lengths, short)?;
                    let all = w.with_past(fresh, given.past);
                    (all, all)
                }
            };
            let context = w.context(&heads, query, expanded, given.mask, None)?;
            Ok((w.linear_part(place, "output", context)?, cache))
        })
    }

    /// Returns the queries: by `query_down` and `query_up` if the checkpoint has them, or else by
    /// `query`.
    fn latent_query(&mut self, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
        let Some(down) = place.module_or_none("query_down") else {
            return self.linear_part(place, "query", x);
        };
        let short = self.linear(place, "query_down", x, &down)?;
        let module = place.module("query_down_norm")?;
        let short = self.norm("query_down_norm", Norm::of(place)?.with_eps(EPS), short, &module)?;
        self.linear_part(place, "query_up", short)
    }

    /// Queries with rotary positions on their last part.
    fn with_rotary_part(
        &mut self,
        lengths: &Lengths,
        rotary: Option<&Rotary>,
        turn: Option<Turn>,
        query: ValueId,
    ) -> ValueId {
        let (Some(rotary), Some(turn)) = (rotary, turn) else { return query };
        let [nope, rope] = self.split("query_parts", query, -1, [lengths.nope, lengths.rope]);
        let rope = self.rotated("query_rotary", rotary, rope, turn, lengths.rope);
        self.concat("query_joined", &[nope, rope], -1)
    }

    /// Keys and values of all heads, from the short vectors.
    fn expanded(
        &mut self,
        place: BlockPosition<'_>,
        heads: &Heads,
        lengths: &Lengths,
        short: KeyValue,
    ) -> Result<KeyValue> {
        let axis = self.ints(&[1]);
        let latent = self.make("Squeeze", "latents", [short.key, axis]);
        let both = self.linear_part(place, "latent_up", latent)?;
        let both = self.heads_of("key_and_value", both, heads.heads, lengths.nope + lengths.value);
        let [nope, value] =
            self.split("key_and_value_parts", both, -1, [lengths.nope, lengths.value]);
        // The rotary part is the same for all heads.
        let shape = self.ints(&[1, signed(heads.heads), 1, 1]);
        let rope = self.make("Expand", "rope_key_of_heads", [short.value, shape]);
        Ok(KeyValue { key: self.concat("key", &[nope, rope], -1), value })
    }
}
