//! Frequencies of rotary positions, and the ways in which they are stretched to longer texts.
//!
//! Rotary positions: Su et al. 2021, <https://arxiv.org/abs/2104.09864>. The stretched ones are
//! those of transformers' `modeling_rope_utils.py`; keys are those of `rope_parameters`, or of
//! `rope_scaling` before transformers 5.

use std::f64::consts::PI;

use apr_core::{Error, Result};
use serde_json::{Map, Value as Json};

use super::places::GridOrder;
use crate::model::BlockPosition;

/// Inputs for computing the cosines and sines.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frequencies {
    pub(crate) inverse: Inverse,
    /// Factor of the cosines and sines.
    pub(crate) factor: f64,
}

/// Angles per position, one for each pair of dimensions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Inverse {
    /// Angles that are the same for every text.
    Fixed(Vec<f32>),
    /// Angles of LongRoPE: `long` for texts longer than `limit`, otherwise `short`.
    ByLength { short: Vec<f32>, long: Vec<f32>, limit: u64 },
    /// Angles of dynamic NTK scaling, from a base that grows with the length of the text.
    Growing { theta: f64, factor: f64, trained: u64, dim: u64 },
}

/// Keys that a form of scaling reads, or that repeat another key.
const KNOWN: [&str; 19] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "attn_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
    "partial_rotary_factor",
    "mrope_section",
    "mrope_interleaved",
];

/// Keys of the same entry that blocks read, each with the required option in the family's table.
const READ_BY: [(&str, &str); 5] = [
    ("alpha", "rotary_alpha"),
    ("llama_4_scaling_beta", "query_growth"),
    ("short_mscale", "rotary_scale"),
    ("long_mscale", "rotary_scale"),
    // Ministral 3 has this length twice.
    ("max_position_embeddings", "query_growth"),
];

/// The part of the configuration that is about rotary positions.
pub(crate) struct Rotation<'p> {
    place: BlockPosition<'p>,
    entries: Map<String, Json>,
}

impl<'p> Rotation<'p> {
    /// Reads the entry of the configuration.
    ///
    /// Option `rotary_config` is the entry's name, if it is not `rope_parameters` or
    /// `rope_scaling`.
    ///
    /// # Errors
    /// E003 if the entry has a key that no block supports.
    pub(crate) fn of(place: BlockPosition<'p>) -> Result<Self> {
        let config = |path: &str| place.model.settings.config(path);
        let object = |json: Json| match json {
            Json::Object(entries) if !entries.is_empty() => Some(entries),
            _ => None,
        };
        let entries = match place.text_or_none("rotary_config")? {
            Some(path) if path.is_empty() => Map::new(),
            Some(path) => config(&path).and_then(object).unwrap_or_default(),
            // What is stated under either name comes before the default under one of them;
            // transformers takes the older name first.
            None => ["rope_scaling", "rope_parameters"]
                .iter()
                .find_map(|path| object(place.model.settings.stated(path)?))
                .or_else(|| object(config("rope_parameters")?))
                .unwrap_or_default(),
        };

        let is_read =
            |key: &str| READ_BY.iter().any(|(known, option)| *known == key && place.states(option));
        let is_unknown = |key: &&String| !KNOWN.contains(&key.as_str()) && !is_read(key);
        if let Some(key) = entries.keys().find(is_unknown) {
            return Err(Error::version(format!(
                "the configuration has '{key}' for rotary positions, which no block supports"
            )));
        }

        Ok(Self { place, entries })
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.entries.get(key).and_then(Json::as_f64)
    }

    fn required(&self, key: &str) -> Result<f64> {
        let number = self.number(key).ok_or_else(|| {
            Error::format(format!(
                "the configuration lacks '{key}' for rotary positions of type '{}'",
                self.kind()
            ))
        })?;
        positive(key, number)
    }

    fn kind(&self) -> &str {
        let text = |key: &str| self.entries.get(key).and_then(Json::as_str);
        text("rope_type").or_else(|| text("type")).unwrap_or("default")
    }

    /// Returns the share of a head's dimensions that are rotated, if the configuration's entry has
    /// it.
    pub(crate) fn partial(&self) -> Option<f64> {
        self.number("partial_rotary_factor")
    }

    /// Returns option `rotary_alpha`, the factor of the base for the type `dynamic`, for texts of
    /// any length (Hunyuan).
    ///
    /// 0 means no factor.
    fn alpha(&self) -> Result<Option<f64>> {
        let alpha = self.place.number_or_none("rotary_alpha")?.filter(|alpha| *alpha != 0.0);
        alpha.map(|alpha| positive("alpha", alpha)).transpose()
    }

    fn theta(&self) -> Result<f64> {
        let theta =
            self.number("rope_theta").map_or_else(|| self.place.number("rotary_theta"), Ok)?;
        positive("rope_theta", theta)
    }

    /// The length of the texts that the model was trained with.
    fn trained(&self) -> Result<f64> {
        let config =
            |path: &str| self.place.model.settings.config(path).and_then(|json| json.as_f64());
        // Phi-3 has this length at the top of its configuration.
        let own = config("original_max_position_embeddings")
            .or_else(|| self.number("original_max_position_embeddings"));
        let trained = own.map_or_else(|| self.place.number("max_positions"), Ok)?;
        positive("original_max_position_embeddings", trained)
    }

    /// Returns `factor`, or else the ratio of the maximum length to the trained length.
    fn stretch(&self) -> Result<f64> {
        let stated = self.number("factor");
        let factor = stated.map_or_else(
            || Ok::<_, Error>(self.place.number("max_positions")? / self.trained()?),
            Ok,
        )?;
        positive("factor", factor)
    }

    /// The frequencies of `dim` dimensions.
    ///
    /// # Errors
    /// E003 for a type of scaling that is not known; E001 when the configuration lacks what it
    /// needs.
    pub(crate) fn frequencies(&self, dim: u64) -> Result<Frequencies> {
        let plain = Plain::new(self.theta()?, dim)?;
        let fixed = |inverse: Vec<f64>| Frequencies {
            inverse: Inverse::Fixed(single(&inverse)),
            factor: 1.0,
        };
        match self.kind() {
            // Positions of images have three numbers, those of a text three times the same (Wang et
            // al. 2024, <https://arxiv.org/abs/2409.12191>).
            "default" | "mrope" => Ok(fixed(plain.inverse())),
            "linear" => {
                let factor = self.required("factor")?;
                Ok(fixed(plain.inverse().into_iter().map(|inverse| inverse / factor).collect()))
            }
            "llama3" => Ok(fixed(self.llama3(&plain)?)),
            "proportional" => Ok(fixed(self.proportional(&plain)?)),
            // The code that DeepSeek published names it differently.
            "yarn" | "deepseek_yarn" => self.yarn(&plain),
            "longrope" | "su" => self.longrope(&plain),
            "dynamic" if dim > 2 && self.alpha()?.is_some() => {
                let dims = dim as f64;
                let growth = self.alpha()?.unwrap_or(1.0).powf(dims / (dims - 2.0));
                Ok(fixed(Plain::new(self.theta()? * growth, dim)?.inverse()))
            }
            // The exponent has dim - 2 below the line.
            "dynamic" if dim > 2 => Ok(Frequencies {
                inverse: Inverse::Growing {
                    theta: plain.theta,
                    factor: self.required("factor")?,
                    trained: self.place.size("max_positions")?,
                    dim,
                },
                factor: 1.0,
            }),
            other => {
                Err(Error::version(format!("rotary positions of type '{other}' are not supported")))
            }
        }
    }

    /// Returns the frequencies of `dim` dimensions for the rows and the columns of a grid, half of
    /// them for rows, then those for columns.
    ///
    /// # Errors
    /// As for [`frequencies`](Self::frequencies), and E003 if they depend on the length of a text.
    pub(crate) fn grid_frequencies(&self, dim: u64, order: GridOrder) -> Result<Frequencies> {
        if !dim.is_multiple_of(4) {
            let message = format!("rotary positions of a grid can't turn {dim} dimensions");
            return Err(Error::format(message));
        }
        let of = match order {
            GridOrder::Same | GridOrder::Apart => dim / 2,
            GridOrder::Alternating => dim,
        };
        let Frequencies { inverse, factor } = self.frequencies(of)?;
        let Inverse::Fixed(angles) = inverse else {
            return Err(Error::version("rotary positions of a grid can't depend on its size"));
        };
        let every_second = |first: usize| angles.iter().copied().skip(first).step_by(2);
        let inverse = match order {
            GridOrder::Same | GridOrder::Apart => angles.repeat(2),
            GridOrder::Alternating => every_second(0).chain(every_second(1)).collect(),
        };
        Ok(Frequencies { inverse: Inverse::Fixed(inverse), factor })
    }

    /// Returns the angles of LLaMA 3.1: slow angles are divided, fast angles are kept, angles in
    /// between are interpolated.
    fn llama3(&self, plain: &Plain) -> Result<Vec<f64>> {
        let factor = self.required("factor")?;
        let (low, high) = (self.required("low_freq_factor")?, self.required("high_freq_factor")?);
        let trained = self.trained()?;
        let turned = |inverse: f64| {
            let wavelength = 2.0 * PI / inverse;
            if wavelength < trained / high {
                inverse
            } else if wavelength > trained / low {
                inverse / factor
            } else {
                let smooth = (trained / wavelength - low) / (high - low);
                (1.0 - smooth) * inverse / factor + smooth * inverse
            }
        };

        Ok(plain.inverse().into_iter().map(turned).collect())
    }

    /// Returns the angles of Gemma 4: those of the first share of a head's dimensions, and none for
    /// the others.
    fn proportional(&self, plain: &Plain) -> Result<Vec<f64>> {
        let share = self.partial().unwrap_or(1.0);
        if !(0.0..=1.0).contains(&share) {
            let message = format!("'partial_rotary_factor' is {share}, not a share");
            return Err(Error::format(message));
        }
        let factor = self.number("factor").map_or(Ok(1.0), |factor| positive("factor", factor))?;
        // The fraction is cut off, as transformers does it.
        let turned = (share * plain.dim as f64 / 2.0).floor();
        let angle = |(at, inverse): (usize, f64)| {
            if (at as f64) < turned { inverse / factor } else { 0.0 }
        };
        Ok(plain.inverse().into_iter().enumerate().map(angle).collect())
    }

    /// YaRN (Peng et al. 2023, <https://arxiv.org/abs/2309.00071>).
    fn yarn(&self, plain: &Plain) -> Result<Frequencies> {
        let factor = self.stretch()?;
        let trained = self.trained()?;
        let dim = plain.dim as f64;

        // In transformers it is `get(key) or default`, by which 0 counts as absent.
        let or = |key: &str, otherwise: f64| {
            self.number(key).filter(|value| *value != 0.0).unwrap_or(otherwise)
        };
        let correction = |rotations: f64| {
            dim * (trained / (rotations * 2.0 * PI)).ln() / (2.0 * plain.theta.ln())
        };
        let (mut low, mut high) =
            (correction(or("beta_fast", 32.0)), correction(or("beta_slow", 1.0)));
        if self.entries.get("truncate").and_then(Json::as_bool).unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }

        let low = low.max(0.0);
        let mut high = high.min(dim - 1.0);
        // As transformers does it, so that the ramp divides by no 0.
        if low == high {
            high += 0.001;
        }

        let mixed = |(at, inverse): (usize, f64)| {
            let ramp = ((at as f64 - low) / (high - low)).clamp(0.0, 1.0);
            inverse / factor * ramp + inverse * (1.0 - ramp)
        };
        let inverse: Vec<f64> = plain.inverse().into_iter().enumerate().map(mixed).collect();
        Ok(Frequencies {
            inverse: Inverse::Fixed(single(&inverse)),
            factor: self.yarn_factor(factor),
        })
    }

    /// Returns YaRN's factor of the cosines and sines.
    fn yarn_factor(&self, factor: f64) -> f64 {
        let scale =
            |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let stated = self.number("attention_factor").or_else(|| self.number("attn_factor"));
        let nonzero = |key: &str| self.number(key).filter(|value| *value != 0.0);
        stated.unwrap_or_else(|| match (nonzero("mscale"), nonzero("mscale_all_dim")) {
            (Some(one), Some(all)) => scale(one) / scale(all),
            _ => scale(1.0),
        })
    }

    /// Returns the factor of queries and keys for DeepSeek's stretched positions: `0.1
    /// mscale_all_dim log(factor) + 1`.
    pub(crate) fn score_factor(&self) -> f64 {
        let (all, factor) =
            (self.number("mscale_all_dim").unwrap_or(0.0), self.number("factor").unwrap_or(1.0));
        if self.kind() == "default" || factor <= 1.0 { 1.0 } else { 0.1 * all * factor.ln() + 1.0 }
    }

    /// LongRoPE (Ding et al. 2024, <https://arxiv.org/abs/2402.13753>).
    fn longrope(&self, plain: &Plain) -> Result<Frequencies> {
        let trained = self.trained()?;
        let stretch = self.stretch()?;
        let factors = |key: &str| -> Result<Vec<f32>> {
            let list = self.entries.get(key).and_then(Json::as_array);
            let list: Option<Vec<f64>> =
                list.and_then(|items| items.iter().map(Json::as_f64).collect());
            let inverse = plain.inverse();
            let list = list.filter(|list| list.len() == inverse.len());
            let list = list.ok_or_else(|| {
                Error::format(format!(
                    "'{key}' for rotary positions is not a list of {} numbers",
                    inverse.len()
                ))
            })?;
            Ok(single(
                &inverse
                    .iter()
                    .zip(list)
                    .map(|(inverse, factor)| inverse / factor)
                    .collect::<Vec<_>>(),
            ))
        };

        let factor = self.number("attention_factor").unwrap_or_else(|| {
            if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / trained.ln()).sqrt() }
        });
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a length of texts"
        )]
        let limit = trained as u64;
        let inverse = Inverse::ByLength {
            short: factors("short_factor")?,
            long: factors("long_factor")?,
            limit,
        };
        Ok(Frequencies { inverse, factor })
    }
}

/// A number that things are divided by, or taken to a power.
fn positive(key: &str, number: f64) -> Result<f64> {
    match number > 0.0 && number.is_finite() {
        true => Ok(number),
        false => Err(Error::format(format!(
            "'{key}' for rotary positions is {number}, and not above zero"
        ))),
    }
}

/// Rotary positions as they were first: `theta^(-2i / dim)`.
struct Plain {
    theta: f64,
    dim: u64,
}

impl Plain {
    fn new(theta: f64, dim: u64) -> Result<Self> {
        // No head has as many as the last of these.
        if dim == 0 || dim % 2 == 1 || dim > 1 << 12 {
            return Err(Error::format(format!(
                "rotary positions can't turn {dim} dimensions of a head"
            )));
        }
        Ok(Self { theta, dim })
    }

    fn inverse(&self) -> Vec<f64> {
        (0..self.dim / 2).map(|at| self.theta.powf(-((2 * at) as f64) / self.dim as f64)).collect()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "graphs compute in single precision")]
fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}
