//! Equal requests share prior tokens, and variations of a picture start from its own: at denoise cost only.

use integration::{
    fleet::{Engine, Fleet, Size},
    http::{self, Answer},
};
use protocol::Role;
use replay::{ArTimes, DenoiseTimes, Table};
use serde_json::{Value, json};

const TABLE: Table = Table {
    ar: ArTimes::new(&[(1, 22.0)], 258),
    denoise: DenoiseTimes {
        step_ms: 5.0,
        decode_ms: 2.0,
    },
};

fn replay() -> Size {
    Size {
        engine: Engine::Replay(TABLE),
        ..Size::default()
    }
}

/// A fox with these fields besides.
fn request(changes: &Value) -> Value {
    let mut request =
        json!({"prompt": "a red fox", "size": "96x64", "seed": 7, "num_inference_steps": 4});
    let fields = request.as_object_mut().unwrap();
    fields.extend(changes.as_object().unwrap().clone());
    request
}

fn plain() -> Value {
    request(&json!({}))
}

async fn ask(fleet: &Fleet, request: &Value) -> Answer {
    let answer = http::generate(&fleet.gateway, request).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

async fn ar_calls(fleet: &Fleet) -> u64 {
    fleet
        .counter(Role::ArBatcher, "fresco_ar_engine_calls")
        .await
}

async fn cache(fleet: &Fleet, what: &str) -> u64 {
    let name = format!("fresco_prior_cache_{what}");
    fleet.counter(Role::ArBatcher, &name).await
}

/// Of the prompt, and of what was sampled.
fn cached_tokens(answer: &Answer) -> [&Value; 2] {
    let usage = &answer.body["usage"];
    [
        &usage["input_tokens_details"]["cached_tokens"],
        &usage["output_tokens_details"]["cached_tokens"],
    ]
}

#[track_caller]
fn assert_all_cached(answer: &Answer) {
    let usage = &answer.body["usage"];
    let all = [&usage["input_tokens"], &usage["output_tokens"]];
    assert_eq!(cached_tokens(answer), all);
    assert!(usage["output_tokens"].as_u64() > Some(0), "{usage}");
}

#[track_caller]
fn prior_id(answer: &Answer, index: usize) -> &str {
    let id = answer.data()[index]["prior_id"].as_str();
    id.unwrap_or_else(|| panic!("no prior_id: {}", answer.body))
}

#[tokio::test]
async fn an_equal_request_costs_no_ar_call_and_gives_equal_bytes() {
    let fleet = Fleet::start_with_prior_cache(replay()).await;
    let first = ask(&fleet, &plain()).await;
    assert_eq!(cached_tokens(&first), [0, 0]);
    assert_eq!(
        (ar_calls(&fleet).await, cache(&fleet, "stored").await),
        (1, 1)
    );

    let second = ask(&fleet, &plain()).await;
    assert_all_cached(&second);
    assert_eq!(prior_id(&second, 0), prior_id(&first, 0));
    assert_eq!(http::pictures(&second).await, http::pictures(&first).await);
    assert_eq!(
        (ar_calls(&fleet).await, cache(&fleet, "hits").await),
        (1, 1)
    );

    // Of two outputs, the one with the seed of before.
    let two = ask(&fleet, &request(&json!({"seed": 6, "n": 2}))).await;
    let [prompt, sampled] = cached_tokens(&two);
    assert_eq!(prompt, 0, "it was read for the other output");
    assert_eq!(*sampled, first.body["usage"]["output_tokens"]);
    assert_eq!(prior_id(&two, 1), prior_id(&first, 0));
    assert_ne!(prior_id(&two, 0), prior_id(&two, 1));
    assert_eq!(
        (ar_calls(&fleet).await, cache(&fleet, "misses").await),
        (2, 2)
    );

    // What prior tokens do not follow from makes no difference.
    let other = json!({"num_inference_steps": 5, "guidance_scale": 2.0, "priority": "high"});
    assert_all_cached(&ask(&fleet, &request(&other)).await);
    for changes in [
        json!({"prompt": "a red box"}),
        json!({"size": "64x96"}),
        json!({"seed": 8}),
    ] {
        let answer = ask(&fleet, &request(&changes)).await;
        assert_eq!(cached_tokens(&answer), [0, 0], "{changes}");
    }
}

#[tokio::test]
async fn a_variation_starts_from_the_earlier_tokens_and_costs_no_ar_call() {
    let fleet = Fleet::start_with_prior_cache(replay()).await;
    let first = ask(&fleet, &plain()).await;
    let id = prior_id(&first, 0).to_owned();
    let picture = http::pictures(&first).await.remove(0);

    // Two outputs share the prior; the size is the earlier one's.
    let mut wish = request(&json!({"prior_id": id, "n": 2}));
    wish.as_object_mut().unwrap().remove("size");
    let variations = ask(&fleet, &wish).await;
    assert_eq!(variations.body["size"], "96x64");
    assert_all_cached(&variations);
    assert_eq!([0, 1].map(|i| prior_id(&variations, i)), [&id, &id]);
    let pictures = http::pictures(&variations).await;
    assert_eq!(pictures[0], picture, "the same seed and steps");
    assert_ne!(pictures[1], picture, "another seed");

    for changes in [
        json!({"num_inference_steps": 5}),
        json!({"guidance_scale": 2.5}),
    ] {
        let mut wish = wish.clone();
        let fields = wish.as_object_mut().unwrap();
        fields.extend(changes.as_object().unwrap().clone());
        fields.insert("n".to_owned(), json!(1));
        let other = ask(&fleet, &wish).await;
        assert_all_cached(&other);
        assert_ne!(http::pictures(&other).await[0], picture, "{changes}");
    }
    assert_eq!(ar_calls(&fleet).await, 1);

    let other_size = json!({"prior_id": id, "size": "64x96"});
    let refused = http::generate(&fleet.gateway, &request(&other_size)).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.error(), ("invalid_parameter", Some("size")));
}

#[tokio::test]
async fn tokens_that_ran_out_are_not_found_and_are_written_again_for_who_asks() {
    let fleet = Fleet::start_with_prior_cache(replay()).await;
    let first = ask(&fleet, &plain()).await;
    let id = prior_id(&first, 0).to_owned();
    let nats = fleet.broker.client().await;
    let bucket = async_nats::jetstream::new(nats)
        .get_stream(format!("KV_{}", fleet.bus.topology().priors.name))
        .await
        .unwrap();
    bucket.purge().await.unwrap();

    for unknown in [id.as_str(), "0123456789abcdef0123456789abcdef"] {
        let wish = request(&json!({"prior_id": unknown}));
        let answer = http::generate(&fleet.gateway, &wish).await;
        assert_eq!(answer.status, 404, "{unknown}");
        assert_eq!(answer.error(), ("not_found", Some("prior_id")));
    }
    assert_eq!(ar_calls(&fleet).await, 1, "nothing was queued");

    let again = ask(&fleet, &plain()).await;
    assert_eq!(
        (cached_tokens(&again), prior_id(&again, 0)),
        ([&json!(0); 2], &*id)
    );
    assert_eq!(ar_calls(&fleet).await, 2);
}

#[tokio::test]
async fn without_the_cache_the_ar_model_runs_again_and_old_variations_still_work() {
    let mut fleet = Fleet::start_with_prior_cache(replay()).await;
    let first = ask(&fleet, &plain()).await;
    let id = prior_id(&first, 0).to_owned();
    fleet.replace_ar_batcher_with(&["--no-prior-cache"]);
    fleet.until_idle(2).await;

    let again = ask(&fleet, &plain()).await;
    assert_eq!(cached_tokens(&again), [0, 0]);
    assert_eq!(again.data()[0].get("prior_id"), None);
    assert_eq!(ar_calls(&fleet).await, 1, "of the batcher without a cache");
    assert_eq!(http::pictures(&again).await, http::pictures(&first).await);

    let variation = ask(&fleet, &request(&json!({"prior_id": id}))).await;
    assert_all_cached(&variation);
    assert_eq!(
        http::pictures(&variation).await,
        http::pictures(&first).await
    );
    assert_eq!(ar_calls(&fleet).await, 1);
}

#[tokio::test]
async fn with_the_model_a_cached_picture_equals_the_first_byte_for_byte() {
    let fleet = Fleet::start_with_prior_cache(Size::default()).await;
    let first = ask(&fleet, &plain()).await;
    let id = prior_id(&first, 0).to_owned();
    let second = ask(&fleet, &plain()).await;
    let variation = ask(&fleet, &request(&json!({"prior_id": id}))).await;
    let picture = http::pictures(&first).await;
    for cached in [&second, &variation] {
        assert_all_cached(cached);
        assert_eq!(http::pictures(cached).await, picture);
    }
    assert_eq!(ar_calls(&fleet).await, 1);
}

#[tokio::test]
async fn every_priority_is_taken_and_finishes_and_no_other_is() {
    let fleet = Fleet::start_with_prior_cache(replay()).await;
    for priority in ["high", "standard", "low"] {
        ask(&fleet, &request(&json!({"priority": priority}))).await;
    }
    for bad in [json!("urgent"), json!("HIGH"), json!(1)] {
        let answer = http::generate(&fleet.gateway, &request(&json!({"priority": bad}))).await;
        assert_eq!(answer.status, 400, "{bad}");
        assert_eq!(answer.error(), ("invalid_parameter", Some("priority")));
    }
}
