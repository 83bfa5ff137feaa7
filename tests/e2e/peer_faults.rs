//! The faults of the peer: each one that was found in its code, its tracker or by running it, by the number it has in
//! our notes, with the tests that say that we do not have it, or why that cannot be tried here, in `peer_faults.md`.
//! The table is checked: every number is there once, and every test named in it exists. What no other test shows is
//! shown below.

use std::{collections::BTreeMap, path::Path, time::Duration};

use async_nats::Client;
use futures::StreamExt;
use integration::{
    api::{Api, first_output},
    binary,
    fleet::{BATCHED, Fleet, until},
    process::Process,
    root,
};
use protocol::{JobId, OutputIndex, PriorityClass, Role, Subject};
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// One line a fault: its number, what it is, and tests as pairs of file and function, or a reason.
const TABLE: &str = include_str!("peer_faults.md");

#[test]
fn every_fault_of_the_peer_has_its_tests_or_a_reason() {
    let mut numbers = Vec::new();
    let mut texts = BTreeMap::new();
    for line in TABLE.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, number, fault, shown, _] = cells[..] else {
            continue;
        };
        let Ok(number) = number.parse::<u32>() else {
            continue;
        };
        numbers.push(number);
        assert!(!fault.is_empty() && !shown.is_empty(), "{line}");
        let named: Vec<_> = shown.split('`').skip(1).step_by(2).collect();
        for test in named.chunks(2) {
            let [file, test] = test else {
                panic!("no pair of file and function: {line}");
            };
            let text = texts
                .entry(*file)
                .or_insert_with(|| std::fs::read_to_string(root().join(file)).unwrap_or_default());
            let function = format!("fn {test}(");
            let is_first = named[1] == *test;
            let numbered = test.split('_').any(|word| word == format!("a{number:02}"));
            assert!(numbered || !is_first, "{test} does not name fault {number}");
            assert!(
                text.contains(&function),
                "{number}, {fault}: {file} has no {test}"
            );
        }
    }
    assert_eq!(numbers, (1..=84).collect::<Vec<_>>());
}

const AR: ArTimes = ArTimes::new(&[(1, 11.0), (2, 12.0)], 258);

const QUICK: Table = Table {
    ar: AR,
    denoise: DenoiseTimes {
        step_ms: 10.0,
        decode_ms: 1.0,
    },
};

fn request(prompt: &str, steps: u32) -> Value {
    json!({"prompt": prompt, "size": "32x32", "seed": 7, "num_inference_steps": steps})
}

/// Publishes past every type of ours, as a client of the broker may. Returns when the broker has it.
async fn publish_raw(nats: &Client, subject: String, payload: &'static [u8]) {
    let echo = nats.new_inbox();
    let mut echoes = nats.subscribe(echo.clone()).await.unwrap();
    #[expect(
        clippy::disallowed_methods,
        reason = "what follows it tells that it came"
    )]
    for (subject, payload) in [(subject, payload), (echo, b"")] {
        nats.publish(subject, payload.into()).await.unwrap();
    }
    echoes.next().await.unwrap();
}

async fn a03_a38_broken_messages_stop_nobody(fleet: &mut Fleet, api: &Api) {
    let job = api.submit(&request("a fox", 400)).await;
    api.until_state(&job, "denoise_running").await;
    let (nobody, painted) = (JobId::generate(), first_output(&job));
    let output = nobody.output(OutputIndex::FIRST);
    let class = PriorityClass::Standard;
    let ours = [
        Subject::Ar(class, nobody),
        Subject::Denoise(class, output),
        Subject::Result(output),
        Subject::Done(output),
        Subject::Progress(output),
        Subject::Done(painted),
        Subject::Progress(painted),
    ];
    let broken = ["ar.x", "dn.x.y", "done.x", "prog.x"].map(str::to_owned);
    let subjects = ours.iter().map(Subject::to_string).chain(broken);
    let (nats, prefix) = (fleet.broker.client().await, fleet.broker.prefix());
    for subject in subjects {
        for payload in [
            &b""[..],
            b"\x80\x04K\x01.",
            &[0xff; 64],
            b"{\"metrics\":{}}",
        ] {
            publish_raw(&nats, format!("{prefix}.{subject}"), payload).await;
        }
    }
    // Whoever stores what cannot be read ends that output, and no other.
    assert_eq!(api.job(&job).await["status"], "in_progress");
    let result = Subject::Result(painted);
    publish_raw(&nats, prefix.subject(&result), b"\x80\x04K\x01.").await;
    assert_eq!(api.until_ended(&job).await["status"], "failed");

    let answer = api.generate(&request("a fox", 1), &[]).await.unwrap();
    assert_eq!(answer.data().len(), 1);
    let mut processes: Vec<&mut Process> = fleet.denoisers.iter_mut().collect();
    processes.extend([&mut fleet.ar_batcher, &mut fleet.gateway_process]);
    for process in processes {
        assert_eq!(process.ended(), None, "{}", process.log());
    }
    fleet.until_queues_empty().await;
}

async fn a13_a_panic_of_a_worker_is_answered_for(fleet: &mut Fleet, api: &Api) {
    fleet.script(&[Rule {
        prompt_contains: "poison".into(),
        stage: FaultStage::Denoise,
        fault: Fault::Panic,
    }]);
    let job = api.submit(&request("a poison", 1)).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let died = loop {
        let mut denoisers = fleet.denoisers.iter_mut();
        if let Some(died) = denoisers.position(|denoiser| denoiser.ended().is_some()) {
            break died;
        }
        assert!(tokio::time::Instant::now() < deadline, "nobody died");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    fleet.script(&[]);
    fleet.denoisers.swap_remove(died);
    fleet.add_denoiser("spare");
    let job = api.until_ended(&job).await;
    assert_eq!(job["status"], "completed");
    let attempts = job["outputs"][0]["attempts"].as_array().unwrap();
    let denoised = attempts
        .iter()
        .filter(|attempt| attempt["stage"] == "denoise");
    assert!(denoised.count() >= 2, "{job}");
}

async fn a41_a_taken_port_is_an_error(fleet: &Fleet, api: &Api) {
    let address = api.url().strip_prefix("http://").unwrap();
    let bus = fleet.broker.flags(Role::Gateway);
    let bus = bus.iter().map(String::as_str);
    let flags: Vec<_> = ["--listen", address].into_iter().chain(bus).collect();
    let gateway = binary("fresco-gateway");
    let mut second = Process::start(&gateway, "on-a-taken-port", &flags, fleet.folder());
    let status = second.end(Duration::from_secs(10)).await;
    assert!(!status.success());
    assert!(second.log().contains(address), "{}", second.log());
}

async fn a59_a_proxy_in_the_environment_changes_nothing(fleet: &Fleet) {
    let nowhere = "http://127.0.0.1:9";
    let variables = [
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "ALL_PROXY",
    ];
    let variables = variables.map(|name| format!("{name}={nowhere}"));
    let file = fleet.folder().join("proxied.address");
    let (gateway, file_text) = (binary("fresco-gateway"), file.to_str().unwrap());
    let program = [
        gateway.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--listen-file",
        file_text,
    ];
    let bus = fleet.broker.flags(Role::Gateway);
    let arguments: Vec<_> = variables
        .iter()
        .map(String::as_str)
        .chain(program)
        .chain(bus.iter().map(String::as_str))
        .collect();
    let _gateway = Process::start(
        Path::new("/usr/bin/env"),
        "proxied",
        &arguments,
        fleet.folder(),
    );
    let address = until("it listens", || async {
        std::fs::read_to_string(&file).ok()
    })
    .await;
    let api = Api::new(&format!("http://{address}"));
    until("it is ready", || async {
        api.readiness().await?.is_success().then_some(())
    })
    .await;
    let answer = api.generate(&request("a fox", 1), &[]).await.unwrap();
    assert_eq!(answer.data().len(), 1);
}

#[tokio::test]
async fn faults_of_messages_processes_and_surroundings() {
    let mut fleet = Fleet::replay(2, QUICK).await;
    let api = Api::new(&fleet.gateway);
    a03_a38_broken_messages_stop_nobody(&mut fleet, &api).await;
    a41_a_taken_port_is_an_error(&fleet, &api).await;
    a59_a_proxy_in_the_environment_changes_nothing(&fleet).await;
    a13_a_panic_of_a_worker_is_answered_for(&mut fleet, &api).await;
}

/// A step that nothing interrupts, longer than the deadline of a silent worker.
const LONG_STEP: Table = Table {
    denoise: DenoiseTimes {
        step_ms: 4_000.0,
        decode_ms: 1.0,
    },
    ar: AR,
};

#[tokio::test]
async fn a04_a_worker_whose_job_ran_out_of_time_gets_no_second_one_and_nobody_waits_for_it() {
    let fleet = Fleet::replay(2, LONG_STEP).await;
    let api = Api::new(&fleet.gateway);
    let mut hurried = request("a fox", 1);
    hurried["timeout_s"] = json!(0.5);
    let expired = api.generate(&hurried, &[]).await.unwrap();
    assert_eq!(expired.error().0, "deadline_exceeded");
    // The one worker is in its step for some seconds more. The other one takes the next job at once, and the third
    // waits for either.
    let ask = |prompt: &str| {
        let (api, request) = (api.clone(), request(prompt, 1));
        async move { api.generate(&request, &[]).await.unwrap() }
    };
    let (second, third) = tokio::join!(ask("an owl"), ask("a hare"));
    let mut waits = [second, third].map(|answer| {
        let timings = &answer.data()[0]["timings"];
        timings["denoise_wait_ms"].as_u64().unwrap()
    });
    waits.sort_unstable();
    assert!(waits[0] < 1_000, "{waits:?}");
    assert!((2_000..4_000).contains(&waits[1]), "{waits:?}");
    // Each worker painted one: the slot of the first is not lost, and a long step lost no message.
    fleet.until_queues_empty().await;
    let painted = fleet
        .counter_by_worker(Role::Denoiser, "fresco_outputs_painted")
        .await;
    assert_eq!(painted, [1, 1]);
}

/// Closed loop.
const CLIENTS: usize = 8;
const ROUNDS: usize = 4;

#[tokio::test]
async fn a49_every_request_of_concurrent_clients_succeeds() {
    let slow_ar = Table {
        ar: ArTimes::new(&[(1, 301.0), (2, 302.0)], 258),
        ..QUICK
    };
    let fleet = Fleet::replay_writing(4, slow_ar, BATCHED).await;
    let client = |i: usize| {
        let api = Api::new(&fleet.gateway);
        async move {
            for round in 0..ROUNDS {
                let request = request(&format!("fox {i} {round}"), 1);
                api.generate(&request, &[]).await.unwrap().data();
            }
        }
    };
    let clients: JoinSet<()> = (0..CLIENTS).map(client).collect();
    clients.join_all().await;
    let count = async |name| fleet.counter(Role::ArBatcher, name).await;
    let rows = count("fresco_ar_rows_started").await;
    assert_eq!(rows, (CLIENTS * ROUNDS) as u64);
    // Who comes back while the others run waits for the next batch with whoever comes too.
    let calls = count("fresco_ar_engine_calls").await;
    println!("{calls} calls for {ROUNDS} rounds of {CLIENTS} clients");
    assert!(calls <= rows / 2, "{calls}");
}
