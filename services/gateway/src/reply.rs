//! `ErrorCode` → HTTP status and OpenAI's error body: the only such map. It knows no job and no route.

use std::time::Duration;

use batching::admission::RETRY_AFTER_UNMEASURED;
use bytes::Bytes;
use protocol::{ErrorCode, JobError, JobId};
use serde::Serialize;
use warp::{
    http::{HeaderValue, StatusCode, header},
    reply::Response,
};

/// For a refusal that knows no better: what admission says before anything was measured.
const RETRY_AFTER_QUEUE_FULL: Duration = RETRY_AFTER_UNMEASURED;

/// A worker's start, a reconnect or the next look at a running job: about a second each.
const RETRY_AFTER_NOT_READY: Duration = Duration::from_secs(1);

/// Which job an answer is about, on successes and failures alike.
const REQUEST_ID: &str = "x-request-id";

/// In which trace an answer was made, for who looks for it there.
const TRACE_ID: &str = "x-trace-id";

/// Says that an answer is that of an earlier request under the same key.
const REPLAYED: &str = "idempotency-replayed";

/// An answer that is no success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    error: JobError,
    /// The parameter at fault, when there is one.
    param: Option<String>,
    /// The job, when there is one: a client can still fetch what it has.
    job: Option<JobId>,
    /// Whether that job was queued, as far as is known.
    queued: bool,
    /// What the path does allow, with `method_not_allowed`.
    allow: Option<&'static str>,
    /// When to come back, where that is known better than by the code.
    retry_after: Option<Duration>,
    replayed: bool,
}

impl ApiError {
    pub(crate) fn new(code: ErrorCode, text: &str) -> Self {
        JobError::new(code, text).into()
    }

    /// The parameter `param` is wrong; `text` says what it must be.
    pub(crate) fn parameter(param: &str, text: &str) -> Self {
        Self {
            param: Some(param.to_owned()),
            ..Self::new(ErrorCode::InvalidParameter, text)
        }
    }

    /// What the parameter `param` names is not there.
    pub(crate) fn missing(param: &str, text: &str) -> Self {
        Self {
            param: Some(param.to_owned()),
            ..Self::new(ErrorCode::NotFound, text)
        }
    }

    /// There is no parameter `param`.
    pub(crate) fn unknown_parameter(param: &str) -> Self {
        // A name can be as long as the body: the answer need not be.
        let param: String = param.chars().take(PARAM_CHARS_MAX).collect();
        let text = format!("unknown parameter: {param}");
        Self {
            param: Some(param),
            ..Self::new(ErrorCode::UnknownParameter, &text)
        }
    }

    /// The path exists, for the methods in `allow`.
    pub(crate) fn method_not_allowed(allow: &'static str) -> Self {
        let text = format!("this path answers {allow}");
        Self {
            allow: Some(allow),
            ..Self::new(ErrorCode::MethodNotAllowed, &text)
        }
    }

    pub(crate) fn of_job(self, job: JobId) -> Self {
        Self {
            job: Some(job),
            queued: true,
            ..self
        }
    }

    /// Of a job that was not queued, or not for certain, and whose id is worth knowing all the same.
    pub(crate) fn of_unqueued(self, job: JobId) -> Self {
        Self {
            job: Some(job),
            ..self
        }
    }

    /// The client should come back after this.
    pub(crate) fn retry_after(self, after: Duration) -> Self {
        Self {
            retry_after: Some(after),
            ..self
        }
    }

    /// It is the answer to an earlier request under the same key.
    pub(crate) fn replayed(self) -> Self {
        Self {
            replayed: true,
            ..self
        }
    }

    /// Whether no job came of the request, as far as is known.
    pub(crate) const fn is_rejection(&self) -> bool {
        !self.queued
    }

    /// The job that was not queued, as far as is known, where a client is told of it.
    pub(crate) fn unqueued(&self) -> Option<JobId> {
        self.job.filter(|_| !self.queued)
    }

    pub(crate) fn error(&self) -> &JobError {
        &self.error
    }

    #[cfg(test)]
    pub(crate) fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    pub(crate) fn into_response(self) -> Response {
        let status = http_status(self.error.code);
        let mut response = json(
            status,
            &ErrorBody {
                error: ErrorFields::new(&self.error, self.param.as_deref()),
            },
        );
        if let Some(after) = self.retry_after.or_else(|| retry_after(self.error.code)) {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, after.as_secs().into());
        }
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(allow) = self.allow {
            response
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        if self.replayed {
            response = with_replayed(response);
        }
        match self.job {
            Some(job) => with_request_id(response, job),
            None => response,
        }
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        Self {
            error,
            param: None,
            job: None,
            queued: false,
            allow: None,
            retry_after: None,
            replayed: false,
        }
    }
}

/// Longest name of an unknown parameter that is repeated to its sender.
const PARAM_CHARS_MAX: usize = 64;

/// The HTTP status of a failure.
pub(crate) const fn http_status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::InvalidParameter | ErrorCode::UnknownParameter | ErrorCode::InvalidJson => {
            StatusCode::BAD_REQUEST
        }
        ErrorCode::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        ErrorCode::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::InvalidApiKey => StatusCode::UNAUTHORIZED,
        ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::QueueFull => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::NotReady | ErrorCode::BusUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::MessageInvalid
        | ErrorCode::ArFailed
        | ErrorCode::PriorTokensInvalid
        | ErrorCode::DenoiseFailed
        | ErrorCode::ImageTooLarge
        | ErrorCode::AttemptsExhausted
        | ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        ErrorCode::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        // The job's state, not the request, is in the way: somebody ended it.
        ErrorCode::Cancelled => StatusCode::CONFLICT,
        ErrorCode::IdempotencyKeyReused => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

const fn retry_after(code: ErrorCode) -> Option<Duration> {
    match http_status(code) {
        StatusCode::TOO_MANY_REQUESTS => Some(RETRY_AFTER_QUEUE_FULL),
        StatusCode::SERVICE_UNAVAILABLE => Some(RETRY_AFTER_NOT_READY),
        _ => None,
    }
}

/// OpenAI's coarse kind of an error.
fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    }
}

#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

/// OpenAI's error object.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorFields<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: ErrorCode,
}

impl<'a> ErrorFields<'a> {
    pub(crate) fn new(error: &'a JobError, param: Option<&'a str>) -> Self {
        Self {
            message: &error.text,
            r#type: kind(http_status(error.code)),
            param,
            code: error.code,
        }
    }
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    json_kept(status, body, Bytes::from)
}

/// A JSON answer whose bytes are what `keep` makes of them.
pub(crate) fn json_kept(
    status: StatusCode,
    body: &impl Serialize,
    keep: impl FnOnce(Vec<u8>) -> Bytes,
) -> Response {
    let (status, bytes) = match serde_json::to_vec(body) {
        Ok(bytes) => (status, bytes),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written as json");
            (StatusCode::INTERNAL_SERVER_ERROR, UNWRITABLE.to_vec())
        }
    };
    let mut response = Response::new(keep(bytes).into());
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// The last resort of [`json`].
const UNWRITABLE: &[u8] =
    br#"{"error":{"message":"the answer cannot be written","type":"server_error","param":null,"code":"internal"}}"#;

/// `response`, telling which job it is about.
pub(crate) fn with_request_id(mut response: Response, job: JobId) -> Response {
    let id = HeaderValue::try_from(job.to_string()).expect("an id is hexadecimal digits");
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// `response`, telling which trace it belongs to.
pub(crate) fn with_trace_id(mut response: Response, trace: &str) -> Response {
    let id = HeaderValue::try_from(trace).expect("an id is hexadecimal digits");
    response.headers_mut().insert(TRACE_ID, id);
    response
}

/// `response`, telling that it is the answer to an earlier request.
pub(crate) fn with_replayed(mut response: Response) -> Response {
    let said = HeaderValue::from_static("true");
    response.headers_mut().insert(REPLAYED, said);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_a_failure_of_the_client_or_of_us_a42() {
        for code in ErrorCode::ALL {
            let status = http_status(code);
            assert!(
                status.is_client_error() || status.is_server_error(),
                "{code}: {status}"
            );
            let response = ApiError::new(code, "text").into_response();
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
            let told_when = response.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(told_when, [429, 503].contains(&status.as_u16()), "{code}");
        }
    }

    #[test]
    fn a_refusal_is_what_http_calls_a_fault_of_the_client() {
        for code in ErrorCode::ALL {
            let of_client = http_status(code).is_client_error() && code != ErrorCode::Cancelled;
            assert_eq!(code.is_refusal(), of_client, "{code}");
        }
    }

    #[test]
    fn a_job_that_was_not_queued_for_certain_is_named_and_counts_as_refused() {
        let (error, job) = (ErrorCode::BusUnavailable, JobId::from_u128(1));
        let error = || ApiError::new(error, "text");
        for (error, named, refused) in [
            (error(), false, true),
            (error().of_unqueued(job), true, true),
            (error().of_job(job), true, false),
        ] {
            assert_eq!(error.is_rejection(), refused, "{error:?}");
            assert_eq!(error.unqueued().is_some(), refused && named, "{error:?}");
            let headers = error.into_response().into_parts().0.headers;
            assert_eq!(headers.contains_key(REQUEST_ID), named);
        }
    }

    #[test]
    fn the_last_resort_is_json() {
        assert!(serde_json::from_slice::<serde_json::Value>(UNWRITABLE).is_ok());
    }

    #[test]
    fn an_error_has_openais_four_fields() {
        let error = JobError::new(ErrorCode::InvalidParameter, "n must be less");
        let body = ErrorBody {
            error: ErrorFields::new(&error, Some("n")),
        };
        let wanted = serde_json::json!({"error": {
            "message": "n must be less", "type": "invalid_request_error", "param": "n", "code": "invalid_parameter",
        }});
        assert_eq!(serde_json::to_value(body).expect("plain fields"), wanted);
    }

    #[test]
    fn the_name_of_an_unknown_parameter_is_cut() {
        let error = ApiError::unknown_parameter(&"é".repeat(10_000));
        assert_eq!(
            error.param.map(|param| param.chars().count()),
            Some(PARAM_CHARS_MAX)
        );
    }
}
