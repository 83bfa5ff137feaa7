//! A gateway over HTTP: the routes and shapes that `fresco generate` uses. It must not know files or terminals.

use std::{fmt, time::Duration};

use protocol::{ImageSize, JobId, OutputId, PriorId, PriorityClass, Stage};
use reqwest::{
    Client, RequestBuilder, Response, StatusCode,
    header::{AUTHORIZATION, HeaderMap, HeaderValue},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use service::{
    exit::{Failure, chain},
    without_credentials,
};
use tokio::time::{Instant, sleep};

use crate::args::{ApiKey, GatewayArgs};

/// A gateway that cannot be reached for this long is given up; a restart of one takes a second or two.
const UNREACHABLE_MAX: Duration = Duration::from_secs(15);
/// Pause before it is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// One request. No route that is used here waits for a picture.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What is asked for; an absent field is the gateway's to choose.
#[derive(Debug, Serialize)]
pub(crate) struct Wish<'a> {
    pub(crate) prompt: &'a str,
    pub(crate) n: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<ImageSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) num_inference_steps: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guidance_scale: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<PriorityClass>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prior_id: Option<PriorId>,
}

/// A job as the gateway tells it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) outputs: Vec<Output>,
}

/// One picture of a job.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Output {
    pub(crate) id: OutputId,
    pub(crate) seed: u64,
    pub(crate) prior_id: Option<PriorId>,
    pub(crate) status: Status,
    pub(crate) stage: Option<Stage>,
    pub(crate) step: Option<u32>,
    pub(crate) steps: Option<u32>,
    pub(crate) error: Option<ApiError>,
    pub(crate) timings: Option<Timings>,
}

/// How far an output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Queued,
    InProgress,
    Completed,
    Failed,
    Cancelled,
    Expired,
}

impl Status {
    /// Whether nothing can follow.
    pub(crate) const fn is_final(self) -> bool {
        match self {
            Self::Queued | Self::InProgress => false,
            Self::Completed | Self::Failed | Self::Cancelled | Self::Expired => true,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued => "queued",
            Self::InProgress => "in progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        })
    }
}

/// Where an output's time went, in milliseconds.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct Timings {
    pub(crate) ar_wait_ms: Option<u64>,
    pub(crate) ar_run_ms: Option<u64>,
    pub(crate) denoise_wait_ms: Option<u64>,
    pub(crate) denoise_run_ms: Option<u64>,
    pub(crate) decode_run_ms: Option<u64>,
    pub(crate) total_ms: u64,
}

/// A typed refusal or failure.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ApiError {
    pub(crate) message: String,
    pub(crate) code: Option<String>,
    pub(crate) param: Option<String>,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let details: Vec<&str> = self
            .code
            .iter()
            .chain(&self.param)
            .map(String::as_str)
            .collect();
        if details.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", details.join(", "))
        }
    }
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ApiError,
}

/// Whether a request may be sent again when its answer was lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// It changes nothing.
    Always,
    /// Only if it surely never arrived: a second job would be a second picture.
    Unsent,
}

/// A gateway.
#[derive(Debug)]
pub(crate) struct Gateway {
    base: String,
    http: Client,
}

impl Gateway {
    /// The one that the flags name, with the key that they give.
    pub(crate) fn of(args: &GatewayArgs) -> Result<Self, Failure> {
        Self::new(&args.url, args.key())
    }

    /// At the URL `base`.
    fn new(base: &str, key: Option<&ApiKey>) -> Result<Self, Failure> {
        // No proxy: gateways are called by their own address, loopback above all.
        let http = Client::builder()
            .default_headers(headers(key)?)
            .no_proxy()
            .timeout(REQUEST_TIMEOUT)
            .build();
        let http = http.map_err(|error| Failure::failed(&error))?;
        let base = base.trim_end_matches('/').to_owned();
        match reqwest::Url::parse(&base) {
            Ok(url) if url.scheme() == "http" => Ok(Self { base, http }),
            Ok(_) | Err(_) => Err(Failure::Unusable(format!(
                "--gateway {}: not a URL such as http://127.0.0.1:8080",
                without_credentials(&base)
            ))),
        }
    }

    /// Queues `wish`; does not wait for its pictures.
    pub(crate) async fn submit(&self, wish: &Wish<'_>) -> Result<Job, Failure> {
        let request = || {
            self.http
                .post(self.url("/v1/images/generations"))
                .header("prefer", "respond-async")
                .json(wish)
        };
        self.json(self.send(request, Repeat::Unsent).await?).await
    }

    /// The state of `job`.
    pub(crate) async fn job(&self, job: JobId) -> Result<Job, Failure> {
        let request = || self.http.get(self.url(&job_path(job)));
        self.json(self.send(request, Repeat::Always).await?).await
    }

    /// Ends `job`; a second time says the same.
    pub(crate) async fn cancel(&self, job: JobId) -> Result<Job, Failure> {
        let request = || self.http.delete(self.url(&job_path(job)));
        self.json(self.send(request, Repeat::Always).await?).await
    }

    /// Where it answers for `job`, to show to people.
    pub(crate) fn job_url(&self, job: JobId) -> String {
        without_credentials(&self.url(&job_path(job)))
    }

    /// The file of a finished output.
    pub(crate) async fn picture(&self, output: OutputId) -> Result<Vec<u8>, Failure> {
        let request = || {
            self.http
                .get(self.url(&format!("/v1/images/{output}/content")))
        };
        let response = self.send(request, Repeat::Always).await?;
        let bytes = response.bytes().await.map_err(|error| self.broken(error))?;
        Ok(bytes.into())
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Sends until there is an answer that says something; a refusal is a failure.
    async fn send(
        &self,
        request: impl Fn() -> RequestBuilder,
        repeat: Repeat,
    ) -> Result<Response, Failure> {
        let give_up_at = Instant::now() + UNREACHABLE_MAX;
        let mut told = false;
        loop {
            let problem = match request().send().await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) if may_pass(response.status()) && repeat == Repeat::Always => {
                    refusal(response).await
                }
                Ok(response) => return Err(refusal(response).await),
                Err(error) if error.is_connect() || repeat == Repeat::Always => self.broken(error),
                Err(error) => return Err(self.broken(error)),
            };
            if Instant::now() >= give_up_at {
                return Err(problem);
            }
            if !told {
                told = true;
                let patience = UNREACHABLE_MAX.as_secs();
                crate::terminal::note(format_args!("{problem}; trying for {patience} s"));
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn json<T: DeserializeOwned>(&self, response: Response) -> Result<T, Failure> {
        response.json().await.map_err(|error| self.broken(error))
    }

    fn broken(&self, error: reqwest::Error) -> Failure {
        let base = without_credentials(&self.base);
        if error.is_connect() {
            let hint = "is `fresco up` running? give another one with --gateway URL";
            return Failure::Failed(format!("no gateway answers at {base}: {hint}"));
        }
        // It names the URL too, credentials and all.
        Failure::Failed(format!("gateway {base}: {}", chain(&error.without_url())))
    }
}

/// What every request brings.
pub(crate) fn headers(key: Option<&ApiKey>) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        let value = HeaderValue::try_from(key.authorization());
        let mut value = value.map_err(|error| Failure::unusable(&error))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

fn job_path(job: JobId) -> String {
    format!("/v1/images/jobs/{job}")
}

/// A gateway that starts, or whose broker is away.
fn may_pass(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY
    )
}

/// The gateway's own words, as far as there are any.
async fn refusal(response: Response) -> Failure {
    let status = response.status();
    let text = match response.json::<ErrorBody>().await {
        Ok(body) => format!("gateway: {}", body.error),
        Err(_) => format!("gateway answers {status}"),
    };
    // What is wrong with the request is wrong with the command line.
    if status.is_client_error() && !may_pass(status) {
        Failure::Unusable(text)
    } else {
        Failure::Failed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_leaves_out_what_was_not_given() {
        let wish = Wish {
            prompt: "a",
            n: 1,
            size: None,
            seed: None,
            num_inference_steps: None,
            guidance_scale: None,
            priority: None,
            prior_id: None,
        };
        assert_eq!(
            serde_json::to_string(&wish).expect("plain fields"),
            r#"{"prompt":"a","n":1}"#
        );
        let size = Some("128x96".parse().expect("a size"));
        let wish = Wish {
            size,
            seed: Some(7),
            num_inference_steps: Some(4),
            guidance_scale: Some(1.5),
            priority: Some(PriorityClass::High),
            prior_id: Some(PriorId::from_u128(0xab)),
            ..wish
        };
        let expected = r#"{"prompt":"a","n":1,"size":"128x96","seed":7,"num_inference_steps":4,"guidance_scale":1.5,"priority":"high","prior_id":"000000000000000000000000000000ab"}"#;
        assert_eq!(
            serde_json::to_string(&wish).expect("plain fields"),
            expected
        );
    }

    #[test]
    fn a_job_of_the_gateway_is_understood() {
        let job = "0123456789abcdef0123456789abcdef";
        let text = format!(
            r#"{{"id":"{job}","object":"image.job","status":"in_progress","created_at":1,"response":null,"outputs":[
              {{"id":"{job}-0","seed":7,"status":"in_progress","stage":"denoise","step":3,"steps":4,"error":null,"timings":null,"prior_id":null}},
              {{"id":"{job}-1","seed":8,"status":"failed","stage":null,"step":null,"steps":null,
                "error":{{"message":"m","type":"server_error","param":null,"code":"ar_failed"}},
                "timings":{{"ar_wait_ms":1,"ar_run_ms":null,"denoise_wait_ms":null,"denoise_run_ms":null,"decode_run_ms":null,"total_ms":9}}}}]}}"#
        );
        let job: Job = serde_json::from_str(&text).expect("the gateway's shape");
        assert_eq!(job.outputs[0].status, Status::InProgress);
        assert_eq!(job.outputs[0].stage, Some(Stage::Denoise));
        assert_eq!(
            job.outputs[1]
                .error
                .as_ref()
                .map(ToString::to_string)
                .as_deref(),
            Some("m (ar_failed)")
        );
    }

    #[test]
    fn credentials_of_a_gateway_are_not_shown() {
        let gateway = Gateway::new("http://user:secret@h:1", None).expect("a URL");
        let job = JobId::from_u128(7);
        let shown = gateway.job_url(job);
        assert!(shown.starts_with("http://h:1/v1/images/jobs/"), "{shown}");
        let Err(refused) = Gateway::new("ftp://user:secret@h", None) else {
            panic!("ftp is not spoken")
        };
        let refused = refused.to_string();
        assert!(
            refused.contains("ftp://h") && !refused.contains("secret"),
            "{refused}"
        );
    }

    #[test]
    fn a_gateway_is_a_web_address() {
        assert!(Gateway::new("http://127.0.0.1:8080/", None).is_ok());
        for bad in ["", "127.0.0.1:8080", "ftp://h", "https://h"] {
            assert!(
                matches!(Gateway::new(bad, None), Err(Failure::Unusable(_))),
                "{bad}"
            );
        }
    }
}
