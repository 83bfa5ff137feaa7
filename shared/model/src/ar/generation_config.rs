//! `vision_language_encoder/generation_config.json`: how ids are drawn.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::read_json;
use crate::error::{ModelError, Result};

/// What transformers applies when the file has no `top_k`, as the published one has none.
const TOP_K_ABSENT: i64 = 50;

/// Settings that would change the ids and that nothing here carries out, with the value at which
/// they do nothing. `null` and absence are as good.
const UNSUPPORTED: [(&str, f64); 10] = [
    ("encoder_repetition_penalty", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("guidance_scale", 1.0),
    ("min_length", 0.0),
    ("min_p", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("repetition_penalty", 1.0),
    ("typical_p", 1.0),
];

/// How the next id is drawn from the logits.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingConfig {
    /// How an id is chosen.
    pub draw: Draw,
    /// Ids that are never drawn, on top of those the grid forbids.
    pub suppressed: Vec<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Draw {
    /// The likeliest id.
    Greedy,
    /// An id by its probability, after the warpers.
    Sample(Warpers),
}

/// Applied in the order of the fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warpers {
    /// Above 0; 1 does nothing.
    pub temperature: f64,
    /// Only the so many likeliest; `None` keeps all.
    pub top_k: Option<i64>,
    /// Only the likeliest that make up this much probability; `None` keeps all.
    pub top_p: Option<f64>,
}

#[derive(Deserialize)]
struct File {
    do_sample: Option<bool>,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    #[serde(default)]
    suppress_tokens: Option<Vec<i64>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl SamplingConfig {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file: File = read_json(path)?;
        Self::parse(file).map_err(|(field, problem)| ModelError::config(path, field, problem))
    }

    fn parse(file: File) -> Result<Self, (&'static str, String)> {
        for (field, neutral) in UNSUPPORTED {
            match file.rest.get(field) {
                None | Some(Value::Null) => {}
                Some(value) if value.as_f64() == Some(neutral) => {}
                Some(value) => {
                    return Err((field, format!("is {value}, only {neutral} is supported")));
                }
            }
        }
        let suppressed = file.suppress_tokens.unwrap_or_default();
        // The pipeline samples unless told otherwise, so absence means sampling, other than in
        // transformers.
        if file.do_sample == Some(false) {
            return Ok(Self {
                draw: Draw::Greedy,
                suppressed,
            });
        }
        let temperature = file.temperature.unwrap_or(1.0);
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(("temperature", format!("is {temperature}, need more than 0")));
        }
        let top_k = match file.top_k.unwrap_or(TOP_K_ABSENT) {
            0 => None,
            top_k if top_k > 0 => Some(top_k),
            top_k => return Err(("top_k", format!("is {top_k}, need 0 (off) or more"))),
        };
        let top_p = file.top_p.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&top_p) {
            return Err(("top_p", format!("is {top_p}, need 0 to 1")));
        }
        let top_p = (top_p < 1.0).then_some(top_p);
        Ok(Self {
            draw: Draw::Sample(Warpers {
                temperature,
                top_k,
                top_p,
            }),
            suppressed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<SamplingConfig, &'static str> {
        let file = serde_json::from_str(json).expect("JSON of the right types");
        SamplingConfig::parse(file).map_err(|(field, _)| field)
    }

    fn warpers(json: &str) -> Warpers {
        match parse(json).expect("a good file").draw {
            Draw::Sample(warpers) => warpers,
            Draw::Greedy => panic!("{json} is greedy"),
        }
    }

    #[test]
    fn an_absent_top_k_is_50_and_0_is_off() {
        assert_eq!(warpers("{}").top_k, Some(50));
        assert_eq!(warpers(r#"{"top_k": null}"#).top_k, Some(50));
        assert_eq!(warpers(r#"{"top_k": 0}"#).top_k, None);
        assert_eq!(warpers(r#"{"top_k": 7}"#).top_k, Some(7));
    }

    #[test]
    fn absent_temperature_and_top_p_do_nothing() {
        let Warpers {
            temperature, top_p, ..
        } = warpers("{}");
        assert_eq!((temperature, top_p), (1.0, None));
        assert_eq!(warpers(r#"{"top_p": 1.0}"#).top_p, None);
        assert_eq!(
            warpers(r#"{"top_p": 0.75, "temperature": 0.9}"#).top_p,
            Some(0.75)
        );
    }

    #[test]
    fn do_sample_false_is_greedy_whatever_the_rest() {
        let config = parse(r#"{"do_sample": false, "temperature": 0.0}"#).expect("a good file");
        assert_eq!(config.draw, Draw::Greedy);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (json, field) in [
            (r#"{"temperature": 0.0}"#, "temperature"),
            (r#"{"temperature": -1.0}"#, "temperature"),
            (r#"{"top_k": -1}"#, "top_k"),
            (r#"{"top_p": 1.5}"#, "top_p"),
            (r#"{"top_p": -0.1}"#, "top_p"),
            (r#"{"repetition_penalty": 1.2}"#, "repetition_penalty"),
            (r#"{"num_beams": 4}"#, "num_beams"),
        ] {
            assert_eq!(parse(json), Err(field), "{json}");
        }
    }

    #[test]
    fn settings_at_their_neutral_value_are_accepted() {
        assert!(parse(r#"{"num_beams": 1, "repetition_penalty": 1.0, "min_p": null}"#).is_ok());
    }
}
