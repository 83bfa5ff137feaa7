//! `/livez` and `/readyz` of the API's own address, in JSON; `/metrics` stays on `--health-listen`.

use std::sync::Arc;

use service::health::Readiness;
use tracing::Span;
use warp::{Filter, filters::BoxedFilter, reply::Response};

use super::{answer, ok, only, with};
use crate::{gateway::Gateway, reply::ApiError};

/// Without spans: a probe every few seconds is nobody's trace.
pub(super) fn routes(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    let livez = warp::path!("livez");
    let readyz = warp::path!("readyz");
    let live = livez
        .and(warp::get())
        .then(|| answer(Span::none(), async { Ok(status("live")) }));
    let ready = readyz
        .and(warp::get())
        .and(with(gateway))
        .then(|gateway: Arc<Gateway>| answer(Span::none(), async move { ready(&gateway) }));
    let others = livez.or(readyz).unify().map(only("GET"));
    live.or(ready).unify().or(others).unify().boxed()
}

fn status(word: &str) -> Response {
    ok(&serde_json::json!({ "status": word }))
}

fn ready(gateway: &Gateway) -> Result<Response, ApiError> {
    match gateway.health.snapshot() {
        Readiness::Ready => Ok(status("ready")),
        Readiness::NotReady(reason) => Err(ApiError::new(protocol::ErrorCode::NotReady, &reason)),
    }
}
