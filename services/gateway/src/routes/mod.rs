//! The HTTP surface: warp filters by area, each route one plain async fn, every answer JSON but the pictures.

mod health;
mod images;
mod jobs;
mod workers;

use std::{convert::Infallible, future::Future, sync::Arc};

use opentelemetry::{global, propagation::Extractor};
use protocol::{
    ErrorCode,
    trace::{attribute, value},
};
use service::telemetry::spans;
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use warp::{
    Filter, Rejection,
    filters::{BoxedFilter, path::FullPath},
    host::Authority,
    http::{HeaderMap, Method, StatusCode},
    reject::MethodNotAllowed,
    reply::Response,
};

use crate::{
    gateway::Gateway,
    reply::{ApiError, with_trace_id},
};

/// Everything the gateway answers.
pub(crate) fn all(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    images::routes(gateway)
        .or(jobs::routes(gateway))
        .unify()
        .or(workers::routes(gateway))
        .unify()
        .or(health::routes(gateway))
        .unify()
        .recover(|rejection| async move { Ok::<_, Infallible>(refuse(&rejection).into_response()) })
        .unify()
        .boxed()
}

/// What no route took.
fn refuse(rejection: &Rejection) -> ApiError {
    if rejection.is_not_found() || rejection.find::<MethodNotAllowed>().is_some() {
        ApiError::new(ErrorCode::NotFound, "there is nothing at this path")
    } else {
        tracing::error!(?rejection, "a request was rejected in an unknown way");
        ApiError::new(ErrorCode::Internal, "the request cannot be answered")
    }
}

/// Runs a handler in its request's span and writes its end down.
async fn answer(span: Span, handler: impl Future<Output = Result<Response, ApiError>>) -> Response {
    let answer = async {
        let response = handler.await.unwrap_or_else(|error| {
            let code = error.error().code;
            tracing::debug!(%code, text = error.error().text, "request is refused");
            // Of a queued one the span knows already.
            if let Some(job) = error.unqueued() {
                Span::current().record(attribute::JOB_ID, tracing::field::display(job));
            }
            error.into_response()
        });
        let (status, span) = (response.status(), Span::current());
        // Signed: of other whole numbers the layer makes texts.
        let code = i64::from(status.as_u16());
        span.record(attribute::HTTP_RESPONSE_STATUS_CODE, code);
        if status.is_server_error() {
            spans::fail_as(&span, status.as_str().to_owned());
        }
        match spans::trace_id() {
            Some(trace) => with_trace_id(response, &trace),
            None => response,
        }
    };
    answer.instrument(span).await
}

/// Hands the gateway to a route.
fn with(
    gateway: &Arc<Gateway>,
) -> impl Filter<Extract = (Arc<Gateway>,), Error = Infallible> + Clone + use<> {
    let gateway = Arc::clone(gateway);
    warp::any().map(move || Arc::clone(&gateway))
}

/// What the client called. An unreadable one is none: the fallback of a path would take it for a wrong method.
fn host() -> impl Filter<Extract = (Option<Authority>,), Error = Infallible> + Clone {
    let unreadable = warp::any().map(|| None);
    warp::host::optional().or(unreadable).unify()
}

/// The end of a path's methods.
fn only(methods: &'static str) -> impl Fn() -> Response + Clone {
    move || ApiError::method_not_allowed(methods).into_response()
}

/// The span of a request. Not warp's own: that one writes a line per request, and an error for each 503.
fn spanned(route: &'static str) -> impl Filter<Extract = (Span,), Error = Infallible> + Clone {
    warp::method()
        .and(warp::path::full())
        .and(warp::header::headers_cloned())
        .map(move |method, path: FullPath, headers| {
            let path = path.as_str();
            span(&Asked { route, path }, &method, &headers)
        })
}

/// The path of a request, and what it is one of.
struct Asked<'a> {
    route: &'static str,
    path: &'a str,
}

/// In the trace that the request's sender started. The path is cut: it comes from outside.
fn span(asked: &Asked<'_>, method: &Method, headers: &HeaderMap) -> Span {
    let Asked { route, path } = asked;
    let path: String = path.chars().take(PATH_CHARS_MAX).collect();
    let span = tracing::info_span!(
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        { attribute::URL_PATH } = path,
        { attribute::HTTP_RESPONSE_STATUS_CODE } = tracing::field::Empty,
        { attribute::JOB_ID } = tracing::field::Empty,
    );
    spans::set(&span, attribute::URL_SCHEME, value::HTTP);
    spans::set(&span, attribute::HTTP_ROUTE, *route);
    spans::set(&span, attribute::HTTP_REQUEST_METHOD, method.to_string());
    let parent =
        global::get_text_map_propagator(|propagator| propagator.extract(&Headers(headers)));
    // Without a telemetry layer, as in most tests, there is no trace to join.
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
