//! What every route works with.

use std::time::Duration;

use messaging::{Bus, BusError};
use protocol::{ErrorCode, JobId, StoredPrior, trace::attribute};
use service::{Health, clock::unix_millis, exit::chain, health::Readiness, telemetry::spans};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Span;
use warp::http::HeaderMap;

use crate::{
    address::Address,
    counters::Counters,
    jobs::Jobs,
    outcome::ResultTtl,
    pictures::PicturesOut,
    reply::ApiError,
    request::{ImageRequest, PriorSource},
    submit::{Admission, Basis, Order, draw_seed},
    tenants::{Caller, Tenants, caller, name_of},
    turns::Turns,
};

/// Shared by all requests; changes only inside its parts.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) bus: Bus,
    pub(crate) jobs: Jobs,
    /// None where clients are not told apart.
    pub(crate) tenants: Option<Tenants>,
    pub(crate) turns: Turns,
    pub(crate) health: Health,
    /// The broker is silent and was not a moment ago: a new job is worth a try.
    pub(crate) patient: watch::Receiver<bool>,
    pub(crate) address: Address,
    pub(crate) counters: Counters,
    pub(crate) result_ttl: ResultTtl,
    /// Longest time a job may take, and the time it gets when it does not ask for less.
    pub(crate) job_timeout: Duration,
    /// Cancelled when the process is to stop: who leaves from then on may have been told to.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when the grace period is nearly over: who still waits is answered that the job goes on.
    pub(crate) answers_due: CancellationToken,
    pub(crate) pictures_out: PicturesOut,
}

impl Gateway {
    /// Who asks with these headers, which the request's span is told; the refusal of who may not.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let caller = caller(self.tenants.as_ref(), headers)?;
        let name = name_of(caller.tenant());
        spans::set(&Span::current(), attribute::TENANT, name.to_owned());
        Ok(caller)
    }

    /// What is stored under the name of earlier prior tokens that `request` gives, if it gives one.
    pub(crate) async fn stored_prior(
        &self,
        request: &ImageRequest,
    ) -> Result<Option<StoredPrior>, BusError> {
        match request.source {
            PriorSource::Model(_) => Ok(None),
            PriorSource::Earlier { id, .. } => self.bus.prior(id).await,
        }
    }

    /// A job of `caller` for `request`, as of now. What it needs of the past goes into it: what is stored may run out, and an
    /// accepted job does not depend on it.
    pub(crate) async fn order(
        &self,
        request: ImageRequest,
        caller: &Caller,
    ) -> Result<Order, ApiError> {
        let stored = self.stored_prior(&request).await?;
        let basis = Basis::of(request.source, stored)?;
        let admission = Admission {
            job: JobId::generate(),
            drawn_seed: draw_seed(),
            accepted_at: unix_millis(),
            timeout: self.job_timeout,
            tenant: caller.tenant().cloned(),
            trace_id: spans::trace_id().and_then(|trace| trace.parse().ok()),
        };
        Ok(Order::new(request, basis, admission))
    }

    /// Refuses a job that would find no stream or no worker, rather than letting it wait for its deadline. While a
    /// cluster elects, jobs wait for the new leader instead: the publish is tried for longer than that. A gateway
    /// that stops takes what was on its way to it: whoever sent it could not know, and `/readyz` tells the next ones.
    pub(crate) fn check_ready(&self) -> Result<(), ApiError> {
        if !self.bus.connection().borrow().up {
            return Err(ApiError::new(
                ErrorCode::BusUnavailable,
                "the message broker is not connected",
            ));
        }
        match self.health.snapshot() {
            Readiness::Ready => Ok(()),
            Readiness::NotReady(_) if self.stopping.is_cancelled() || *self.patient.borrow() => {
                Ok(())
            }
            // Admission refuses, and tells when to come back.
            Readiness::NotReady(_) if self.jobs.rooms.results_are_full() => Ok(()),
            Readiness::NotReady(reason) => Err(ApiError::new(ErrorCode::NotReady, &reason)),
        }
    }
}

impl From<BusError> for ApiError {
    fn from(error: BusError) -> Self {
        tracing::warn!(
            error = chain(&error),
            "message broker does not answer a request"
        );
        let text = match error.code() {
            ErrorCode::BusUnavailable => "the message broker does not answer",
            ErrorCode::NotReady => "the message broker refuses the request",
            _ => "what is stored cannot be read",
        };
        Self::new(error.code(), text)
    }
}
