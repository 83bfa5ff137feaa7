//! A checked request → the record and the AR message of a job. Pure: id, seed and clock are arguments.

use std::time::Duration;

use protocol::{
    ArJob, JobId, JobRecord, OutputIndex, OutputRequest, PriorityClass, Seed, UnixMillis,
};

use crate::request::{ImageRequest, Prompt};

/// Largest seed that is drawn for a request without one: torch's CPU generator keeps the low 32 bits of a seed, so
/// larger ones would only look different. Ten below, for the offsets of the outputs.
const SEED_DRAWN_MAX: u32 = u32::MAX - 10;

/// What the gateway adds to a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission {
    pub(crate) job: JobId,
    /// For a request without one.
    pub(crate) drawn_seed: Seed,
    pub(crate) accepted_at: UnixMillis,
    /// For a request without one.
    pub(crate) timeout: Duration,
}

/// A job as it goes to the bus.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) record: JobRecord,
    prompt: Prompt,
}

impl Order {
    pub(crate) fn new(request: ImageRequest, admission: &Admission) -> Self {
        let Admission {
            job,
            drawn_seed,
            accepted_at,
            timeout,
        } = *admission;
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
            size: request.size,
            format: request.format,
            denoise: request.denoise,
            accepted_at,
            deadline_at: accepted_at.saturating_add(timeout_ms),
        };
        Self {
            record,
            prompt: request.prompt,
        }
    }

    /// The same job that somebody began to queue as `record`, for a request that is the same.
    pub(crate) fn again(request: ImageRequest, record: JobRecord) -> Self {
        Self {
            record,
            prompt: request.prompt,
        }
    }

    /// Which queue it waits in.
    pub(crate) fn class(&self) -> PriorityClass {
        PriorityClass::Standard
    }

    /// The message for the AR stage.
    pub(crate) fn ar_job(&self) -> ArJob {
        let JobRecord {
            job,
            ref outputs,
            size,
            format,
            denoise,
            accepted_at,
            deadline_at,
        } = self.record;
        ArJob {
            job,
            prompt: self.prompt.as_str().to_owned(),
            outputs: outputs.clone(),
            size,
            format,
            denoise,
            prior: None,
            accepted_at,
            deadline_at,
        }
    }
}

/// A seed for a request that has none.
pub(crate) fn draw_seed() -> Seed {
    let seed = rand::random_range(0..=SEED_DRAWN_MAX);
    Seed::new(seed.into()).expect("32 bits are below the maximum")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(body: &str) -> Order {
        let request =
            ImageRequest::parse(body.as_bytes(), Duration::from_secs(600)).expect("allowed");
        let drawn_seed = Seed::new(SEED_DRAWN_MAX.into()).expect("allowed");
        let admission = Admission {
            job: JobId::from_u128(1),
            drawn_seed,
            accepted_at: 1_000,
            timeout: Duration::from_secs(600),
        };
        Order::new(request, &admission)
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
        assert_eq!(order.ar_job().outputs, order.record.outputs);
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
        assert_eq!(order.ar_job().deadline_at, order.record.deadline_at);
    }

    #[test]
    fn a_requests_own_timeout_is_its_deadline() {
        let order = order(r#"{"prompt":"p","timeout_s":1.5}"#);
        assert_eq!(order.record.deadline_at, 2_500);
    }
}
