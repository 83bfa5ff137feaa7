//! Bodies of answers, field by field.

use protocol::{JobError, OutputTimings};
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{index, record};
use crate::outcome::Ended;

fn ended(outcome: Result<(), JobError>) -> Ended {
    let timings = OutputTimings {
        accepted_at: 10_000,
        ar_started_at: Some(10_010),
        ar_finished_at: Some(10_110),
        denoise_started_at: Some(10_115),
        denoise_finished_at: Some(11_115),
        finished_at: 11_215,
    };
    Ended {
        outcome,
        usage: Some(PriorUsage {
            prompt_tokens: 40,
            generated_tokens: 60,
            cached: false,
        }),
        prior_id: None,
        timings,
    }
}

fn value(body: &impl Serialize) -> Value {
    serde_json::to_value(body).expect("plain fields")
}

fn timings() -> Value {
    json!({
        "ar_wait_ms": 10, "ar_run_ms": 100, "denoise_wait_ms": 5, "denoise_run_ms": 1000, "decode_run_ms": 100,
        "total_ms": 1215,
    })
}

const JOB: &str = "00000000000000000000000000000001";

#[test]
fn images_come_in_the_order_of_their_index_with_their_seeds() {
    let both = EndedByOutput::from([(index(1), ended(Ok(()))), (index(0), ended(Ok(())))]);
    let answer = ImagesAnswer::new(&record(2), &both, Pictures::Addresses("http://h"))
        .expect("all are pictures");
    let image = |i: u64| {
        json!({
            "url": format!("http://h/v1/images/{JOB}-{i}/content"), "id": format!("{JOB}-{i}"), "seed": 7 + i,
            "timings": timings(),
        })
    };
    let wanted = json!({
        "created": 11, "id": JOB, "data": [image(0), image(1)], "size": "96x160", "output_format": "png",
        "usage": {
            "input_tokens": 40, "output_tokens": 120, "total_tokens": 160,
            "input_tokens_details": { "text_tokens": 40, "image_tokens": 0, "cached_tokens": 0 },
            "output_tokens_details": { "cached_tokens": 0 },
        },
    });
    assert_eq!(value(&answer), wanted);
}

#[test]
fn pictures_can_be_in_the_answer() {
    let bytes = BTreeMap::from([(index(0), b"png".to_vec())]);
    let one = EndedByOutput::from([(index(0), ended(Ok(())))]);
    let answer = ImagesAnswer::new(&record(1), &one, Pictures::Bytes(&bytes)).expect("a picture");
    assert_eq!(value(&answer)["data"][0]["b64_json"], "cG5n");
    assert_eq!(value(&answer)["data"][0].get("url"), None);
}

#[test]
fn one_failed_output_fails_the_answer_with_its_code_a82() {
    let failed = ended(Err(JobError::new(ErrorCode::ArFailed, "no tokens")));
    let both = EndedByOutput::from([(index(0), ended(Ok(()))), (index(1), failed)]);
    let error =
        ImagesAnswer::new(&record(2), &both, Pictures::Addresses("")).expect_err("one failed");
    assert_eq!(error.error().code, ErrorCode::ArFailed);
}

#[test]
fn cached_tokens_are_counted_and_told_apart() {
    let mut cached = ended(Ok(()));
    cached.usage.as_mut().expect("it has one").cached = true;
    cached.prior_id = Some(PriorId::from_u128(0xab));
    let answer = |outputs: [Ended; 2]| {
        let ended = (0..).map(index).zip(outputs).collect();
        let answer = ImagesAnswer::new(&record(2), &ended, Pictures::Addresses(""));
        value(&answer.expect("all are pictures"))
    };
    let details = |answer: &Value| {
        let usage = &answer["usage"];
        assert_eq!(usage["total_tokens"], 160);
        let cached = |of: &str| usage[of]["cached_tokens"].clone();
        [
            cached("input_tokens_details"),
            cached("output_tokens_details"),
        ]
    };
    let half = answer([ended(Ok(())), cached.clone()]);
    assert_eq!(details(&half), [json!(0), json!(60)]);
    assert_eq!(half["data"][0].get("prior_id"), None);
    assert_eq!(
        half["data"][1]["prior_id"],
        "000000000000000000000000000000ab"
    );
    assert_eq!(
        details(&answer([cached.clone(), cached])),
        [json!(40), json!(120)]
    );
}
