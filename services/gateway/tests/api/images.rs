//! From a request to its pictures.

use std::time::Duration;

use opentelemetry::trace::TraceContextExt;
use protocol::OutputIndex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    deployment::{
        Deployment, GENERATIONS, JSON, TestGateway, next_job, picture, result, work_once,
    },
    jobs::generate_in_background,
};

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
async fn pictures_can_be_in_the_answer_and_a_drawn_seed_is_told_a40() {
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
async fn a_failed_output_fails_the_request_and_the_others_can_be_fetched_a26() {
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
    let identity = service::telemetry::Identity {
        service: "test",
        deployment: String::new(),
        instance: String::new(),
    };
    let shell = Flags::parse_from(["test", "--log=info"]).shell;
    let _telemetry = service::telemetry::init(&identity, &shell).unwrap();
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
    assert_eq!(
        reply.headers["x-trace-id"],
        "0af7651916cd43dd8448eb211c80319c"
    );
    let context = delivery.context.span().span_context().clone();
    assert_eq!(
        context.trace_id().to_string(),
        "0af7651916cd43dd8448eb211c80319c"
    );
    assert_ne!(context.span_id().to_string(), "b7ad6b7169203331");
    gateway.stop().await;
}

/// Larger than what the kernel takes from a sender whose reader does not read: 4 MB.
const LARGE_BYTES: usize = 8 * 1024 * 1024;

/// Asks for a picture and then hardly reads.
async fn slow_reader(gateway: &TestGateway, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(gateway.running.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Waits for the first bytes of an answer.
async fn is_answered(reader: &mut TcpStream) {
    let mut status = [0; 15];
    reader.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn pictures_on_their_way_to_slow_readers_are_bounded() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "p" });
    let (_, (job, _)) = tokio::join!(
        generate_in_background(&gateway, &body),
        next_job(&mut queue)
    );
    let mut stored = result(&job, job.outputs[0].index, None);
    stored.outcome.as_mut().unwrap().bytes = vec![7; LARGE_BYTES];
    deployment.bus.put_result(&stored).await.unwrap();
    let path = format!("/v1/images/{}/content", stored.output);
    let mut readers = Vec::new();
    for _ in 0..gateway::PICTURES_OUT_MAX {
        let mut reader = slow_reader(&gateway, &path).await;
        is_answered(&mut reader).await;
        readers.push(reader);
    }
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(slow_reader(&gateway, &path).await);
    }
    for other in &mut others {
        let answered = timeout(Duration::from_millis(300), is_answered(other)).await;
        assert!(answered.is_err(), "there is no place");
    }
    // One that reads on and two that leave, each a place for another one.
    let mut whole = Vec::new();
    let mut first = readers.swap_remove(0);
    first.read_to_end(&mut whole).await.unwrap();
    assert!(whole.len() > LARGE_BYTES);
    readers.truncate(readers.len() - 2);
    for other in &mut others {
        is_answered(other).await;
    }
    drop((readers, others));
    // Answers without the picture take no place with them.
    let tag = format!("\"{}\"", stored.output);
    let known = [("if-none-match", tag.as_str())];
    for _ in 0..=gateway::PICTURES_OUT_MAX {
        let reply = gateway.send(Method::GET, &path, &known, vec![]).await;
        assert_eq!(reply.status, 304);
    }
    gateway.stop().await;
}
