//! A bad request is refused with its field named, and nothing reaches the broker.

use integration::{
    fleet::{Fleet, Size},
    http,
};
use protocol::Role;
use serde_json::{Value, json};

fn with(field: &str, value: Value) -> Value {
    let mut request = json!({"prompt": "p", "size": "128x128", "num_inference_steps": 2});
    request[field] = value;
    request
}

/// Request, code and field.
fn cases() -> Vec<(Value, &'static str, &'static str)> {
    vec![
        (json!({"size": "128x128"}), "invalid_parameter", "prompt"),
        (with("prompt", json!(3)), "invalid_parameter", "prompt"),
        (with("prompt", json!("  ")), "invalid_parameter", "prompt"),
        (
            with("prompt", json!("an <|image|> inside")),
            "invalid_parameter",
            "prompt",
        ),
        (
            with("prompt", json!("p".repeat(4_097))),
            "invalid_parameter",
            "prompt",
        ),
        (with("n", json!(0)), "invalid_parameter", "n"),
        (with("n", json!(11)), "invalid_parameter", "n"),
        (with("n", json!("two")), "invalid_parameter", "n"),
        (with("size", json!("100x100")), "invalid_parameter", "size"),
        (
            with("size", json!("1000000x32")),
            "invalid_parameter",
            "size",
        ),
        (with("size", json!("axb")), "invalid_parameter", "size"),
        (with("seed", json!(-1)), "invalid_parameter", "seed"),
        (with("seed", json!(1.5)), "invalid_parameter", "seed"),
        (with("seed", json!([1, 2])), "invalid_parameter", "seed"),
        (
            with("num_inference_steps", json!(0)),
            "invalid_parameter",
            "num_inference_steps",
        ),
        (
            with("num_inference_steps", json!(1001)),
            "invalid_parameter",
            "num_inference_steps",
        ),
        (
            with("guidance_scale", json!(-0.5)),
            "invalid_parameter",
            "guidance_scale",
        ),
        (
            with("response_format", json!("file")),
            "invalid_parameter",
            "response_format",
        ),
        (
            with("output_format", json!("webp")),
            "invalid_parameter",
            "output_format",
        ),
        (with("colour", json!("red")), "unknown_parameter", "colour"),
        (
            with("image", json!("data:image/png;base64,AAAA")),
            "unknown_parameter",
            "image",
        ),
    ]
}

#[tokio::test]
async fn bad_requests_name_their_field_and_publish_nothing_a06_a08_a46() {
    let fleet = Fleet::start(Size {
        denoisers: 1,
        ..Size::default()
    })
    .await;
    let gateway = fleet.gateway.as_str();

    for (request, code, field) in &cases() {
        let answer = http::generate(gateway, request).await;
        assert_eq!(answer.status, 400, "{request}");
        assert_eq!(answer.error(), (*code, Some(*field)), "{request}");
    }

    let raw = |content_type, body: String| http::generate_raw(gateway, content_type, body);
    let wrong_json = raw("application/json", "{\"prompt\":".into()).await;
    assert_eq!(
        (wrong_json.status.as_u16(), wrong_json.error().0),
        (400, "invalid_json")
    );
    let wrong_type = raw("text/plain", json!({"prompt": "p"}).to_string()).await;
    assert_eq!(
        (wrong_type.status.as_u16(), wrong_type.error().0),
        (415, "unsupported_media_type")
    );
    let large = raw(
        "application/json",
        json!({"prompt": "p".repeat(2_000_000)}).to_string(),
    )
    .await;
    assert_eq!(
        (large.status.as_u16(), large.error().0),
        (413, "body_too_large")
    );
    for id in ["nonsense", "00000000000000000000000000000000-0"] {
        let unknown = http::get(&format!("{gateway}/v1/images/{id}/content")).await;
        assert_eq!(
            (unknown.status.as_u16(), unknown.error().0),
            (404, "not_found"),
            "{id}"
        );
    }

    // Had one been published, it would have been run by now or would be before this good one.
    let good = http::generate(gateway, &with("user", json!("someone"))).await;
    assert_eq!(good.data().len(), 1);
    assert_eq!(
        fleet
            .counter(Role::ArBatcher, "fresco_ar_rows_started")
            .await,
        1
    );
}
