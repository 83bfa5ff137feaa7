//! `GET` and `DELETE /v1/images/jobs/{id}`: any job of the deployment, asked of any gateway.

use std::sync::Arc;

use futures::future::try_join_all;
use messaging::{BusError, ProgressByOutput};
use protocol::{ErrorCode, JobId, JobRecord, OutputIndex};
use service::exit::chain;
use warp::{
    Filter,
    filters::BoxedFilter,
    host::Authority,
    http::{HeaderValue, header},
    reply::Response,
};

use super::{answer, host, ok, only, spanned, with};
use crate::{
    gateway::Gateway,
    job_answer::{JobAnswer, JobView, LifeByOutput},
    outcome::EndedByOutput,
    reply::{ApiError, with_request_id},
    tenants::Caller,
    waiting::so_far,
};

/// The pattern of the path, as a trace has it.
const JOB: &str = "/v1/images/jobs/{id}";

pub(super) fn routes(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    let path = warp::path!("v1" / "images" / "jobs" / String);
    let show = path
        .and(warp::get())
        .and(spanned(JOB))
        .and(with(gateway))
        .and(warp::header::headers_cloned())
        .and(host())
        .then(|id: String, span, gateway: Arc<Gateway>, headers, host| {
            answer(span, async move {
                let caller = gateway.caller(&headers)?;
                show(&gateway, &caller, &id, host).await
            })
        });
    let cancel = path
        .and(warp::delete())
        .and(spanned(JOB))
        .and(with(gateway))
        .and(warp::header::headers_cloned())
        .and(host())
        .then(|id: String, span, gateway: Arc<Gateway>, headers, host| {
            answer(span, async move {
                let caller = gateway.caller(&headers)?;
                cancel(&gateway, &caller, &id, host).await
            })
        });
    let others = path.map(|_| only("GET, DELETE")());
    show.or(cancel).unify().or(others).unify().boxed()
}

fn not_found() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "there is no such job")
}

/// Another's job is not there.
fn theirs(caller: &Caller, record: &JobRecord) -> Result<(), ApiError> {
    let seen = caller.may_see(record).then_some(());
    seen.ok_or_else(not_found)
}

async fn show(
    gateway: &Gateway,
    caller: &Caller,
    id: &str,
    host: Option<Authority>,
) -> Result<Response, ApiError> {
    let id: JobId = id.parse().map_err(|_| not_found())?;
    let (record, ended, progress) = match gateway.jobs.open(id) {
        Some(open) => {
            theirs(caller, &open.record)?;
            let (ended, progress) = so_far(&open);
            (open.record, ended, progress)
        }
        None => {
            let record = Arc::new(gateway.bus.job(id).await?.ok_or_else(not_found)?);
            theirs(caller, &record)?;
            let ended = gateway.jobs.stored(&record).await?.ok_or_else(not_found)?;
            // Progress is not stored: only the gateway that follows the job knows it.
            (record, ended, ProgressByOutput::new())
        }
    };
    told(gateway, &record, &ended, &progress, host).await
}

/// Ends what has not ended. Answers with what the job is now, which for a job that had ended is what it was.
async fn cancel(
    gateway: &Gateway,
    caller: &Caller,
    id: &str,
    host: Option<Authority>,
) -> Result<Response, ApiError> {
    let id: JobId = id.parse().map_err(|_| not_found())?;
    let record = gateway.bus.job(id).await?.ok_or_else(not_found)?;
    theirs(caller, &record)?;
    let ended = gateway.jobs.cancel(&record).await?.ok_or_else(not_found)?;
    told(gateway, &record, &ended, &ProgressByOutput::new(), host).await
}

async fn told(
    gateway: &Gateway,
    record: &JobRecord,
    ended: &EndedByOutput,
    progress: &ProgressByOutput,
    host: Option<Authority>,
) -> Result<Response, ApiError> {
    let lives = lives(gateway, record).await?;
    let view = JobView {
        record,
        ended,
        progress,
        lives: &lives,
        base: &gateway.address.base(host.as_ref()),
        result_ttl: gateway.result_ttl.get(),
    };
    let mut response = with_request_id(ok(&JobAnswer::new(view)), record.job);
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// What the outputs of a job have been through.
async fn lives(gateway: &Gateway, record: &JobRecord) -> Result<LifeByOutput, BusError> {
    let life = async |index: OutputIndex| match gateway.bus.life(record.job.output(index)).await {
        Ok(life) => Ok(life.map(|life| (index, life))),
        // Of a worker of another version: no reason to hide the rest.
        Err(error @ BusError::Decode { .. }) => {
            tracing::warn!(error = chain(&error), "a life cannot be read");
            Ok(None)
        }
        Err(error) => Err(error),
    };
    let lives = try_join_all(record.outputs.iter().map(|output| life(output.index))).await?;
    Ok(lives.into_iter().flatten().collect())
}
