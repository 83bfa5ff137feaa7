//! A prompt comes back as the picture that the model paints, and always the same one.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use integration::{
    fleet::{Fleet, Size},
    http,
};
use protocol::Role;
use serde_json::{Value, json};

fn request(changes: &Value) -> Value {
    let mut request =
        json!({"prompt": "a red fox", "size": "128x128", "seed": 7, "num_inference_steps": 4});
    let fields = request.as_object_mut().unwrap();
    fields.extend(changes.as_object().unwrap().clone());
    request
}

/// Width and height, and that it decodes to more than one colour.
fn decoded(picture: &[u8]) -> (u32, u32) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(picture))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!(
        (info.color_type, info.bit_depth),
        (png::ColorType::Rgb, png::BitDepth::Eight)
    );
    let first = &pixels[..3];
    assert!(
        pixels.chunks_exact(3).any(|pixel| pixel != first),
        "a flat picture"
    );
    (info.width, info.height)
}

#[tokio::test]
async fn a_prompt_becomes_a_picture_a61() {
    let fleet = Fleet::start(Size::default()).await;

    // Not square: width and height keep their places through five hops.
    let answer = http::generate(&fleet.gateway, &request(&json!({"size": "160x96"}))).await;
    let pictures = http::pictures(&answer).await;
    assert_eq!(
        pictures
            .iter()
            .map(|picture| decoded(picture))
            .collect::<Vec<_>>(),
        [(160, 96)]
    );
    assert_eq!(answer.seeds(), [7]);

    // The same bytes by either way of asking.
    let inline = request(&json!({"size": "160x96", "response_format": "b64_json"}));
    let inline = http::generate(&fleet.gateway, &inline).await;
    let bytes = BASE64
        .decode(inline.data()[0]["b64_json"].as_str().unwrap())
        .unwrap();
    assert_eq!(bytes, pictures[0]);

    // 20 prompt tokens or so; preview 20x12, large 3x5 and the end token.
    let usage = &answer.body["usage"];
    assert_eq!(usage["output_tokens"], 12 * 20 + 3 * 5 + 1, "{usage}");
    assert!(usage["input_tokens"].as_u64().unwrap() > 0, "{usage}");

    // Stage times are there and add up.
    let timings = answer.data()[0]["timings"].as_object().unwrap();
    let parts: u64 = timings
        .iter()
        .filter(|(name, _)| *name != "total_ms")
        .map(|(_, ms)| ms.as_u64().unwrap())
        .sum();
    assert_eq!(Some(parts), timings["total_ms"].as_u64(), "{timings:?}");
}

#[tokio::test]
async fn outputs_are_painted_by_different_workers_and_equal_single_pictures_a16_a45_a53() {
    let fleet = Fleet::start(Size::default()).await;
    let two = http::generate(&fleet.gateway, &request(&json!({"n": 2}))).await;
    assert_eq!(two.seeds(), [7, 8]);
    assert_eq!(
        fleet
            .counter(Role::ArBatcher, "fresco_ar_engine_calls")
            .await,
        1,
        "two outputs, one batch"
    );
    fleet.until_queues_empty().await;
    let painted = fleet
        .counter_by_worker(Role::Denoiser, "fresco_outputs_painted")
        .await;
    assert_eq!(painted, [1, 1], "each denoiser paints one");

    let pictures = http::pictures(&two).await;
    for (seed, picture) in [7, 8].into_iter().zip(&pictures) {
        let alone = http::generate(&fleet.gateway, &request(&json!({"seed": seed}))).await;
        assert_eq!(
            &http::pictures(&alone).await[0],
            picture,
            "seed {seed} alone"
        );
    }
    assert_ne!(pictures[0], pictures[1], "another seed, another picture");
}

#[tokio::test]
async fn ten_outputs_of_mixed_requests_equal_themselves_alone_a51() {
    let fleet = Fleet::start(Size::default()).await;
    // Company of other prompts, sizes and lengths in the AR batch.
    let companions = [
        request(&json!({"prompt": "a sign that says \"OPEN\" and 'late'", "n": 3})),
        request(&json!({"prompt": "x", "size": "96x160", "n": 2})),
        request(&json!({"prompt": "a long way home over the hills and far away", "n": 5})),
    ];
    let together = {
        let [a, b, c] = &companions;
        let gateway = &fleet.gateway;
        tokio::join!(
            http::generate(gateway, a),
            http::generate(gateway, b),
            http::generate(gateway, c)
        )
    };
    let together = [together.0, together.1, together.2];
    for (request, answer) in companions.iter().zip(&together) {
        let pictures = http::pictures(answer).await;
        let mut last = request.clone();
        last["n"] = json!(1);
        last["seed"] = json!(answer.seeds().last().unwrap());
        let alone = http::generate(&fleet.gateway, &last).await;
        assert_eq!(
            pictures.last(),
            http::pictures(&alone).await.first(),
            "{request}"
        );
    }
}

#[tokio::test]
async fn a_missing_seed_is_drawn_and_told_a68() {
    let fleet = Fleet::start(Size::default()).await;
    let mut unseeded = request(&json!({"n": 2}));
    unseeded.as_object_mut().unwrap().remove("seed");
    let first = http::generate(&fleet.gateway, &unseeded).await;
    let second = http::generate(&fleet.gateway, &unseeded).await;
    let seeds = first.seeds();
    assert_eq!(seeds[1], seeds[0] + 1);
    assert_ne!(seeds, second.seeds(), "drawn anew for each request");
    let told = http::generate(&fleet.gateway, &request(&json!({"n": 1, "seed": seeds[0]}))).await;
    assert_eq!(
        http::pictures(&first).await[0],
        http::pictures(&told).await[0]
    );
}
