//! Bodies that are requests, bodies that are not, and which field the refusal names.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::reply::http_status;

const TIMEOUT_MAX: Duration = Duration::from_secs(600);

fn parse(body: &str) -> Result<ImageRequest, ApiError> {
    ImageRequest::parse(body.as_bytes(), TIMEOUT_MAX)
}

/// Code and named parameter of the refusal of `body`.
fn refusal(body: &[u8]) -> (ErrorCode, Option<String>) {
    let error = ImageRequest::parse(body, TIMEOUT_MAX).expect_err("the body is refused");
    (error.error().code, error.param().map(str::to_owned))
}

#[test]
fn a_prompt_alone_gets_the_defaults_a23() {
    let request = parse(r#"{"prompt": "a red cube"}"#).expect("a prompt is enough");
    assert_eq!(request.prompt.as_str(), "a red cube");
    assert_eq!(
        (request.outputs, request.seed, request.timeout),
        (1, None, None)
    );
    let size = "1024x1024".parse().expect("allowed");
    assert_eq!(
        (request.source, request.priority),
        (PriorSource::Model(size), PriorityClass::Standard)
    );
    assert_eq!(
        (request.denoise.steps(), request.denoise.guidance_scale()),
        (50, 1.5)
    );
    assert_eq!(
        (request.format, request.response_format),
        (ImageFormat::Png, ResponseFormat::Url)
    );
}

#[test]
fn every_field_is_honoured_a39() {
    let body = json!({
        "prompt": "日本", "model": "glm-image", "n": 10, "size": "96x160", "seed": 7, "num_inference_steps": 1000,
        "guidance_scale": 20, "response_format": "b64_json", "output_format": "png", "user": "someone", "timeout_s": 1.5,
        "prior_id": "0123456789abcdef0123456789abcdef", "priority": "high",
    });
    let request = parse(&body.to_string()).expect("all allowed");
    assert_eq!((request.outputs, request.seed), (10, Seed::new(7)));
    let source = PriorSource::Earlier {
        id: PriorId::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        size: ImageSize::new(96, 160).ok(),
    };
    assert_eq!(
        (request.source, request.priority),
        (source, PriorityClass::High)
    );
    assert_eq!(
        (request.denoise.steps(), request.denoise.guidance_scale()),
        (1000, 20.0)
    );
    assert_eq!(request.response_format, ResponseFormat::Base64);
    assert_eq!(request.timeout, Some(Duration::from_millis(1_500)));
}

#[test]
fn null_is_an_absent_field() {
    let body = r#"{"prompt":"p","model":null,"n":null,"size":null,"seed":null,"num_inference_steps":null,
        "guidance_scale":null,"response_format":null,"output_format":null,"user":null,"timeout_s":null,"prior_id":null,"priority":null}"#;
    assert_eq!(parse(body), parse(r#"{"prompt":"p"}"#));
    assert_eq!(
        refusal(br#"{"prompt":null}"#),
        (ErrorCode::InvalidParameter, Some("prompt".into()))
    );
}

#[test]
fn a_bad_field_is_refused_by_its_name() {
    let cases = [
        ("model", r#""dall-e-3" "" 1"#),
        (
            "n",
            r#"0 11 -1 1.5 1.0 "two" "2" [] true 256 1e400 99999999999999999999"#,
        ),
        (
            "size",
            r#""100x100" "1000000x32" "axb" "" "auto" "1024" "0x0" 1024 "1024×1024""#,
        ),
        (
            "seed",
            r#"-1 1.5 "7" 9223372036854775808 18446744073709551616 1e3 {}"#,
        ),
        (
            "num_inference_steps",
            r#"0 1001 -1 50.5 "50" 65537 99999999999999999999999"#,
        ),
        (
            "guidance_scale",
            r#"-0.1 20.1 "NaN" "1.5" 1e999 [1.5] false"#,
        ),
        ("response_format", r#""png" "" 1"#),
        ("output_format", r#""jpeg" "webp" "PNG" 1"#),
        ("user", "1 {}"),
        ("priority", r#""urgent" "High" "" 1 {}"#),
        (
            "prior_id",
            r#""" "x" 1 {} "0123456789ABCDEF0123456789ABCDEF" "0123456789abcdef0123456789abcde""#,
        ),
    ];
    for (param, values) in cases {
        for value in values.split(' ') {
            let body = format!(r#"{{"prompt":"p","{param}":{value}}}"#);
            assert_eq!(
                refusal(body.as_bytes()),
                (ErrorCode::InvalidParameter, Some(param.into())),
                "{body}"
            );
        }
    }
}

#[test]
fn bad_steps_are_told_how_many_there_may_be() {
    for value in ["0", "1001", "-1", "50.5", r#""50""#, "65537"] {
        let body = format!(r#"{{"prompt":"p","num_inference_steps":{value}}}"#);
        let error = ImageRequest::parse(body.as_bytes(), TIMEOUT_MAX).expect_err("refused");
        let told = &error.error().text;
        assert!(
            told.ends_with("a whole number from 1 to 1000"),
            "{value}: {told}"
        );
    }
}

#[test]
fn a_bad_prompt_is_refused_by_its_name() {
    let long = format!(r#""{}""#, "p".repeat(PROMPT_BYTES_MAX + 1));
    let values = [
        r#""""#,
        r#"" \t\n ""#,
        "1",
        "[\"p\"]",
        r#""a\u0000b""#,
        r#""<|image|>""#,
        r#""a <sop> b""#,
        r#""<eop>""#,
        r#""\u003c|endoftext|>""#,
        r#""\ud800""#,
        &long,
    ];
    for value in values {
        let body = format!(r#"{{"prompt":{value}}}"#);
        assert_eq!(
            refusal(body.as_bytes()),
            (ErrorCode::InvalidParameter, Some("prompt".into())),
            "{body}"
        );
    }
    assert_eq!(
        refusal(b"{}"),
        (ErrorCode::InvalidParameter, Some("prompt".into()))
    );
    let longest = format!(r#"{{"prompt":"{}"}}"#, "é".repeat(PROMPT_BYTES_MAX / 2));
    assert!(parse(&longest).is_ok());
}

#[test]
fn an_unknown_field_is_refused_by_its_name() {
    for param in [
        "quality",
        "negative_prompt",
        "stream",
        "image",
        "Prompt",
        "n ",
        "",
    ] {
        let body = json!({"prompt": "p", param: 1}).to_string();
        assert_eq!(
            refusal(body.as_bytes()),
            (ErrorCode::UnknownParameter, Some(param.into())),
            "{body}"
        );
    }
}

#[test]
fn a_repeated_key_is_refused_by_its_name() {
    for body in [
        r#"{"prompt":"p","n":1,"n":2}"#,
        r#"{"prompt":"p","n":1,"\u006e":1}"#,
        r#"{"n":null,"prompt":"p","n":2}"#,
    ] {
        assert_eq!(
            refusal(body.as_bytes()),
            (ErrorCode::InvalidParameter, Some("n".into())),
            "{body}"
        );
    }
}

#[test]
fn a_body_that_is_no_json_object_is_refused() {
    let cases: [&[u8]; 14] = [
        b"",
        b" ",
        b"{",
        b"[]",
        b"null",
        b"1",
        b"\"prompt\"",
        b"{\"prompt\":\"p\"",
        b"{\"prompt\":\"p\"} x",
        b"{prompt:1}",
        b"{\"prompt\":\"p\",\"guidance_scale\":NaN}",
        b"{\"prompt\":\"\xff\"}",
        b"\xef\xbb\xbf{\"prompt\":\"p\"}",
        b"{\"prompt\":\"a\nb\"}",
    ];
    for body in cases {
        assert_eq!(
            refusal(body),
            (ErrorCode::InvalidJson, None),
            "{}",
            String::from_utf8_lossy(body)
        );
    }
    let deep = [b"{\"prompt\":".as_slice(), &[b'['; 100_000]].concat();
    assert_eq!(refusal(&deep).0, ErrorCode::InvalidJson);
}

#[test]
fn the_last_outputs_seed_is_within_the_maximum() {
    let at = |seed: u64| format!(r#"{{"prompt":"p","n":10,"seed":{seed}}}"#);
    assert!(parse(&at(SEED_MAX - 9)).is_ok());
    assert_eq!(
        refusal(at(SEED_MAX - 8).as_bytes()),
        (ErrorCode::InvalidParameter, Some("seed".into()))
    );
}

#[test]
fn a_prompt_is_never_printed() {
    let request = parse(r#"{"prompt":"a secret"}"#).expect("allowed");
    assert!(!format!("{request:?}").contains("secret"));
}

/// Bodies near a request: known keys with any JSON-like value.
fn near_body() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "prompt",
        "model",
        "n",
        "size",
        "seed",
        "num_inference_steps",
        "guidance_scale",
        "response_format",
        "output_format",
        "user",
        "prior_id",
        "priority",
        "x",
    ]);
    let value = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        "\\PC{0,20}".prop_map(|text| json!(text).to_string()),
        "[0-9]{1,4}x[0-9]{1,4}".prop_map(|text| json!(text).to_string()),
        Just("null".to_owned()),
        "[\\[\\]{}:,\"0-9a-z]{0,12}",
    ];
    prop::collection::vec((key, value), 0..6).prop_map(|pairs| {
        let members: Vec<String> = pairs
            .iter()
            .map(|(key, value)| format!("\"{key}\":{value}"))
            .collect();
        format!("{{{}}}", members.join(","))
    })
}

fn is_request_or_4xx(body: &[u8]) -> bool {
    match ImageRequest::parse(body, TIMEOUT_MAX) {
        Ok(request) => (1..=OUTPUTS_PER_JOB_MAX).contains(&request.outputs),
        Err(error) => http_status(error.error().code).is_client_error(),
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_a_refusal(body in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(is_request_or_4xx(&body));
    }

    #[test]
    fn any_body_near_a_request_is_one_or_a_refusal(body in near_body()) {
        prop_assert!(is_request_or_4xx(body.as_bytes()));
    }
}
