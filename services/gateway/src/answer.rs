//! Records and results → OpenAI's images response with our fields beside it. Pure.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use protocol::{
    ErrorCode, ImageFormat, ImageSize, JobId, JobRecord, OutputId, OutputIndex, OutputRequest,
    OutputTimings, PriorId, PriorUsage, Seed, UnixMillis,
};
use serde::Serialize;

use crate::{outcome::EndedByOutput, reply::ApiError};

/// How the pictures are in the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pictures<'a> {
    /// As addresses that start with this.
    Addresses(&'a str),
    /// As base64 of these bytes.
    Bytes(&'a BTreeMap<OutputIndex, Vec<u8>>),
}

/// The path of a picture.
pub(crate) fn content_path(output: OutputId) -> String {
    format!("/v1/images/{output}/content")
}

/// The path of a job.
pub(crate) fn job_path(job: JobId) -> String {
    format!("/v1/images/jobs/{job}")
}

/// OpenAI's images response. Ours are `id`; `id`, `seed`, `prior_id` and `timings` of an image; and `cached_tokens`.
#[derive(Debug, Serialize)]
pub(crate) struct ImagesAnswer {
    created: u64,
    id: JobId,
    data: Vec<Image>,
    size: ImageSize,
    output_format: ImageFormat,
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct Image {
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    b64_json: Option<String>,
    id: OutputId,
    seed: Seed,
    /// Under which variations of it can be asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    prior_id: Option<PriorId>,
    timings: Timings,
}

/// Where an output's time went, in milliseconds; the parts add up to the total.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Timings {
    ar_wait_ms: Option<u64>,
    ar_run_ms: Option<u64>,
    denoise_wait_ms: Option<u64>,
    denoise_run_ms: Option<u64>,
    decode_run_ms: Option<u64>,
    total_ms: u64,
}

impl From<OutputTimings> for Timings {
    fn from(at: OutputTimings) -> Self {
        // Clocks of two machines may disagree by more than a stage takes: never below 0.
        let between =
            |from: Option<UnixMillis>, to: Option<UnixMillis>| Some(to?.saturating_sub(from?));
        Self {
            ar_wait_ms: between(Some(at.accepted_at), at.ar_started_at),
            ar_run_ms: between(at.ar_started_at, at.ar_finished_at),
            denoise_wait_ms: between(at.ar_finished_at, at.denoise_started_at),
            denoise_run_ms: between(at.denoise_started_at, at.denoise_finished_at),
            decode_run_ms: between(at.denoise_finished_at, Some(at.finished_at)),
            total_ms: at.finished_at.saturating_sub(at.accepted_at),
        }
    }
}

/// Tokens of the AR stage. The outputs share one prompt, so it counts once.
///
/// Tokens that were sampled for an earlier picture count like others, and once more as `cached_tokens`, which is
/// OpenAI's word: those of `output_tokens` that the AR model did not sample for this job, and the prompt's if it did not
/// read it for any output.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    total_tokens: u64,
    input_tokens_details: InputTokens,
    output_tokens_details: OutputTokens,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct InputTokens {
    text_tokens: u64,
    image_tokens: u64,
    cached_tokens: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct OutputTokens {
    cached_tokens: u64,
}

impl Usage {
    pub(crate) fn of(ended: &EndedByOutput) -> Self {
        let used = || ended.values().filter_map(|ended| ended.usage);
        let input = used()
            .map(|usage| u64::from(usage.prompt_tokens))
            .max()
            .unwrap_or(0);
        let sum = |used: &mut dyn Iterator<Item = PriorUsage>| {
            used.map(|usage| u64::from(usage.generated_tokens)).sum()
        };
        let output: u64 = sum(&mut used());
        let all_cached = used().all(|usage| usage.cached);
        Self {
            input_tokens: input,
            output_tokens: output,
            total_tokens: input + output,
            input_tokens_details: InputTokens {
                text_tokens: input,
                image_tokens: 0,
                cached_tokens: if all_cached { input } else { 0 },
            },
            output_tokens_details: OutputTokens {
                cached_tokens: sum(&mut used().filter(|usage| usage.cached)),
            },
        }
    }
}

impl ImagesAnswer {
    /// The answer to a job all of whose outputs are pictures; else the error of the first that is none.
    pub(crate) fn new(
        record: &JobRecord,
        ended: &EndedByOutput,
        pictures: Pictures<'_>,
    ) -> Result<Self, ApiError> {
        let defect =
            || ApiError::new(ErrorCode::Internal, "an output has no result").of_job(record.job);
        let mut data = Vec::with_capacity(record.outputs.len());
        let mut finished_at = record.accepted_at;
        for OutputRequest { index, seed } in &record.outputs {
            let ended = ended.get(index).ok_or_else(defect)?;
            ended
                .outcome
                .clone()
                .map_err(|error| ApiError::from(error).of_job(record.job))?;
            finished_at = finished_at.max(ended.timings.finished_at);
            let id = record.job.output(*index);
            let (url, b64_json) = match pictures {
                Pictures::Addresses(base) => (Some(format!("{base}{}", content_path(id))), None),
                Pictures::Bytes(bytes) => (
                    None,
                    Some(BASE64.encode(bytes.get(index).ok_or_else(defect)?)),
                ),
            };
            data.push(Image {
                url,
                b64_json,
                id,
                seed: *seed,
                prior_id: ended.prior_id,
                timings: ended.timings.into(),
            });
        }
        Ok(Self {
            created: finished_at / 1_000,
            id: record.job,
            data,
            size: record.size,
            output_format: record.format,
            usage: Usage::of(ended),
        })
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
