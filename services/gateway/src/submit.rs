//! A checked request → the record and the AR message of a job. Pure: id, seed and clock are arguments.

use std::time::Duration;

use protocol::{
    ArJob, ErrorCode, ImageSize, JobId, JobRecord, OutputIndex, OutputRequest, PriorityClass, Seed,
    StoredPrior, Tenant, TraceId, UnixMillis,
};

use crate::{
    reply::ApiError,
    request::{ImageRequest, PriorSource, Prompt},
};

/// Largest seed that is drawn for a request without one: torch's CPU generator keeps the low 32 bits of a seed, so
/// larger ones would only look different. Ten below, for the offsets of the outputs.
const SEED_DRAWN_MAX: u32 = u32::MAX - 10;

/// What the gateway adds to a request.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    pub(crate) job: JobId,
    /// For a request without one.
    pub(crate) drawn_seed: Seed,
    pub(crate) accepted_at: UnixMillis,
    /// For a request without one.
    pub(crate) timeout: Duration,
    pub(crate) tenant: Option<Tenant>,
    pub(crate) trace_id: Option<TraceId>,
}

/// What a new job starts from: its prior tokens are there, or the AR model writes them.
#[derive(Debug)]
pub(crate) struct Basis {
    size: ImageSize,
    prior: Option<StoredPrior>,
}

impl Basis {
    /// For a request with this `source`; `stored` is what there is under the name that it gives.
    pub(crate) fn of(source: PriorSource, stored: Option<StoredPrior>) -> Result<Self, ApiError> {
        match (source, stored) {
            (PriorSource::Model(size), _) => Ok(Self { size, prior: None }),
            (PriorSource::Earlier { .. }, None) => Err(prior_gone()),
            (PriorSource::Earlier { size: wanted, .. }, Some(prior)) => {
                let unusable =
                    || ApiError::new(ErrorCode::Internal, "the prior tokens are unusable");
                let size = prior.tokens.size().ok_or_else(unusable)?;
                if wanted.is_some_and(|wanted| wanted != size) {
                    let text =
                        format!("size must be {size}, which is that of prior_id, or left out");
                    return Err(ApiError::parameter("size", &text));
                }
                let prior = Some(prior);
                Ok(Self { size, prior })
            }
        }
    }
}

/// The refusal of a request for prior tokens that are not there.
pub(crate) fn prior_gone() -> ApiError {
    let text = "there are no prior tokens under this prior_id: they may have run out";
    ApiError::missing("prior_id", text)
}

/// Where a job's prior tokens come from.
#[derive(Debug)]
enum Prior {
    Model,
    Earlier(StoredPrior),
    /// From an earlier picture too, and they have run out since the job was begun.
    Gone,
}

impl From<Option<StoredPrior>> for Prior {
    fn from(stored: Option<StoredPrior>) -> Self {
        stored.map_or(Self::Model, Self::Earlier)
    }
}

/// A job as it goes to the bus.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) record: JobRecord,
    class: PriorityClass,
    prompt: Prompt,
    prior: Prior,
}

impl Order {
    pub(crate) fn new(request: ImageRequest, basis: Basis, admission: Admission) -> Self {
        let Admission {
            job,
            drawn_seed,
            accepted_at,
            timeout,
            tenant,
            trace_id,
        } = admission;
        let first = request.seed.unwrap_or(drawn_seed);
        let output = |index| {
            let seed = first
                .offset(index)
                .expect("a request's seed leaves room for its outputs, a drawn one too");
            OutputRequest { index, seed }
        };
        let outputs: Vec<OutputRequest> = OutputIndex::first(request.outputs).map(output).collect();
        let timeout = request.timeout.unwrap_or(timeout);
        let timeout_ms = UnixMillis::try_from(timeout.as_millis()).unwrap_or(UnixMillis::MAX);
        let record = JobRecord {
            job,
            outputs,
            size: basis.size,
            format: request.format,
            denoise: request.denoise,
            accepted_at,
            deadline_at: accepted_at.saturating_add(timeout_ms),
            tenant,
            trace_id,
        };
        Self {
            record,
            class: request.priority,
            prompt: request.prompt,
            prior: basis.prior.into(),
        }
    }

    /// The same job that somebody began to queue as `record`, for a request that is the same; `stored` is what there is
    /// by now under the name that it gives.
    pub(crate) fn again(
        request: ImageRequest,
        record: JobRecord,
        stored: Option<StoredPrior>,
    ) -> Self {
        let prior = match (request.source, stored) {
            (PriorSource::Model(_), _) => Prior::Model,
            (PriorSource::Earlier { .. }, stored) => stored.map_or(Prior::Gone, Prior::Earlier),
        };
        Self {
            record,
            class: request.priority,
            prompt: request.prompt,
            prior,
        }
    }

    /// Which queue it waits in.
    pub(crate) const fn class(&self) -> PriorityClass {
        self.class
    }

    /// The message for the AR stage; `None` where the prior tokens that belong into it have run out.
    pub(crate) fn ar_job(&self) -> Option<ArJob> {
        let prior = match &self.prior {
            Prior::Model => None,
            Prior::Earlier(stored) => Some(stored.clone()),
            Prior::Gone => return None,
        };
        let JobRecord {
            job,
            ref outputs,
            size,
            format,
            denoise,
            accepted_at,
            deadline_at,
            ..
        } = self.record;
        Some(ArJob {
            job,
            prompt: self.prompt.as_str().to_owned(),
            outputs: outputs.clone(),
            size,
            format,
            denoise,
            prior,
            accepted_at,
            deadline_at,
        })
    }
}

/// A seed for a request that has none.
pub(crate) fn draw_seed() -> Seed {
    let seed = rand::random_range(0..=SEED_DRAWN_MAX);
    Seed::new(seed.into()).expect("32 bits are below the maximum")
}

#[cfg(test)]
mod tests {
    use protocol::{PriorId, PriorTokens, PriorUsage};

    use super::*;

    fn request(body: &str) -> ImageRequest {
        ImageRequest::parse(body.as_bytes(), Duration::from_secs(600)).expect("allowed")
    }

    fn order(body: &str) -> Order {
        order_with(body, None).expect("allowed")
    }

    fn order_with(body: &str, stored: Option<StoredPrior>) -> Result<Order, ApiError> {
        let request = request(body);
        let drawn_seed = Seed::new(SEED_DRAWN_MAX.into()).expect("allowed");
        let admission = Admission {
            job: JobId::from_u128(1),
            drawn_seed,
            accepted_at: 1_000,
            timeout: Duration::from_secs(600),
            tenant: "studio".parse().ok(),
            trace_id: None,
        };
        let basis = Basis::of(request.source, stored)?;
        Ok(Order::new(request, basis, admission))
    }

    /// Of a picture of 64 x 32.
    fn stored() -> StoredPrior {
        StoredPrior {
            id: PriorId::from_u128(0xab),
            tokens: PriorTokens::new(1, 2, vec![1, 2]).expect("fills the grid"),
            usage: PriorUsage {
                prompt_tokens: 3,
                generated_tokens: 3,
                cached: false,
            },
        }
    }

    fn variation(more: &str) -> String {
        let id = stored().id;
        format!(r#"{{"prompt":"p","prior_id":"{id}"{more}}}"#)
    }

    fn seeds(order: &Order) -> Vec<u64> {
        order
            .record
            .outputs
            .iter()
            .map(|output| output.seed.get())
            .collect()
    }

    #[test]
    fn output_i_uses_seed_plus_i() {
        let order = order(r#"{"prompt":"p","n":3,"seed":7}"#);
        assert_eq!(seeds(&order), [7, 8, 9]);
        let message = order.ar_job().expect("it needs no prior tokens");
        assert_eq!(
            (message.outputs, message.prior),
            (order.record.outputs, None)
        );
    }

    #[test]
    fn the_largest_drawn_seed_has_room_for_ten_outputs_in_32_bits() {
        let order = order(r#"{"prompt":"p","n":10}"#);
        assert!(
            seeds(&order)
                .into_iter()
                .all(|seed| u32::try_from(seed).is_ok())
        );
    }

    #[test]
    fn the_deadline_counts_from_acceptance() {
        let order = order(r#"{"prompt":"p"}"#);
        assert_eq!(
            (order.record.accepted_at, order.record.deadline_at),
            (1_000, 601_000)
        );
        let message = order.ar_job().expect("it needs no prior tokens");
        assert_eq!(message.deadline_at, order.record.deadline_at);
    }

    #[test]
    fn a_variation_has_the_size_of_its_prior_tokens_and_takes_them_along() {
        for size in ["", r#","size":"64x32""#] {
            let order = order_with(&variation(size), Some(stored())).expect("allowed");
            assert_eq!(order.record.size.to_string(), "64x32");
            let message = order.ar_job().expect("its tokens are there");
            assert_eq!(message.prior, Some(stored()));
        }
    }

    #[test]
    fn a_variation_of_another_size_or_of_nothing_is_refused_by_name() {
        let refusal = |more: &str, stored| {
            let error = order_with(&variation(more), stored).expect_err("refused");
            (error.error().code, error.param().map(str::to_owned))
        };
        let other_size = refusal(r#","size":"32x64""#, Some(stored()));
        let named = |code, param: &str| (code, Some(param.to_owned()));
        assert_eq!(other_size, named(ErrorCode::InvalidParameter, "size"));
        assert_eq!(refusal("", None), named(ErrorCode::NotFound, "prior_id"));
    }

    #[test]
    fn a_job_that_is_begun_again_is_the_same_message_as_long_as_its_tokens_are_there() {
        let body = variation(r#","priority":"low""#);
        let first = order_with(&body, Some(stored())).expect("allowed");
        let again = |stored| Order::again(request(&body), first.record.clone(), stored);
        assert_eq!(again(Some(stored())).ar_job(), first.ar_job());
        assert_eq!(again(None).ar_job(), None);
        assert_eq!(again(None).class(), PriorityClass::Low);
        let plain = order(r#"{"prompt":"p"}"#);
        let again = Order::again(request(r#"{"prompt":"p"}"#), plain.record.clone(), None);
        assert_eq!(again.ar_job(), plain.ar_job());
    }

    #[test]
    fn a_requests_own_timeout_is_its_deadline() {
        let order = order(r#"{"prompt":"p","timeout_s":1.5}"#);
        assert_eq!(order.record.deadline_at, 2_500);
    }
}
