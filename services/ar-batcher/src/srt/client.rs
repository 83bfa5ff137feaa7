//! One SRT server over HTTP: one call is one try. What an error means for its rows is decided here, what is done about
//! it is not.

use std::{borrow::Cow, time::Duration};

use futures::future::join_all;
use protocol::trace::{attribute, span, value};
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use service::telemetry::spans;
use tracing::{Instrument, Span};

use super::{
    args::SrtUrl,
    reply::{WrongLength, shortened},
    request::Generate,
};

/// A server in the same rack answers a connect in well under a millisecond.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// uvicorn closes a connection that was idle for 5 s (`SGLANG_TIMEOUT_KEEP_ALIVE`): ours go first, or a request meets
/// a connection that is being closed.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// For word that a row is not needed any more: SRT answers at once, and nobody may wait for one that hangs.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);
/// SRT's own health check waits up to 20 s for its model (`SGLANG_HEALTH_CHECK_TIMEOUT`).
const HEALTH_TIMEOUT: Duration = Duration::from_secs(25);
/// SRT asks its model's processes for it.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);
/// A picture of 2048 x 2048 is 4353 ids of up to 7 bytes, and their text, `<|dit_token_12345|>`, another 19 each.
const ANSWER_BYTES_PER_ROW_MAX: usize = 1 << 20;
/// All of the server's flags and state; some 20 KB.
const INFO_BYTES_MAX: usize = 4 << 20;
/// Of an error.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Writes rows.
const GENERATE_PATH: &str = "/generate";

/// SRT says 400 to what it cannot run, its web framework 422 to what it cannot read, proxies 413 to what is too long.
const REQUEST_FAULTS: [StatusCode; 3] = [
    StatusCode::BAD_REQUEST,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNPROCESSABLE_ENTITY,
];

/// Why a call brought no rows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// It was asked to stop.
    #[error("it was stopped")]
    Stopped,
    /// The request never arrived: nothing ran.
    #[error("the server cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// SRT says 503 when its queue is full, routers before it say 503 or 429: nothing ran.
    #[error("the server is full: {message}")]
    Full {
        /// As it came.
        status: StatusCode,
        /// The server's words.
        message: String,
    },
    /// The rows may have run, or run on.
    #[error("the connection broke")]
    Lost(#[source] reqwest::Error),
    /// The rows may run on.
    #[error("no answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The server refused or failed.
    #[error("HTTP {status}: {message}")]
    Status {
        /// As it came.
        status: StatusCode,
        /// The server's words.
        message: String,
    },
    /// Longer than any good answer.
    #[error("the answer is longer than {0} bytes")]
    TooLarge(usize),
    /// No list of rows.
    #[error("the answer is no list of rows")]
    NoList(#[source] serde_json::Error),
    /// A list of other rows.
    #[error(transparent)]
    WrongLength(#[from] WrongLength),
}

impl CallError {
    /// For a trace: the status of an answer that is none of the wanted ones, as OpenTelemetry has it.
    fn kind(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Stopped => "stopped",
            Self::Unreachable(_) => "unreachable",
            Self::Lost(_) => "connection_lost",
            Self::TimedOut(_) => "timeout",
            Self::TooLarge(_) => "too_large",
            Self::NoList(_) | Self::WrongLength(_) => "invalid_answer",
            Self::Full { status, .. } | Self::Status { status, .. } => {
                return Cow::Owned(status.as_str().to_owned());
            }
        })
    }

    /// Whether the same call may succeed a moment later. What the server refused (4xx) it refuses again, and a call
    /// that took too long has used up the row's patience.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Lost(_) => true,
            Self::Status { status, .. } => status.is_server_error(),
            _ => false,
        }
    }

    /// Whether no row ran, and none is to blame.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Full { .. })
    }

    /// The status of a server that finds fault with the request itself, as every other would. Of several rows it does
    /// not say which one it means. Other 4xx are the server's own trouble: a wrong route, a key that is missing.
    pub(crate) fn request_fault(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } if REQUEST_FAULTS.contains(status) => Some(*status),
            _ => None,
        }
    }

    /// Whether some of so many rows may run on without anybody waiting for them.
    pub(crate) fn may_run_on(&self, rows: usize) -> bool {
        // In the batched form SRT fails the call for one row and lets the others run on.
        let has_others = rows > 1;
        match self {
            Self::Unreachable(_) => false,
            Self::Full { .. } => has_others,
            // A proxy that says 502 or 504 has only lost sight of the row.
            Self::Status { status, .. } => has_others || status.is_server_error(),
            _ => true,
        }
    }
}

/// A server. Connections are kept between calls; as many as there are calls at once.
#[derive(Debug, Clone)]
pub(crate) struct SrtClient {
    url: SrtUrl,
    http: Client,
    timeout: Duration,
}

impl SrtClient {
    /// Connects to nobody yet.
    pub(crate) fn new(url: SrtUrl, timeout: Duration) -> Result<Self, reqwest::Error> {
        // No proxy: servers are called by their own address.
        let http = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_MAX)
            .build()?;
        Ok(Self { url, http, timeout })
    }

    pub(crate) fn url(&self) -> &SrtUrl {
        &self.url
    }

    /// `POST /generate`, which was made `before` so often: the entries of the answer.
    pub(crate) async fn generate(
        &self,
        body: &Generate<'_>,
        before: u32,
    ) -> Result<Vec<Value>, CallError> {
        let span = self.call_span(before);
        let called = self.call(body, &span).instrument(span.clone()).await;
        if let Err(error) = &called {
            spans::fail_as(&span, error.kind());
        }
        called
    }

    /// The trace goes on in a server that has one.
    async fn call(&self, body: &Generate<'_>, span: &Span) -> Result<Vec<Value>, CallError> {
        let mut request = self.http.post(self.url.route(GENERATE_PATH)).json(body);
        for (name, value) in spans::outgoing() {
            request = request.header(name, value);
        }
        let response = request.timeout(self.timeout).send().await;
        let response = response.map_err(|error| self.broken(error))?;
        let code = i64::from(response.status().as_u16());
        spans::set(span, attribute::HTTP_RESPONSE_STATUS_CODE, code);
        let status = response.status();
        if status != StatusCode::OK {
            return Err(self.refusal(status, response).await);
        }
        let bytes_max = ANSWER_BYTES_PER_ROW_MAX * body.rows();
        let bytes = self.body(response, bytes_max).await?;
        serde_json::from_slice(&bytes).map_err(CallError::NoList)
    }

    fn call_span(&self, before: u32) -> Span {
        let span = tracing::debug_span!(span::SRT_GENERATE, otel.kind = "client");
        if span.is_disabled() {
            return span;
        }
        spans::set(&span, attribute::HTTP_REQUEST_METHOD, "POST");
        spans::set(&span, attribute::SERVICE_PEER_NAME, value::SRT);
        // Shown without credentials.
        let url = format!("{}{GENERATE_PATH}", self.url);
        spans::set(&span, attribute::URL_FULL, url);
        if let Some((host, port)) = self.url.server() {
            spans::set(&span, attribute::SERVER_ADDRESS, host);
            spans::set(&span, attribute::SERVER_PORT, i64::from(port));
        }
        if before > 0 {
            let before = i64::from(before);
            spans::set(&span, attribute::HTTP_REQUEST_RESEND_COUNT, before);
        }
        span
    }

    /// Tells the server that nobody needs these rows; a server that does not hear it writes them for nobody.
    pub(crate) async fn abort(&self, rids: &[String]) {
        let abort = |rid| async move {
            let request = self.http.post(self.url.route("/abort_request"));
            let request = request.json(&json!({"rid": rid})).timeout(ABORT_TIMEOUT);
            match request.send().await {
                Ok(response) if response.status().is_success() => {
                    tracing::debug!(rid, "row is aborted");
                }
                Ok(response) => {
                    tracing::warn!(rid, url = %self.url, status = %response.status(), "row is not aborted");
                }
                Err(error) => {
                    let error = service::exit::chain(&error.without_url());
                    tracing::warn!(rid, url = %self.url, error, "row is not aborted");
                }
            }
        };
        join_all(rids.iter().map(abort)).await;
    }

    /// `GET /health`; the error says why the server takes no work.
    pub(crate) async fn health(&self) -> Result<(), String> {
        let request = self.http.get(self.url.route("/health"));
        match request.timeout(HEALTH_TIMEOUT).send().await {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(format!("GET /health answers {}", response.status())),
            Err(error) => Err(service::exit::chain(&error.without_url())),
        }
    }

    /// Whether `sampling_seed` counts there; `None` when the server does not tell.
    pub(crate) async fn is_deterministic(&self) -> Option<bool> {
        #[derive(Deserialize)]
        struct Info {
            enable_deterministic_inference: bool,
        }
        // The second is what older versions have.
        for path in ["/server_info", "/get_server_info"] {
            let request = self.http.get(self.url.route(path)).timeout(INFO_TIMEOUT);
            let response = request.send().await.ok()?;
            if response.status() == StatusCode::OK {
                let bytes = self.body(response, INFO_BYTES_MAX).await.ok()?;
                let info: Option<Info> = serde_json::from_slice(&bytes).ok();
                return info.map(|info| info.enable_deterministic_inference);
            }
        }
        None
    }

    /// The server's own words, as far as there are any: `{"error": {"message": …}}` or `{"message": …}`.
    async fn refusal(&self, status: StatusCode, response: Response) -> CallError {
        let body = self.body(response, ERROR_BYTES_MAX).await;
        let body: Value = body
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        let message = body["error"]["message"].as_str();
        let message = message.or(body["message"].as_str()).unwrap_or_default();
        let message = shortened(message);
        match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                CallError::Full { status, message }
            }
            status => CallError::Status { status, message },
        }
    }

    async fn body(&self, mut response: Response, bytes_max: usize) -> Result<Vec<u8>, CallError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.broken(error))? {
            if bytes.len() + chunk.len() > bytes_max {
                return Err(CallError::TooLarge(bytes_max));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    fn broken(&self, error: reqwest::Error) -> CallError {
        // The address may have credentials in it.
        let error = error.without_url();
        if error.is_connect() {
            CallError::Unreachable(error)
        } else if error.is_timeout() {
            CallError::TimedOut(self.timeout)
        } else {
            CallError::Lost(error)
        }
    }
}
