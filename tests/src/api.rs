//! The API as a program uses it: kept connections, own headers, jobs in the background.

use std::time::Duration;

use protocol::{OutputId, OutputIndex};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use crate::{fleet::until, http::Answer};

/// What asks for a job in the background.
pub const IN_BACKGROUND: (&str, &str) = ("prefer", "respond-async");

const GENERATIONS: &str = "/v1/images/generations";

/// Nothing of a test takes longer; what does has hung.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// One gateway's API. Clones share the connections.
#[derive(Debug, Clone)]
pub struct Api {
    client: Client,
    url: String,
}

impl Api {
    /// Keeps its connections.
    pub fn new(url: &str) -> Self {
        let client = Client::builder().timeout(ANSWER_WITHIN).build();
        Self {
            client: client.expect("a client without TLS can be made"),
            url: url.to_owned(),
        }
    }

    /// The gateway's address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Any request; an error when nobody answers, or breaks off.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> reqwest::Result<Answer> {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        Answer::read(request.send().await?).await
    }

    /// `POST /v1/images/generations`.
    pub async fn generate(
        &self,
        request: &Value,
        headers: &[(&str, &str)],
    ) -> reqwest::Result<Answer> {
        let body = Some(request);
        self.send(Method::POST, GENERATIONS, headers, body).await
    }

    /// As a careful client that has a key, or may ask twice: again after a 503. A broker may be silent for seconds when
    /// something else keeps the machine's disk busy.
    pub async fn send_patiently(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        for _ in 0..20 {
            let answer = self.send(method.clone(), path, headers, body).await;
            let answer = answer.expect("the gateway answers");
            if answer.status != StatusCode::SERVICE_UNAVAILABLE {
                return answer;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("{method} {path}: 503 for 20 s");
    }

    /// [`Api::generate`], patiently.
    pub async fn generate_patiently(&self, request: &Value, headers: &[(&str, &str)]) -> Answer {
        let body = Some(request);
        self.send_patiently(Method::POST, GENERATIONS, headers, body)
            .await
    }

    /// A job in the background, accepted: its id.
    pub async fn submit(&self, request: &Value) -> String {
        let answer = self.generate(request, &[IN_BACKGROUND]).await;
        let answer = answer.expect("the gateway answers");
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.body);
        answer.id()
    }

    /// `GET /v1/images/jobs/{id}` of a job that is known.
    pub async fn job(&self, id: &str) -> Value {
        let answer = self.send_patiently(Method::GET, &path(id), &[], None).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.body
    }

    /// `DELETE` of a job that is known.
    pub async fn cancel(&self, id: &str) -> Value {
        let answer = self
            .send_patiently(Method::DELETE, &path(id), &[], None)
            .await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.body
    }

    /// Waits until the job's first output is in this state, and tells the job.
    pub async fn until_state(&self, id: &str, state: &str) -> Value {
        let wanted = json!(state);
        until(&format!("{id} is {state}"), || async {
            let job = self.job(id).await;
            (job["outputs"][0]["state"] == wanted).then_some(job)
        })
        .await
    }

    /// Waits until the job has ended, and tells it.
    pub async fn until_ended(&self, id: &str) -> Value {
        until(&format!("{id} has ended"), || async {
            let job = self.job(id).await;
            let open = ["queued", "in_progress"].map(|status| json!(status));
            (!open.contains(&job["status"])).then_some(job)
        })
        .await
    }

    /// The status of `/readyz`; none when nobody listens.
    pub async fn readiness(&self) -> Option<StatusCode> {
        let answer = self.send(Method::GET, "/readyz", &[], None).await;
        Some(answer.ok()?.status)
    }
}

fn path(id: &str) -> String {
    format!("/v1/images/jobs/{id}")
}

/// The first output of a job.
pub fn first_output(job: &str) -> OutputId {
    let job: protocol::JobId = job.parse().expect("the gateway tells ids");
    job.output(OutputIndex::FIRST)
}
