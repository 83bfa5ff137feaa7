//! Requests under an idempotency key. The first one that writes what the key stands for owns the job; every other one
//! that is the same joins it, wherever it is: it finishes what a gateway that died has begun, follows what runs, and
//! reads what has ended.

use protocol::{ErrorCode, IdempotencyKey, IdempotencyRecord};
use service::exit::chain;
use sha2::{Digest, Sha256};
use warp::http::HeaderMap;

use crate::{
    gateway::Gateway,
    jobs::{Claiming, NotQueued, OpenJob, Start},
    reply::ApiError,
    request::ImageRequest,
    submit::Order,
};

/// The header, and how refusals name it.
const HEADER: &str = "Idempotency-Key";

/// A job that this request got, by itself or from an earlier one.
#[derive(Debug)]
pub(crate) enum Taken {
    New(OpenJob),
    Joined(OpenJob),
}

/// The key that a client sent, if any.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, ApiError> {
    let refuse = |text: &str| ApiError::parameter(HEADER, text);
    let mut values = headers.get_all(HEADER).into_iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(refuse("Idempotency-Key is given more than once"));
    }
    let key = value.to_str().unwrap_or_default().parse();
    key.map(Some)
        .map_err(|error: protocol::IdempotencyKeyError| refuse(&error.to_string()))
}

/// Tells two requests apart, however their bodies were written. A seed that was not given stays not given: the one
/// drawn for the first request is the record's.
pub(crate) fn digest(request: &ImageRequest) -> String {
    let ImageRequest {
        prompt,
        outputs,
        size,
        format,
        denoise,
        seed,
        response_format,
        timeout,
    } = request;
    // Its fields in a fixed order, each as unambiguous text. A change here makes every live key "reused".
    let canonical = serde_json::json!([
        "fresco image request 1",
        prompt.as_str(),
        outputs,
        size.to_string(),
        format.to_string(),
        denoise.steps(),
        denoise.guidance_scale().to_bits(),
        seed.map(|seed| seed.get()),
        response_format.as_str(),
        timeout.map(|timeout| timeout.as_nanos().to_string()),
    ]);
    let hash = Sha256::digest(canonical.to_string());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Gateway {
    /// The job of `request` under `key`: one in all, however often and wherever it is asked for.
    pub(crate) async fn take_keyed(
        &self,
        request: ImageRequest,
        key: IdempotencyKey,
    ) -> Result<Taken, ApiError> {
        let request_digest = digest(&request);
        let _turn = loop {
            // Looked up before anything is taken for it: a joiner needs no room and no worker.
            if let Some(claimed) = self.bus.claimed(&key).await? {
                return self.join(request, &request_digest, claimed).await;
            }
            match self.turns.take(&key) {
                Ok(turn) => break turn,
                Err(over) => over.cancelled().await,
            }
        };
        self.check_ready()?;
        let order = self.order(request.clone());
        let room = self.jobs.admit(&order)?;
        let claiming = Claiming {
            key,
            request_digest: request_digest.clone(),
        };
        let mut open = self.jobs.follow(order, Start::Keyed(room, claiming))?;
        match open.queued().await {
            Ok(()) => Ok(Taken::New(open)),
            Err(NotQueued::Refused(error)) => Err(error),
            Err(NotQueued::Claimed(claimed)) => self.join(request, &request_digest, *claimed).await,
        }
    }

    async fn join(
        &self,
        request: ImageRequest,
        request_digest: &str,
        claimed: IdempotencyRecord,
    ) -> Result<Taken, ApiError> {
        let IdempotencyRecord {
            request_digest: of_claim,
            record,
        } = claimed;
        if of_claim != request_digest {
            let text = "the idempotency key belongs to another request";
            return Err(ApiError::new(ErrorCode::IdempotencyKeyReused, text));
        }
        self.counters.idempotent_joins.inc();
        let joined = self.join_job(Order::again(request, record)).await;
        joined.map(Taken::Joined)
    }

    async fn join_job(&self, order: Order) -> Result<OpenJob, ApiError> {
        let mut open = match self.jobs.followed(order.record.job) {
            Some(open) => open,
            None => {
                // Its gateway may have died before it wrote the record, and whoever asks for the job later needs it.
                let written = self.bus.create_job(&order.record).await;
                written.map_err(|error| {
                    tracing::warn!(error = chain(&error), "the record of a job is not written");
                    ApiError::new(error.code(), "the message broker does not answer")
                })?;
                let gone = || ApiError::new(ErrorCode::NotFound, "the job's results have run out");
                let ended = self.jobs.stored(&order.record).await?.ok_or_else(gone)?;
                if ended.len() == order.record.outputs.len() {
                    return Ok(OpenJob::of_stored(order.record, ended));
                }
                self.jobs.follow(order, Start::Resumed)?
            }
        };
        match open.queued().await {
            Ok(()) => Ok(open),
            Err(NotQueued::Refused(error)) => Err(error),
            // Who claims has another job than who was claimed before.
            Err(NotQueued::Claimed(_)) => Err(ApiError::new(
                ErrorCode::Internal,
                "the job gave way to itself",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use super::*;

    fn of(body: &str) -> String {
        let request = ImageRequest::parse(body.as_bytes(), Duration::from_secs(600));
        digest(&request.expect("allowed"))
    }

    #[test]
    fn the_same_request_has_one_digest_however_it_is_written() {
        let plain = of(r#"{"prompt":"p"}"#);
        assert_eq!(plain.len(), 64);
        for same in [
            r#" { "prompt" : "\u0070" } "#,
            r#"{"n":1,"prompt":"p","size":"1024x1024","seed":null}"#,
            r#"{"prompt":"p","num_inference_steps":50,"guidance_scale":1.50,"response_format":"url"}"#,
            r#"{"prompt":"p","model":"glm-image","user":"someone","output_format":"png"}"#,
        ] {
            assert_eq!(of(same), plain, "{same}");
        }
    }

    #[test]
    fn another_request_has_another_digest() {
        let bodies = [
            r#"{"prompt":"p"}"#,
            r#"{"prompt":"q"}"#,
            r#"{"prompt":"p","n":2}"#,
            r#"{"prompt":"p","size":"96x160"}"#,
            r#"{"prompt":"p","seed":0}"#,
            r#"{"prompt":"p","seed":1}"#,
            r#"{"prompt":"p","num_inference_steps":1}"#,
            r#"{"prompt":"p","guidance_scale":1.25}"#,
            r#"{"prompt":"p","response_format":"b64_json"}"#,
            r#"{"prompt":"p","timeout_s":600}"#,
            r#"{"prompt":"p","timeout_s":1}"#,
        ];
        let digests: BTreeSet<String> = bodies.iter().map(|body| of(body)).collect();
        assert_eq!(digests.len(), bodies.len());
    }

    #[test]
    fn a_key_is_one_header_of_visible_characters() {
        let read = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                let value = warp::http::HeaderValue::from_bytes(value).expect("a header value");
                headers.append("idempotency-key", value);
            }
            let key = key(&headers);
            key.map_err(|error| error.param().map(str::to_owned))
        };
        let named = Err(Some(HEADER.to_owned()));
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"a-1"]), Ok(Some("a-1".parse().expect("allowed"))));
        assert_eq!(read(&[b""]), named);
        assert_eq!(read(&[b"\xff"]), named);
        assert_eq!(read(&[b"a", b"a"]), named);
    }
}
