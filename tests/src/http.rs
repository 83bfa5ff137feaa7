//! HTTP as a client sees it.

use reqwest::{Client, Response, StatusCode, header::HeaderMap};
use serde_json::Value;

/// A status and a JSON body.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// As they came.
    pub headers: HeaderMap,
    /// The body; `Null` when it was no JSON.
    pub body: Value,
}

impl Answer {
    async fn of(response: Response) -> Self {
        Self::read(response).await.expect("the body arrives")
    }

    /// A whole answer.
    pub async fn read(response: Response) -> reqwest::Result<Self> {
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.bytes().await?;
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok(Self {
            status,
            headers,
            body,
        })
    }

    /// The job that it is about.
    #[track_caller]
    pub fn id(&self) -> String {
        let id = self.body["id"].as_str();
        id.unwrap_or_else(|| panic!("no id: {self:?}")).to_owned()
    }

    /// The pictures of a good answer, whole.
    #[track_caller]
    pub fn data(&self) -> &Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        self.body["data"].as_array().expect("data is a list")
    }

    /// The seeds of a good answer, in order.
    #[track_caller]
    pub fn seeds(&self) -> Vec<u64> {
        self.data()
            .iter()
            .map(|image| image["seed"].as_u64().expect("each image has its seed"))
            .collect()
    }

    /// The error's code and field.
    #[track_caller]
    pub fn error(&self) -> (&str, Option<&str>) {
        let error = &self.body["error"];
        (
            error["code"]
                .as_str()
                .unwrap_or_else(|| panic!("no error code: {self:?}")),
            error["param"].as_str(),
        )
    }
}

/// `POST /v1/images/generations`.
pub async fn generate(gateway: &str, request: &Value) -> Answer {
    let url = format!("{gateway}/v1/images/generations");
    let response = Client::new().post(url).json(request).send().await;
    Answer::of(response.expect("the gateway answers")).await
}

/// Any body under any content type.
pub async fn generate_raw(
    gateway: &str,
    content_type: &str,
    body: impl Into<reqwest::Body>,
) -> Answer {
    let url = format!("{gateway}/v1/images/generations");
    let response = Client::new()
        .post(url)
        .header("content-type", content_type)
        .body(body)
        .send()
        .await;
    Answer::of(response.expect("the gateway answers")).await
}

/// A GET with a JSON answer.
pub async fn get(url: &str) -> Answer {
    Answer::of(
        Client::new()
            .get(url)
            .send()
            .await
            .expect("the server answers"),
    )
    .await
}

/// A GET with a text answer; `None` when nobody listens.
pub async fn text(url: &str) -> Option<(StatusCode, String)> {
    let response = Client::new().get(url).send().await.ok()?;
    let status = response.status();
    Some((status, response.text().await.ok()?))
}

/// The bytes of each picture of an answer with addresses, in order.
pub async fn pictures(answer: &Answer) -> Vec<Vec<u8>> {
    let mut pictures = Vec::new();
    for image in answer.data() {
        let url = image["url"].as_str().expect("each image has its address");
        let response = Client::new()
            .get(url)
            .send()
            .await
            .expect("the gateway answers");
        assert_eq!(response.status(), StatusCode::OK, "{url}");
        assert_eq!(response.headers()["content-type"], "image/png", "{url}");
        pictures.push(
            response
                .bytes()
                .await
                .expect("the picture arrives")
                .to_vec(),
        );
    }
    pictures
}
