//! A careful client: one idempotency key for a request, and any gateway until it has a final answer.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use protocol::{ErrorCode, JobId};
use rand::{Rng, SeedableRng, rngs::StdRng};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    ledger::{Entry, Told},
    order::{Manner, Mix, Order, order},
};

/// One HTTP request. A frozen gateway holds its connections: a careful client asks another one.
const TRY_MAX: Duration = Duration::from_secs(8);

/// From the first try to the answer. Longer than a job may take (`run::JOB_TIMEOUT`).
pub const ANSWER_MAX: Duration = Duration::from_secs(180);

/// Between two tries: what is down comes back within seconds.
const PAUSE: Duration = Duration::from_millis(100);

/// Of so many requests one is asked again after its end.
const ASKED_AGAIN_EACH: usize = 8;

/// What all clients share.
pub struct Clients {
    /// URLs of the gateways.
    pub gateways: Vec<String>,
    /// What is asked for.
    pub mix: Mix,
    /// Names the run in idempotency keys.
    pub run: String,
    /// Requests at least.
    pub requests: usize,
    /// The plan has been carried out: with enough requests, this is the end.
    pub plan_over: CancellationToken,
    /// The next request's number.
    pub next: AtomicUsize,
}

impl Clients {
    /// One client: a request at a time, until there were enough.
    pub async fn run(&self) -> Vec<Entry> {
        let http = reqwest::Client::builder().connect_timeout(Duration::from_secs(1));
        let http = http.build().expect("a client without TLS can be made");
        let mut entries = Vec::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.requests && self.plan_over.is_cancelled() {
                return entries;
            }
            let mut client = Client {
                shared: self,
                http: &http,
                key: format!("{}-{number}", self.run),
                chance: StdRng::seed_from_u64(self.mix.seed.wrapping_add(number as u64)),
                tries: 0,
                complaints: Vec::new(),
            };
            let order = order(self.mix, number);
            let started = Instant::now();
            let mut answers = Vec::from_iter(client.answer_in_time(&order).await);
            let took = started.elapsed();
            if !answers.is_empty() && number.is_multiple_of(ASKED_AGAIN_EACH) {
                answers.extend(client.answer_again(&order).await);
            }
            entries.push(Entry {
                answers,
                tries: client.tries,
                took,
                complaints: client.complaints,
                order,
            });
        }
    }
}

/// One request's client.
struct Client<'a> {
    shared: &'a Clients,
    http: &'a reqwest::Client,
    key: String,
    chance: StdRng,
    tries: usize,
    complaints: Vec<String>,
}

/// An answer that is worth something.
struct Answer {
    status: StatusCode,
    job: Option<JobId>,
    bytes: Vec<u8>,
}

impl Answer {
    fn body(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }
}

impl Client<'_> {
    async fn answer_in_time(&mut self, order: &Order) -> Option<(JobId, Told)> {
        timeout(ANSWER_MAX, self.answer(order)).await.ok()
    }

    /// The same key after the end: what any gateway tells of it now.
    async fn answer_again(&mut self, order: &Order) -> Option<(JobId, Told)> {
        let manner = match order.manner {
            Manner::Cancel(_) => Manner::Poll,
            other => other,
        };
        let order = order.clone();
        let again = self.answer_in_time(&Order { manner, ..order }).await;
        if again.is_none() {
            self.complaints
                .push(format!("{}: no second answer", self.key));
        }
        again
    }

    /// The job and its end, whatever it takes.
    async fn answer(&mut self, order: &Order) -> (JobId, Told) {
        loop {
            let answer = self.ask(order).await;
            let Some(job) = answer.job else {
                self.complain("without a job", &answer);
                sleep(PAUSE).await;
                continue;
            };
            let told = match answer.status {
                StatusCode::ACCEPTED => Told::Ends(self.look_after(order, job).await),
                StatusCode::OK => Told::Pictures(self.pictures(order, &answer.body()).await),
                _ => match code(&answer.body()["error"]) {
                    Some(code) => Told::Error(code),
                    None => {
                        self.complain("without a code", &answer);
                        continue;
                    }
                },
            };
            return (job, told);
        }
    }

    async fn ask(&mut self, order: &Order) -> Answer {
        let polls = matches!(order.manner, Manner::Poll | Manner::Cancel(_));
        let body = order.body();
        loop {
            self.tries += 1;
            let request = self
                .request(Method::POST, "/v1/images/generations")
                .json(&body);
            let request = request.header("idempotency-key", &self.key);
            let request = if polls {
                request.header("prefer", "respond-async")
            } else {
                request
            };
            if let Some(answer) = try_once(request).await {
                return answer;
            }
            sleep(PAUSE).await;
        }
    }

    /// At a gateway drawn for each try.
    fn request(&mut self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let gateways = &self.shared.gateways;
        let gateway = &gateways[self.chance.random_range(0..gateways.len())];
        self.http.request(method, format!("{gateway}{path}"))
    }

    /// Until any gateway has an answer.
    async fn until_answered(&mut self, method: Method, path: &str) -> Answer {
        loop {
            let request = self.request(method.clone(), path);
            if let Some(answer) = try_once(request).await {
                return answer;
            }
            sleep(PAUSE).await;
        }
    }

    /// Polls a job to its end; cancels it on the way, if it is one to cancel.
    async fn look_after(&mut self, order: &Order, job: JobId) -> Vec<Option<ErrorCode>> {
        let path = format!("/v1/images/jobs/{job}");
        if let Manner::Cancel(after) = order.manner {
            sleep(after).await;
            let answer = self.until_answered(Method::DELETE, &path).await;
            if answer.status != StatusCode::OK {
                self.complain("to a cancel", &answer);
            }
        }
        loop {
            let answer = self.until_answered(Method::GET, &path).await;
            if answer.status != StatusCode::OK {
                self.complain("to a poll", &answer);
            }
            let body = answer.body();
            let outputs = body["outputs"].as_array().cloned().unwrap_or_default();
            let open = |output: &Value| {
                matches!(output["status"].as_str(), Some("queued" | "in_progress"))
            };
            if !outputs.is_empty() && !outputs.iter().any(open) {
                return outputs
                    .iter()
                    .map(|output| code(&output["error"]))
                    .collect();
            }
            sleep(PAUSE).await;
        }
    }

    /// The pictures of a good answer, fetched where it has only their addresses.
    async fn pictures(&mut self, order: &Order, body: &Value) -> Vec<Vec<u8>> {
        let data = body["data"].as_array().cloned().unwrap_or_default();
        if data.len() != usize::from(order.n) {
            let count = data.len();
            self.complaints
                .push(format!("{}: {count} pictures", self.key));
        }
        let mut pictures = Vec::new();
        for image in data {
            let picture = match (image["b64_json"].as_str(), image["url"].as_str()) {
                (Some(text), _) => BASE64.decode(text).unwrap_or_default(),
                (None, Some(url)) => {
                    let path = url.find("/v1/").map_or("", |at| &url[at..]).to_owned();
                    let answer = self.until_answered(Method::GET, &path).await;
                    if answer.status != StatusCode::OK {
                        self.complain("to a fetch", &answer);
                    }
                    answer.bytes
                }
                (None, None) => Vec::new(),
            };
            pictures.push(picture);
        }
        pictures
    }

    fn complain(&mut self, what: &str, answer: &Answer) {
        let body = String::from_utf8_lossy(&answer.bytes);
        let body: String = body.chars().take(300).collect();
        let (key, status) = (&self.key, answer.status);
        // A bounded list: one that goes wrong at each poll is one complaint too many already.
        if self.complaints.len() < 3 {
            self.complaints
                .push(format!("{key}: {status} {what}: {body}"));
        }
    }
}

/// An answer, unless it only says that another try is due: no connection, 429, 503.
async fn try_once(request: reqwest::RequestBuilder) -> Option<Answer> {
    let whole = async {
        let response = request.send().await.ok()?;
        let status = response.status();
        let job = response.headers().get("x-request-id");
        let job = job.and_then(|job| job.to_str().ok()?.parse().ok());
        let bytes = response.bytes().await.ok()?.to_vec();
        Some(Answer { status, job, bytes })
    };
    let answer = timeout(TRY_MAX, whole).await.ok()??;
    let later = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    (!later.contains(&answer.status)).then_some(answer)
}

fn code(error: &Value) -> Option<ErrorCode> {
    serde_json::from_value(error["code"].clone()).ok()
}
