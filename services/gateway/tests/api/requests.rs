//! Requests that are no jobs: refused with a status, a code and a name, and nothing reaches the bus.

use reqwest::Method;
use serde_json::json;

use crate::deployment::{Deployment, GENERATIONS, JSON};

#[tokio::test]
async fn a_bad_request_is_refused_by_name_and_nothing_is_published() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let invalid = [
        (r#"{}"#, "prompt"),
        (r#"{"prompt":" "}"#, "prompt"),
        (r#"{"prompt":"<|image|>"}"#, "prompt"),
        (r#"{"prompt":"p","model":"dall-e-3"}"#, "model"),
        (r#"{"prompt":"p","n":0}"#, "n"),
        (r#"{"prompt":"p","n":11}"#, "n"),
        (r#"{"prompt":"p","n":"two"}"#, "n"),
        (r#"{"prompt":"p","size":"100x100"}"#, "size"),
        (r#"{"prompt":"p","size":"1000000x32"}"#, "size"),
        (r#"{"prompt":"p","size":"axb"}"#, "size"),
        (r#"{"prompt":"p","seed":-1}"#, "seed"),
        (r#"{"prompt":"p","seed":1.5}"#, "seed"),
        (r#"{"prompt":"p","n":2,"seed":9223372036854775807}"#, "seed"),
        (
            r#"{"prompt":"p","num_inference_steps":0}"#,
            "num_inference_steps",
        ),
        (
            r#"{"prompt":"p","num_inference_steps":1001}"#,
            "num_inference_steps",
        ),
        (r#"{"prompt":"p","guidance_scale":"NaN"}"#, "guidance_scale"),
        (r#"{"prompt":"p","n":1,"n":1}"#, "n"),
        (r#"{"prompt":"p","timeout_s":0}"#, "timeout_s"),
        (r#"{"prompt":"p","timeout_s":-1}"#, "timeout_s"),
        (r#"{"prompt":"p","timeout_s":"1"}"#, "timeout_s"),
        (r#"{"prompt":"p","timeout_s":600.001}"#, "timeout_s"),
    ];
    for (body, param) in invalid {
        let reply = gateway
            .send(Method::POST, GENERATIONS, &[JSON], body.into())
            .await;
        assert_eq!(
            (reply.status.as_u16(), reply.error_code().as_str()),
            (400, "invalid_parameter"),
            "{body}"
        );
        assert_eq!(reply.json()["error"]["param"], param, "{body}");
    }
    assert_eq!(deployment.accepted().await, (0, 0));
    gateway.stop().await;
}

/// Body, headers → status, code, parameter.
type Case<'a> = (
    &'a [u8],
    &'a [(&'a str, &'a str)],
    u16,
    &'a str,
    Option<&'a str>,
);

#[tokio::test]
async fn a_body_that_is_no_request_is_refused_and_nothing_is_published() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let large = format!(r#"{{"prompt":"{}"}}"#, "a".repeat(1_000_000));
    let cases: [Case<'_>; 9] = [
        (
            br#"{"prompt":"p","quality":"hd"}"#,
            &[JSON],
            400,
            "unknown_parameter",
            Some("quality"),
        ),
        (b"{", &[JSON], 400, "invalid_json", None),
        (b"[]", &[JSON], 400, "invalid_json", None),
        (b"", &[JSON], 400, "invalid_json", None),
        (b"{\"prompt\":\"\xff\"}", &[JSON], 400, "invalid_json", None),
        (large.as_bytes(), &[JSON], 413, "body_too_large", None),
        (
            br#"{"prompt":"p"}"#,
            &[("content-type", "text/plain")],
            415,
            "unsupported_media_type",
            None,
        ),
        (
            br#"{"prompt":"p"}"#,
            &[],
            415,
            "unsupported_media_type",
            None,
        ),
        (
            br#"{"prompt":"p","response_format":"b64_json"}"#,
            &[JSON, ("prefer", "respond-async")],
            400,
            "invalid_parameter",
            Some("response_format"),
        ),
    ];
    for (body, headers, status, code, param) in cases {
        let reply = gateway
            .send(Method::POST, GENERATIONS, headers, body.to_vec())
            .await;
        assert_eq!(
            (reply.status.as_u16(), reply.error_code().as_str()),
            (status, code),
            "{headers:?}"
        );
        assert_eq!(reply.json()["error"]["param"], json!(param));
    }
    assert_eq!(deployment.accepted().await, (0, 0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_bad_header_is_refused_by_its_name_and_nothing_is_published() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let cases: [(&[(&str, &str)], &str); 3] = [
        (&[("idempotency-key", "")], "Idempotency-Key"),
        (
            &[("idempotency-key", "a"), ("idempotency-key", "b")],
            "Idempotency-Key",
        ),
        (
            &[("fresco-on-disconnect", "cancel")],
            "Fresco-On-Disconnect",
        ),
    ];
    for (headers, param) in cases {
        let reply = gateway
            .generate_with(&json!({ "prompt": "p" }), headers)
            .await;
        assert_eq!(
            (reply.status.as_u16(), reply.error_code().as_str()),
            (400, "invalid_parameter"),
            "{headers:?}"
        );
        assert_eq!(reply.json()["error"]["param"], param);
    }
    assert_eq!(deployment.accepted().await, (0, 0));
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_told_in_json() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let job = "0198c0ffee000000000000000000beef";
    let (a_job, an_image) = (
        format!("/v1/images/jobs/{job}"),
        format!("/v1/images/{job}-0/content"),
    );
    let missing = [
        (Method::GET, "/".to_owned()),
        (Method::GET, "/v1/images".to_owned()),
        (Method::POST, "/v1/images/edits".to_owned()),
        (Method::GET, "/v1/images/%00/content".to_owned()),
        (Method::GET, "/v1/images/nonsense/content".to_owned()),
        (Method::GET, format!("/v1/images/{job}/content")),
        (Method::GET, format!("/v1/images/{job}-10/content")),
        (Method::GET, an_image.clone()),
        (Method::GET, "/v1/images/jobs/nonsense".to_owned()),
        (Method::GET, a_job.clone()),
        (Method::DELETE, "/v1/images/jobs/nonsense".to_owned()),
        (Method::DELETE, a_job.clone()),
    ];
    for (method, path) in missing {
        let reply = gateway.send(method.clone(), &path, &[], Vec::new()).await;
        assert_eq!(
            (reply.status.as_u16(), reply.error_code().as_str()),
            (404, "not_found"),
            "{method} {path}"
        );
    }
    let others = [
        (Method::GET, GENERATIONS.to_owned(), "POST"),
        (Method::DELETE, an_image, "GET, HEAD"),
        (Method::PUT, a_job, "GET, DELETE"),
        (Method::POST, "/v1/workers".to_owned(), "GET"),
        (Method::POST, "/readyz".to_owned(), "GET"),
        (Method::PUT, "/livez".to_owned(), "GET"),
    ];
    for (method, path, allow) in others {
        let reply = gateway.send(method.clone(), &path, &[], Vec::new()).await;
        assert_eq!(
            (reply.status.as_u16(), reply.error_code().as_str()),
            (405, "method_not_allowed"),
            "{method} {path}"
        );
        assert_eq!(reply.headers["allow"], allow, "{method} {path}");
    }
    gateway.stop().await;
}
