//! `/logfilter`: GET tells what is logged, PUT changes it, for who has the admin key.

use std::{pin::pin, time::Duration};

use bytes::Buf;
use futures::{Stream, StreamExt as _};
use tokio::time::timeout;
use warp::{
    Filter, Reply,
    filters::BoxedFilter,
    http::{HeaderValue, Method, StatusCode, header},
    reply::Response,
};

use super::keyed::{NoKey, keyed};
use crate::{
    AdminKey,
    exit::chain,
    telemetry::filter::{self, FilterError},
};

/// Largest filter, in bytes: a directive for each module there is takes half of it.
const FILTER_BYTES_MAX: usize = 4 * 1024;

/// How long it may take to arrive.
const FILTER_READ_TIME_MAX: Duration = Duration::from_secs(5);

/// The route; with no key there is none.
pub(super) fn routes(key: Option<AdminKey>) -> BoxedFilter<(Response,)> {
    warp::path!("logfilter")
        .and(keyed(key))
        .and(warp::method())
        .and(warp::body::stream())
        .then(
            |admitted: Result<(), NoKey>, method: Method, body| async move {
                if let Err(no_key) = admitted {
                    return no_key.into_response();
                }
                match method {
                    Method::GET => show(),
                    Method::PUT => change(body).await,
                    _ => not_allowed(),
                }
            },
        )
        .boxed()
}

fn show() -> Response {
    match filter::now() {
        Some(filter) => format!("{filter}\n").into_response(),
        None => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            &chain(&FilterError::NoLog),
        ),
    }
}

async fn change<B: Buf>(body: impl Stream<Item = Result<B, warp::Error>>) -> Response {
    let text = match timeout(FILTER_READ_TIME_MAX, read(body)).await {
        Ok(Ok(text)) => text,
        Ok(Err((status, text))) => return refuse(status, &text),
        Err(_) => {
            return refuse(
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time",
            );
        }
    };
    match filter::replace(&text) {
        Ok(filter) => format!("{filter}\n").into_response(),
        Err(error @ FilterError::Directive { .. }) => {
            refuse(StatusCode::BAD_REQUEST, &chain(&error))
        }
        Err(error @ FilterError::NoLog) => {
            refuse(StatusCode::INTERNAL_SERVER_ERROR, &chain(&error))
        }
    }
}

/// The body, or why it is refused.
async fn read<B: Buf>(
    body: impl Stream<Item = Result<B, warp::Error>>,
) -> Result<String, (StatusCode, String)> {
    let (mut body, mut bytes) = (pin!(body), Vec::new());
    while let Some(chunk) = body.next().await {
        let broken = |_| (StatusCode::BAD_REQUEST, "the body broke off".to_owned());
        let mut chunk = chunk.map_err(broken)?;
        if bytes.len() + chunk.remaining() > FILTER_BYTES_MAX {
            let text = format!("the body must be at most {FILTER_BYTES_MAX} bytes");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        let part = chunk.copy_to_bytes(chunk.remaining());
        bytes.extend_from_slice(&part);
    }
    String::from_utf8(bytes)
        .map_err(|_| (StatusCode::BAD_REQUEST, "the body is not text".to_owned()))
}

fn not_allowed() -> Response {
    let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "GET or PUT");
    let methods = HeaderValue::from_static("GET, PUT");
    response.headers_mut().insert(header::ALLOW, methods);
    response
}

fn refuse(status: StatusCode, text: &str) -> Response {
    warp::reply::with_status(format!("{text}\n"), status).into_response()
}
