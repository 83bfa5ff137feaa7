//! From a request to its pictures.

use opentelemetry::trace::TraceContextExt;
use protocol::OutputIndex;
use reqwest::Method;
use serde_json::{Value, json};

use crate::deployment::{Deployment, GENERATIONS, JSON, TestGateway, next_job, picture, work_once};

fn path_of(url: &Value, gateway: &TestGateway) -> String {
    url.as_str()
        .unwrap()
        .strip_prefix(&gateway.url)
        .expect("an address of this gateway")
        .to_owned()
}

#[tokio::test]
async fn pictures_come_in_order_with_seeds_usage_and_timings() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "a red cube", "n": 3, "size": "96x160", "seed": 7, "num_inference_steps": 4 });
    let (reply, job) = tokio::join!(
        gateway.generate(&body),
        work_once(&deployment, &mut queue, &[])
    );
    assert_eq!(
        (
            job.prompt.as_str(),
            job.denoise.steps(),
            job.denoise.guidance_scale()
        ),
        ("a red cube", 4, 1.5)
    );
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["x-request-id"], job.job.to_string());
    let answer = reply.json();
    assert_eq!(
        (&answer["id"], &answer["size"], &answer["output_format"]),
        (&json!(job.job), &json!("96x160"), &json!("png"))
    );
    assert_eq!(answer["usage"]["total_tokens"], 40 + 3 * 60);
    for (i, image) in (0_u8..).zip(answer["data"].as_array().unwrap()) {
        assert_eq!(
            (&image["seed"], &image["id"]),
            (&json!(7 + i), &json!(format!("{}-{i}", job.job)))
        );
        let wanted = json!({
            "ar_wait_ms": 1, "ar_run_ms": 2, "denoise_wait_ms": 3, "denoise_run_ms": 4, "decode_run_ms": 5, "total_ms": 15,
        });
        assert_eq!(image["timings"], wanted);
        let content = gateway.get(&path_of(&image["url"], &gateway)).await;
        assert_eq!(
            (content.status.as_u16(), &content.headers["content-type"]),
            (200, &"image/png".parse().unwrap())
        );
        assert_eq!(content.bytes, picture(&job, OutputIndex::new(i).unwrap()));
        let tag = content.headers["etag"].to_str().unwrap().to_owned();
        let again = gateway
            .send(
                Method::GET,
                &path_of(&image["url"], &gateway),
                &[("if-none-match", &tag)],
                vec![],
            )
            .await;
        assert_eq!((again.status.as_u16(), again.bytes.len()), (304, 0));
    }
    assert_eq!(answer["data"].as_array().unwrap().len(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn pictures_can_be_in_the_answer_and_a_drawn_seed_is_told() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "p", "response_format": "b64_json", "user": "someone" });
    let (reply, job) = tokio::join!(
        gateway.generate(&body),
        work_once(&deployment, &mut queue, &[])
    );
    let image = &reply.json()["data"][0];
    assert_eq!(
        (&image["seed"], image.get("url")),
        (&json!(job.outputs[0].seed), None)
    );
    let bytes = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD,
        image["b64_json"].as_str().unwrap(),
    );
    assert_eq!(bytes.unwrap(), picture(&job, job.outputs[0].index));
    gateway.stop().await;
}

#[tokio::test]
async fn a_failed_output_fails_the_request_and_the_others_can_be_fetched() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "p", "n": 2 });
    let (reply, job) = tokio::join!(
        gateway.generate(&body),
        work_once(&deployment, &mut queue, &[1])
    );
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_str()),
        (500, "denoise_failed")
    );
    assert_eq!(reply.headers["x-request-id"], job.job.to_string());
    let painted = gateway
        .get(&format!("/v1/images/{}-0/content", job.job))
        .await;
    assert_eq!(
        (painted.status.as_u16(), painted.bytes),
        (200, picture(&job, job.outputs[0].index))
    );
    let failed = gateway
        .get(&format!("/v1/images/{}-1/content", job.job))
        .await;
    assert_eq!(
        (failed.status.as_u16(), failed.error_code().as_str()),
        (500, "denoise_failed")
    );
    gateway.stop().await;
}

#[tokio::test]
async fn an_operators_address_starts_the_addresses_of_pictures() {
    let deployment = Deployment::start().await;
    let gateway = deployment
        .ready_gateway(&["--public-url=https://images.example.com/fresco/"])
        .await;
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "p" });
    let (reply, job) = tokio::join!(
        gateway.generate(&body),
        work_once(&deployment, &mut queue, &[])
    );
    let wanted = format!(
        "https://images.example.com/fresco/v1/images/{}-0/content",
        job.job
    );
    assert_eq!(reply.json()["data"][0]["url"], wanted);
    gateway.stop().await;
}

#[tokio::test]
async fn the_clients_trace_goes_on_behind_the_queue() {
    use clap::Parser;
    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        shell: service::ShellArgs,
    }
    let _telemetry =
        service::telemetry::init("test", &Flags::parse_from(["test", "--log=info"]).shell).unwrap();
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let parent = (
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );
    let headers = [JSON, parent, ("prefer", "respond-async")];
    let request = gateway.send(
        Method::POST,
        GENERATIONS,
        &headers,
        br#"{"prompt":"p"}"#.to_vec(),
    );
    let (reply, (_, delivery)) = tokio::join!(request, next_job(&mut queue));
    assert_eq!(reply.status, 202);
    let context = delivery.context.span().span_context().clone();
    assert_eq!(
        context.trace_id().to_string(),
        "0af7651916cd43dd8448eb211c80319c"
    );
    assert_ne!(context.span_id().to_string(), "b7ad6b7169203331");
    gateway.stop().await;
}
