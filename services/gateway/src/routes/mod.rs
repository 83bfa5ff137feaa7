//! The HTTP surface: warp filters by area, each route one plain async fn, every answer JSON but the pictures.

mod health;
mod images;
mod jobs;

use std::{convert::Infallible, sync::Arc};

use opentelemetry::{global, propagation::Extractor};
use protocol::ErrorCode;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use warp::{
    Filter, Rejection,
    filters::BoxedFilter,
    http::{HeaderMap, StatusCode},
    reject::{InvalidHeader, MethodNotAllowed},
    reply::Response,
};

use crate::{gateway::Gateway, reply::ApiError};

/// Everything the gateway answers, each request in a span of its own.
pub(crate) fn all(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    images::routes(gateway)
        .or(jobs::routes(gateway))
        .unify()
        .or(health::routes(gateway))
        .unify()
        .recover(|rejection| async move { Ok::<_, Infallible>(refuse(&rejection).into_response()) })
        .unify()
        .with(warp::trace(|request| {
            span(request.method(), request.path(), request.request_headers())
        }))
        .map(warp::Reply::into_response)
        .boxed()
}

/// What no route took.
fn refuse(rejection: &Rejection) -> ApiError {
    if rejection.find::<InvalidHeader>().is_some() {
        ApiError::new(ErrorCode::InvalidParameter, "a header cannot be read")
    } else if rejection.is_not_found() || rejection.find::<MethodNotAllowed>().is_some() {
        ApiError::new(ErrorCode::NotFound, "there is nothing at this path")
    } else {
        tracing::error!(?rejection, "a request was rejected in an unknown way");
        ApiError::new(ErrorCode::Internal, "the request cannot be answered")
    }
}

/// A handler's end.
fn answer(outcome: Result<Response, ApiError>) -> Response {
    let response = outcome.unwrap_or_else(|error| {
        tracing::debug!(code = %error.error().code, text = error.error().text, "request is refused");
        error.into_response()
    });
    tracing::Span::current().record("http.response.status_code", response.status().as_u16());
    response
}

/// Hands the gateway to a route.
fn with(
    gateway: &Arc<Gateway>,
) -> impl Filter<Extract = (Arc<Gateway>,), Error = Infallible> + Clone + use<> {
    let gateway = Arc::clone(gateway);
    warp::any().map(move || Arc::clone(&gateway))
}

/// The end of a path's methods.
fn only(methods: &'static str) -> impl Fn() -> Response + Clone {
    move || answer(Err(ApiError::method_not_allowed(methods)))
}

/// The span of a request, in the trace that its sender started. The path is cut: it comes from outside.
fn span(method: &warp::http::Method, path: &str, headers: &HeaderMap) -> tracing::Span {
    let path: String = path.chars().take(PATH_CHARS_MAX).collect();
    let span = tracing::info_span!(
        "request",
        http.request.method = %method,
        url.path = path,
        http.response.status_code = tracing::field::Empty,
        job = tracing::field::Empty,
    );
    let parent =
        global::get_text_map_propagator(|propagator| propagator.extract(&Headers(headers)));
    // Without a telemetry layer, as in tests, there is no trace to join.
    if let Err(error) = span.set_parent(parent) {
        tracing::trace!(%error, "the request's trace is not joined");
    }
    span
}

/// The longest path of ours has 64 characters.
const PATH_CHARS_MAX: usize = 128;

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(warp::http::HeaderName::as_str).collect()
    }
}

/// A JSON answer with status 200.
fn ok(body: &impl serde::Serialize) -> Response {
    crate::reply::json(StatusCode::OK, body)
}
