//! `GET /v1/images/jobs/{id}`: any job of the deployment, asked of any gateway.

use std::sync::Arc;

use messaging::ProgressByOutput;
use protocol::{ErrorCode, JobId};
use warp::{
    Filter,
    filters::BoxedFilter,
    host::Authority,
    http::{HeaderValue, header},
    reply::Response,
};

use super::{answer, host, ok, only, spanned, with};
use crate::{
    answer::JobAnswer,
    gateway::Gateway,
    reply::{ApiError, with_request_id},
};

pub(super) fn routes(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    let path = warp::path!("v1" / "images" / "jobs" / String);
    let show = path
        .and(warp::get())
        .and(spanned())
        .and(with(gateway))
        .and(host())
        .then(|id: String, span, gateway: Arc<Gateway>, host| {
            answer(span, async move { show(&gateway, &id, host).await })
        });
    let others = path.map(|_| only("GET")());
    show.or(others).unify().boxed()
}

async fn show(gateway: &Gateway, id: &str, host: Option<Authority>) -> Result<Response, ApiError> {
    let not_found = || ApiError::new(ErrorCode::NotFound, "there is no such job");
    let id: JobId = id.parse().map_err(|_| not_found())?;
    let (record, ended, progress) = match gateway.jobs.open(id) {
        Some(open) => {
            let (ended, progress) = (open.ended.borrow().clone(), open.progress.borrow().clone());
            (open.record, ended, progress)
        }
        None => {
            let record = Arc::new(gateway.bus.job(id).await?.ok_or_else(not_found)?);
            let ended = gateway.jobs.stored(&record).await?.ok_or_else(not_found)?;
            // Progress is not stored: only the gateway that follows the job knows it.
            (record, ended, ProgressByOutput::new())
        }
    };
    let base = gateway.address.base(host.as_ref());
    let mut response = with_request_id(ok(&JobAnswer::new(&record, &ended, &progress, &base)), id);
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
