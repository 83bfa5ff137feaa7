//! The body of `POST /v1/images/generations` → a checked request. Pure: bytes in, request or refusal out, and what
//! comes out needs no second look. It must not know the bus, the clock or a route.
//!
//! Fields are read one by one as raw JSON, so that a wrong type, a repeated key or a number beyond its range can be
//! refused by the field's name. `null` is an absent field, as OpenAI's specification has it for the optional ones.

use std::{fmt, time::Duration};

use protocol::{
    DenoiseParameters, ErrorCode, ImageFormat, ImageSize, OutputIndex, ParameterError, PriorId,
    PriorityClass, Seed,
    limits::{OUTPUTS_PER_JOB_MAX, PROMPT_BYTES_MAX, PROMPT_RESERVED_TEXTS, SEED_MAX, STEPS_MAX},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::reply::ApiError;

/// The one model there is.
pub(crate) const MODEL: &str = "glm-image";

/// OpenAI's default for square pictures, and the size GLM-Image was made for.
const SIZE_DEFAULT: &str = "1024x1024";

/// A request that can be queued as it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ImageRequest {
    pub(crate) prompt: Prompt,
    /// Pictures wanted, 1 to [`OUTPUTS_PER_JOB_MAX`].
    pub(crate) outputs: u8,
    pub(crate) source: PriorSource,
    pub(crate) priority: PriorityClass,
    pub(crate) format: ImageFormat,
    pub(crate) denoise: DenoiseParameters,
    /// Leaves room for every output's offset; `None` lets the gateway draw one.
    pub(crate) seed: Option<Seed>,
    pub(crate) response_format: ResponseFormat,
    /// How long it may take, waiting included; `None` is as long as the gateway allows.
    pub(crate) timeout: Option<Duration>,
}

/// Where the prior tokens come from, and with them the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PriorSource {
    /// The AR model writes them, for pictures of this size.
    Model(ImageSize),
    /// They are an earlier picture's. It had a size, which the request may repeat.
    Earlier {
        id: PriorId,
        size: Option<ImageSize>,
    },
}

/// How the pictures come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    /// As addresses to fetch.
    Url,
    /// Inside the answer.
    Base64,
}

impl ResponseFormat {
    /// As the request writes it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Url => "url",
            Self::Base64 => "b64_json",
        }
    }
}

/// A text the AR model may read: not blank, not too long, without control texts.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Prompt(String);

impl Prompt {
    fn new(text: String) -> Result<Self, ApiError> {
        let refuse = |text: &str| Err(ApiError::parameter("prompt", text));
        if text.trim().is_empty() {
            return refuse("prompt must not be blank");
        }
        if text.len() > PROMPT_BYTES_MAX {
            return refuse(&format!(
                "prompt must be at most {PROMPT_BYTES_MAX} bytes of UTF-8 long"
            ));
        }
        if text.contains('\0') {
            return refuse("prompt must not hold NUL characters");
        }
        if let Some(reserved) = PROMPT_RESERVED_TEXTS
            .into_iter()
            .find(|reserved| text.contains(reserved))
        {
            return refuse(&format!(
                "prompt must not hold {reserved}, which controls the model"
            ));
        }
        Ok(Self(text))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Prints the length, never the text.
impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prompt({} bytes)", self.0.len())
    }
}

impl ImageRequest {
    /// The request that the bytes of a body are; it may ask for `timeout_max` at most.
    pub(crate) fn parse(body: &[u8], timeout_max: Duration) -> Result<Self, ApiError> {
        let not_json = |text: &str| ApiError::new(ErrorCode::InvalidJson, text);
        let text = std::str::from_utf8(body).map_err(|_| not_json("the body is not UTF-8"))?;
        let pairs: Pairs<'_> = serde_json::from_str(text).map_err(|error| {
            not_json(&format!(
                "the body is not a JSON object: line {} column {}",
                error.line(),
                error.column()
            ))
        })?;
        Fields::sort(pairs)?.check(timeout_max)
    }
}

/// The members of an object in their order, repeated keys included.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

/// The fields there are, unread.
#[derive(Default)]
struct Fields<'a> {
    prompt: Option<&'a RawValue>,
    model: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    size: Option<&'a RawValue>,
    prior_id: Option<&'a RawValue>,
    priority: Option<&'a RawValue>,
    seed: Option<&'a RawValue>,
    num_inference_steps: Option<&'a RawValue>,
    guidance_scale: Option<&'a RawValue>,
    response_format: Option<&'a RawValue>,
    output_format: Option<&'a RawValue>,
    timeout_s: Option<&'a RawValue>,
    /// Accepted and unused: clients send it out of habit, and it changes no picture.
    user: Option<&'a RawValue>,
}

impl<'a> Fields<'a> {
    /// Refuses unknown and repeated keys.
    fn sort(Pairs(pairs): Pairs<'a>) -> Result<Self, ApiError> {
        let mut fields = Self::default();
        for (key, value) in pairs {
            let field = match key.as_str() {
                "prompt" => &mut fields.prompt,
                "model" => &mut fields.model,
                "n" => &mut fields.n,
                "size" => &mut fields.size,
                "prior_id" => &mut fields.prior_id,
                "priority" => &mut fields.priority,
                "seed" => &mut fields.seed,
                "num_inference_steps" => &mut fields.num_inference_steps,
                "guidance_scale" => &mut fields.guidance_scale,
                "response_format" => &mut fields.response_format,
                "output_format" => &mut fields.output_format,
                "timeout_s" => &mut fields.timeout_s,
                "user" => &mut fields.user,
                _ => return Err(ApiError::unknown_parameter(&key)),
            };
            if field.replace(value).is_some() {
                return Err(ApiError::parameter(
                    &key,
                    &format!("{key} is given more than once"),
                ));
            }
        }
        Ok(fields)
    }

    fn check(&self, timeout_max: Duration) -> Result<ImageRequest, ApiError> {
        let prompt = read(self.prompt, "prompt", "a string")?;
        let prompt = Prompt::new(
            prompt.ok_or_else(|| ApiError::parameter("prompt", "prompt is required"))?,
        )?;
        let model: Option<String> = read(self.model, "model", "a string")?;
        if model.is_some_and(|model| model != MODEL) {
            return Err(ApiError::parameter(
                "model",
                &format!("model must be {MODEL}"),
            ));
        }
        let _unused: Option<String> = read(self.user, "user", "a string")?;
        let outputs = self.outputs()?;
        let format = text(self.output_format, "output_format")?;
        Ok(ImageRequest {
            prompt,
            outputs,
            source: self.source()?,
            priority: self.priority()?,
            format: format.unwrap_or(ImageFormat::Png),
            denoise: self.denoise()?,
            seed: self.seed(outputs)?,
            response_format: self.response_format()?,
            timeout: self.timeout(timeout_max)?,
        })
    }

    fn source(&self) -> Result<PriorSource, ApiError> {
        let size = text(self.size, "size")?;
        let expected = "that of an earlier image, 32 hexadecimal digits in small letters";
        match read(self.prior_id, "prior_id", expected)? {
            Some(id) => Ok(PriorSource::Earlier { id, size }),
            None => size
                .map_or_else(|| SIZE_DEFAULT.parse(), Ok)
                .map(PriorSource::Model)
                .map_err(|error| of_parameter(&error, "size")),
        }
    }

    fn priority(&self) -> Result<PriorityClass, ApiError> {
        let class = read(self.priority, "priority", "high, standard or low")?;
        Ok(class.unwrap_or_default())
    }

    fn outputs(&self) -> Result<u8, ApiError> {
        let expected = format!("a whole number from 1 to {OUTPUTS_PER_JOB_MAX}");
        let n = read(self.n, "n", &expected)?.unwrap_or(1);
        if (1..=OUTPUTS_PER_JOB_MAX).contains(&n) {
            Ok(n)
        } else {
            Err(must_be("n", &expected))
        }
    }

    fn seed(&self, outputs: u8) -> Result<Option<Seed>, ApiError> {
        let expected = format!("a whole number from 0 to {SEED_MAX}");
        let Some(seed) = read(self.seed, "seed", &expected)? else {
            return Ok(None);
        };
        let seed = Seed::new(seed).ok_or_else(|| must_be("seed", &expected))?;
        let fits = OutputIndex::first(outputs).all(|index| seed.offset(index).is_some());
        let text = format!("seed + n - 1 must be at most {SEED_MAX}: output i uses seed + i");
        if fits {
            Ok(Some(seed))
        } else {
            Err(ApiError::parameter("seed", &text))
        }
    }

    fn denoise(&self) -> Result<DenoiseParameters, ApiError> {
        let expected = format!("a whole number from 1 to {STEPS_MAX}");
        let steps: Option<u64> = read(self.num_inference_steps, "num_inference_steps", &expected)?;
        let steps = steps.map_or(Ok(DenoiseParameters::STEPS_DEFAULT), |steps| {
            u16::try_from(steps)
                .map_err(|_| of_parameter(&ParameterError::Steps, "num_inference_steps"))
        })?;
        let scale = read(self.guidance_scale, "guidance_scale", "a number")?;
        let scale = scale.unwrap_or(DenoiseParameters::GUIDANCE_SCALE_DEFAULT);
        DenoiseParameters::new(steps, scale).map_err(|error| {
            let param = if error == ParameterError::Steps {
                "num_inference_steps"
            } else {
                "guidance_scale"
            };
            of_parameter(&error, param)
        })
    }

    fn timeout(&self, timeout_max: Duration) -> Result<Option<Duration>, ApiError> {
        let expected = format!("a number above 0 and at most {}", timeout_max.as_secs_f64());
        let Some(seconds) = read(self.timeout_s, "timeout_s", &expected)? else {
            return Ok(None);
        };
        let timeout = Duration::try_from_secs_f64(seconds).ok();
        let allowed = timeout.filter(|timeout| !timeout.is_zero() && *timeout <= timeout_max);
        let timeout = allowed.ok_or_else(|| must_be("timeout_s", &expected))?;
        Ok(Some(timeout))
    }

    fn response_format(&self) -> Result<ResponseFormat, ApiError> {
        let format: Option<String> = read(self.response_format, "response_format", "a string")?;
        match format.as_deref() {
            None | Some("url") => Ok(ResponseFormat::Url),
            Some("b64_json") => Ok(ResponseFormat::Base64),
            Some(_) => Err(must_be("response_format", "url or b64_json")),
        }
    }
}

/// The field `param` as a `T`; `None` when it is absent or null.
fn read<'a, T: Deserialize<'a>>(
    field: Option<&'a RawValue>,
    param: &str,
    expected: &str,
) -> Result<Option<T>, ApiError> {
    let read =
        |raw: &'a RawValue| serde_json::from_str(raw.get()).map_err(|_| must_be(param, expected));
    field.map_or(Ok(None), read)
}

/// The field `param`, a string with rules of its own.
fn text<T>(field: Option<&RawValue>, param: &str) -> Result<Option<T>, ApiError>
where
    T: std::str::FromStr<Err = ParameterError>,
{
    let text: Option<String> = read(field, param, "a string")?;
    text.map(|text| text.parse())
        .transpose()
        .map_err(|error| of_parameter(&error, param))
}

fn must_be(param: &str, expected: &str) -> ApiError {
    ApiError::parameter(param, &format!("{param} must be {expected}"))
}

fn of_parameter(error: &ParameterError, param: &str) -> ApiError {
    ApiError::parameter(param, &error.to_string())
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
