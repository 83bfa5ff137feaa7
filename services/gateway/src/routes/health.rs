//! `/livez` and `/readyz` of the API's own address, in JSON; `/metrics` stays on `--health-listen`.

use std::sync::Arc;

use service::health::Readiness;
use warp::{Filter, filters::BoxedFilter, reply::Response};

use super::{answer, ok, only, with};
use crate::{gateway::Gateway, reply::ApiError};

pub(super) fn routes(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    let livez = warp::path!("livez");
    let readyz = warp::path!("readyz");
    let live = livez
        .and(warp::get())
        .map(|| answer(Ok(ok(&serde_json::json!({ "status": "live" })))));
    let ready = readyz
        .and(warp::get())
        .and(with(gateway))
        .map(|gateway: Arc<Gateway>| answer(ready(&gateway)));
    let others = livez.or(readyz).unify().map(only("GET"));
    live.or(ready).unify().or(others).unify().boxed()
}

fn ready(gateway: &Gateway) -> Result<Response, ApiError> {
    match gateway.health.snapshot() {
        Readiness::Ready => Ok(ok(&serde_json::json!({ "status": "ready" }))),
        Readiness::NotReady(reason) => Err(ApiError::new(protocol::ErrorCode::NotReady, &reason)),
    }
}
