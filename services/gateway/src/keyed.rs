//! Requests under an idempotency key. The first one that writes what the key stands for owns the job; every other one
//! that is the same joins it, wherever it is: it finishes what a gateway that died has begun, follows what runs, and
//! reads what has ended.

use protocol::{ErrorCode, IdempotencyKey, IdempotencyRecord, JobRecord, PriorityClass};
use serde_json::{Value, json};
use service::exit::chain;
use sha2::{Digest, Sha256};
use warp::http::HeaderMap;

use crate::{
    gateway::Gateway,
    jobs::{Claiming, NotQueued, OpenJob, Start},
    reply::ApiError,
    request::{ImageRequest, PriorSource},
    submit::Order,
    tenants::Caller,
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
        source,
        priority,
        format,
        denoise,
        seed,
        response_format,
        timeout,
    } = request;
    let (size, prior) = match source {
        PriorSource::Model(size) => (Some(*size), None),
        PriorSource::Earlier { id, size } => (*size, Some(*id)),
    };
    // Its fields in a fixed order, each as unambiguous text. A change here makes every live key "reused".
    let mut canonical = vec![
        json!("fresco image request 1"),
        json!(prompt.as_str()),
        json!(outputs),
        json!(size.map(|size| size.to_string())),
        json!(format.to_string()),
        json!(denoise.steps()),
        json!(denoise.guidance_scale().to_bits()),
        json!(seed.map(|seed| seed.get())),
        json!(response_format.as_str()),
        json!(timeout.map(|timeout| timeout.as_nanos().to_string())),
    ];
    // Only where they say something: a request that leaves them out has the digest it had before there were any.
    if *priority != PriorityClass::default() {
        canonical.push(json!(["priority", priority]));
    }
    if let Some(prior) = prior {
        canonical.push(json!(["prior_id", prior]));
    }
    let hash = Sha256::digest(Value::from(canonical).to_string());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Gateway {
    /// The job of `request` under `key`: one in all of this caller's, however often and wherever it is asked for.
    pub(crate) async fn take_keyed(
        &self,
        request: ImageRequest,
        key: IdempotencyKey,
        caller: &Caller,
    ) -> Result<Taken, ApiError> {
        let key = key.of(caller.tenant());
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
        let order = self.order(request.clone(), caller).await?;
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
        let joined = self.join_job(request, record).await;
        joined.map(Taken::Joined)
    }

    async fn join_job(
        &self,
        request: ImageRequest,
        record: JobRecord,
    ) -> Result<OpenJob, ApiError> {
        let mut open = match self.jobs.followed(record.job) {
            Some(open) => open,
            None => {
                // Its gateway may have died before it wrote the record, and whoever asks for the job later needs it.
                let written = self.bus.create_job(&record).await;
                written.map_err(|error| {
                    tracing::warn!(error = chain(&error), "the record of a job is not written");
                    ApiError::new(error.code(), "the message broker does not answer")
                })?;
                let gone = || ApiError::new(ErrorCode::NotFound, "the job's results have run out");
                let ended = self.jobs.stored(&record).await?.ok_or_else(gone)?;
                if ended.len() == record.outputs.len() {
                    return Ok(OpenJob::of_stored(record, ended));
                }
                let prior = self.stored_prior(&request).await?;
                let order = Order::again(request, record, prior);
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
            r#"{"prompt":"p","priority":"standard","prior_id":null}"#,
        ] {
            assert_eq!(of(same), plain, "{same}");
        }
    }

    #[test]
    fn a_digest_stays_what_it_is() {
        // Another one makes every key reused that was claimed before an upgrade.
        let digest = of(r#"{"prompt":"p"}"#);
        assert_eq!(
            digest,
            "68ef1967124a572cc897f7e2c357de6f9fad8e0d154a8472819e6655999640b6"
        );
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
            r#"{"prompt":"p","priority":"high"}"#,
            r#"{"prompt":"p","priority":"low"}"#,
            r#"{"prompt":"p","prior_id":"0123456789abcdef0123456789abcdef"}"#,
            r#"{"prompt":"p","prior_id":"0123456789abcdef0123456789abcde0"}"#,
            r#"{"prompt":"p","prior_id":"0123456789abcdef0123456789abcdef","size":"1024x1024"}"#,
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
