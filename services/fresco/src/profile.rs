//! `fresco profile`: in which operators a worker's next steps spend their time, by asking the worker itself.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use protocol::{Role, WorkerPresence};
use reqwest::{Client, StatusCode, header::AUTHORIZATION};
use serde_json::json;
use service::{
    exit::Failure,
    profile::{CAPTURE_TIME_MAX, Operator, Report, Wish},
};

use crate::{args::ProfileArgs, nats, table, terminal};

const HEAD: [&str; 6] = [
    "OPERATOR", "CALLS", "SELF MS", "SELF %", "TOTAL MS", "MEAN US",
];

/// A worker in the same cluster answers a connect in well under a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// For the answer to come after the worker's own limits.
const MARGIN: Duration = Duration::from_secs(5);

/// Most bytes of an answer: libtorch has a few thousand operators, of which a model calls some dozens.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Asks, waits and shows.
pub(crate) async fn run(args: ProfileArgs) -> Result<(), Failure> {
    let bus = nats::connect(&args.bus).await?;
    let workers = bus.workers().await;
    bus.close().await;
    let workers = workers.map_err(|error| Failure::failed(&error))?;
    let name = args.worker.to_string();
    let worker = workers.iter().find(|worker| worker.worker == args.worker);
    let worker = worker.ok_or_else(|| unknown(&name, &workers))?;
    let address = address(worker, &args.worker_hosts, &service::host::name())?;
    let report = ask(address, &args, &name).await?;
    if args.json {
        terminal::say(json!({ "worker": name, "device": worker.device, "report": report }));
    } else {
        let device = worker.device.as_deref().unwrap_or_default();
        text(&report, device).iter().for_each(terminal::say);
    }
    Ok(())
}

fn unknown(name: &str, workers: &[WorkerPresence]) -> Failure {
    let engines = workers.iter().filter(|worker| worker.role != Role::Gateway);
    let engines: Vec<_> = engines.map(|worker| worker.worker.to_string()).collect();
    let there = if engines.is_empty() {
        "nobody with an engine".to_owned()
    } else {
        engines.join(", ")
    };
    Failure::Failed(format!(
        "no worker {name} shows signs of life; there is {there}"
    ))
}

/// Where `worker` is asked by who is at the machine `here`. Whoever may write on the broker says where that is, and gets
/// what is sent there, the admin key first: so no other machine is believed than the operator names.
fn address(worker: &WorkerPresence, hosts: &[IpAddr], here: &str) -> Result<SocketAddr, Failure> {
    let name = &worker.worker;
    if worker.role == Role::Gateway {
        let text = format!("{name} is a gateway: it has no engine to look into");
        return Err(Failure::Unusable(text));
    }
    let missing = || Failure::Failed(format!("{name} has not said where it can be asked"));
    let address = worker.health_address.ok_or_else(missing)?;
    let ip = address.ip().to_canonical();
    let is_named = hosts.iter().any(|host| host.to_canonical() == ip);
    // Loopback of another machine is somebody else's here.
    if is_named || (ip.is_loopback() && worker.host == here) {
        return Ok(address);
    }
    let host = &worker.host;
    Err(Failure::Unusable(format!(
        "{name} says that it is on {host} and asked at {address}, which the admin key is not sent to on its word: give \
         --worker-host {ip} if that is where you ask your workers"
    )))
}

async fn ask(address: SocketAddr, args: &ProfileArgs, name: &str) -> Result<Report, Failure> {
    let failed = |error: reqwest::Error| {
        let error = service::exit::chain(&error.without_url());
        Failure::Failed(format!("{name} cannot be asked at {address}: {error}"))
    };
    let Wish { steps, wait_s } = args.wish();
    let client = Client::builder()
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(Duration::from_secs(wait_s.into()) + CAPTURE_TIME_MAX + MARGIN)
        .build();
    let url = format!("http://{address}/profile?steps={steps}&wait_s={wait_s}");
    let request = client
        .map_err(failed)?
        .post(url)
        .header(AUTHORIZATION, args.admin_key.authorization());
    let mut response = request.send().await.map_err(failed)?;
    let (status, mut body) = (response.status(), Vec::new());
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            let text = format!("{name} answers more than {ANSWER_BYTES_MAX} bytes");
            return Err(Failure::Failed(text));
        }
        body.extend_from_slice(&chunk);
    }
    if status == StatusCode::NOT_FOUND {
        let text = format!("{name} was started without --admin-key-file: it shows nothing");
        return Err(Failure::Failed(text));
    }
    if status != StatusCode::OK {
        let text = String::from_utf8_lossy(&body);
        return Err(Failure::Failed(format!("{name} says: {}", text.trim())));
    }
    let unreadable = |error| Failure::Failed(format!("{name} answers no report: {error}"));
    serde_json::from_slice(&body).map_err(unreadable)
}

fn text(report: &Report, device: &str) -> Vec<String> {
    let wall_ns = report.wall_ns;
    let own_ns: u64 = report
        .operators
        .iter()
        .map(|operator| operator.self_ns)
        .sum();
    let rows: Vec<_> = report
        .operators
        .iter()
        .map(|operator| row(operator, wall_ns))
        .collect();
    let mut lines = table::lines(&HEAD, &rows);
    let (own, wall) = (fixed(ms(own_ns)), fixed(ms(wall_ns)));
    let (steps, share) = (report.steps, percent(own_ns, wall_ns));
    let plural = if steps == 1 { "" } else { "s" };
    lines.push(format!(
        "{steps} step{plural} on {device}: operators {own} ms of {wall} ms by the clock, {share} %"
    ));
    if device.starts_with("cuda") {
        lines.push(
            "on a CUDA device these are the times to launch an operator: it runs while the thread goes on"
                .to_owned(),
        );
    }
    lines
}

fn row(operator: &Operator, wall_ns: u64) -> Vec<String> {
    let Operator {
        name,
        calls,
        self_ns,
        total_ns,
    } = operator;
    // Exact up to 2^53 calls.
    let mean_us = ms(*total_ns) * 1e3 / *calls.max(&1) as f64;
    vec![
        name.clone(),
        calls.to_string(),
        fixed(ms(*self_ns)),
        percent(*self_ns, wall_ns),
        fixed(ms(*total_ns)),
        format!("{mean_us:.1}"),
    ]
}

fn ms(ns: u64) -> f64 {
    // Exact up to a hundred days.
    ns as f64 / 1e6
}

fn fixed(ms: f64) -> String {
    format!("{ms:.3}")
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}", 100.0 * ms(part) / ms(whole.max(1)))
}

#[cfg(test)]
mod tests {
    use protocol::WorkerState;

    use super::*;

    #[test]
    fn a_table_adds_up_to_the_clock_and_says_what_a_cuda_device_hides() {
        let operator = |name: &str, calls, self_ns, total_ns| Operator {
            name: name.to_owned(),
            calls,
            self_ns,
            total_ns,
        };
        let report = Report {
            steps: 1,
            wall_ns: 4_000_000,
            operators: vec![
                operator("aten::addmm", 3, 2_000_000, 3_000_000),
                operator("aten::copy_", 3, 1_000_000, 1_000_000),
            ],
        };
        let expected = [
            "OPERATOR     CALLS  SELF MS  SELF %  TOTAL MS  MEAN US",
            "aten::addmm  3      2.000    50.0    3.000     1000.0",
            "aten::copy_  3      1.000    25.0    1.000     333.3",
            "1 step on cpu: operators 3.000 ms of 4.000 ms by the clock, 75.0 %",
        ];
        assert_eq!(text(&report, "cpu"), expected);
        let on_cuda = text(&report, "cuda:0");
        assert!(on_cuda.last().is_some_and(|line| line.contains("launch")));
    }

    fn worker(name: &str, role: Role) -> WorkerPresence {
        WorkerPresence {
            worker: name.parse().expect("allowed characters"),
            role,
            state: WorkerState::Idle,
            reason: None,
            host: "here".to_owned(),
            process: 7,
            device: None,
            model_revision: None,
            health_address: None,
            held: Vec::new(),
            outputs_open: 0,
        }
    }

    #[test]
    fn who_cannot_be_asked_is_named_with_the_reason() {
        let said = |failure: Failure| match failure {
            Failure::Failed(text) | Failure::Unusable(text) => text,
        };
        let workers = [worker("g-1", Role::Gateway), worker("d-1", Role::Denoiser)];
        let missing = said(unknown("d-2", &workers));
        assert!(
            missing.contains("d-2") && missing.ends_with("there is d-1"),
            "{missing}"
        );
        for (worker, reason) in workers.iter().zip(["is a gateway", "has not said where"]) {
            let refused = address(worker, &[], "here").map_err(said);
            let refused = refused.expect_err("neither can");
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn the_key_goes_to_this_machine_and_to_those_that_the_operator_names() {
        let named = ["10.0.0.5", "fd00::5"].map(|host| host.parse().expect("an address"));
        for (address, host, hosts, goes) in [
            ("127.0.0.1:9100", "here", &[][..], true),
            ("[::ffff:127.0.0.1]:9100", "here", &[], true),
            ("[::1]:9100", "here", &[], true),
            ("127.0.0.1:9100", "there", &[], false),
            ("10.0.0.5:9100", "here", &[], false),
            ("10.0.0.5:9100", "there", &named, true),
            ("[::ffff:10.0.0.5]:9100", "there", &named, true),
            ("[fd00::5]:9100", "there", &named, true),
            ("10.0.0.6:9100", "there", &named, false),
        ] {
            let worker = WorkerPresence {
                host: host.to_owned(),
                health_address: Some(address.parse().expect("an address")),
                ..worker("d-1", Role::Denoiser)
            };
            let allowed = super::address(&worker, hosts, "here");
            assert_eq!(allowed.is_ok(), goes, "{address} on {host}");
        }
    }
}
