//! `fresco workers`: what the queues say and who is there.

use messaging::{QueueDepth, Queues};
use protocol::{Role, UnixMillis, WorkerPresence};
use serde_json::json;
use service::{clock, exit::Failure};

use crate::{args::WorkersArgs, nats, table, terminal};

const HEAD: [&str; 8] = [
    "ID", "ROLE", "STATE", "HOST", "PROCESS", "DEVICE", "MODEL", "HOLDS",
];

/// Held messages that a line names; an AR-batcher may hold a hundred.
const HELD_SHOWN_MAX: usize = 3;

/// Says what is there now.
pub(crate) async fn run(args: WorkersArgs) -> Result<(), Failure> {
    let bus = nats::connect(&args.bus).await?;
    let queues = bus
        .queues()
        .await
        .map_err(|error| Failure::failed(&error))?;
    let workers = bus
        .workers()
        .await
        .map_err(|error| Failure::failed(&error))?;
    bus.close().await;
    if args.json {
        terminal::say(report(&queues, &workers));
    } else {
        text(&queues, &workers, clock::unix_millis())
            .iter()
            .for_each(terminal::say);
    }
    Ok(())
}

fn report(queues: &Queues, workers: &[WorkerPresence]) -> serde_json::Value {
    let depth = |depth: QueueDepth| json!({ "queued": depth.queued, "held": depth.held, "idle": depth.idle });
    json!({
        "queues": { "ar": depth(queues.ar), "denoise": depth(queues.denoise) },
        "workers": workers,
    })
}

fn text(queues: &Queues, workers: &[WorkerPresence], now: UnixMillis) -> Vec<String> {
    let depth = |name: &str, depth: QueueDepth| {
        let QueueDepth { queued, held, idle } = depth;
        format!("{name:14} {queued} queued, {held} held, {idle} idle")
    };
    let mut lines = vec![
        depth("AR queue:", queues.ar),
        depth("denoise queue:", queues.denoise),
    ];
    let rows: Vec<_> = workers.iter().map(|worker| row(worker, now)).collect();
    lines.extend(table::lines(&HEAD, &rows));
    lines
}

fn row(worker: &WorkerPresence, now: UnixMillis) -> Vec<String> {
    // The wire's word for it.
    let state = serde_json::to_value(worker.state).ok();
    let state = state
        .as_ref()
        .and_then(|state| state.as_str())
        .unwrap_or_default();
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    vec![
        worker.worker.to_string(),
        worker.role.to_string(),
        match &worker.reason {
            Some(reason) => format!("{state} ({reason})"),
            None => state.to_owned(),
        },
        worker.host.clone(),
        worker.process.to_string(),
        or_dash(&worker.device),
        or_dash(&worker.model_revision),
        holds(worker, now),
    ]
}

fn holds(worker: &WorkerPresence, now: UnixMillis) -> String {
    if worker.role == Role::Gateway {
        return format!("{} open outputs", worker.outputs_open);
    }
    let held = worker.held.iter().take(HELD_SHOWN_MAX);
    let held = held.map(|work| format!("{} for {}", work.output, table::ago(work.since, now)));
    let more = worker.held.len().saturating_sub(HELD_SHOWN_MAX);
    let more = (more > 0).then(|| format!("{more} more"));
    let all: Vec<_> = held.chain(more).collect();
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use protocol::{CurrentWork, JobId, OutputIndex, WorkerState};

    use super::*;

    fn worker(name: &str, role: Role, held: usize) -> WorkerPresence {
        let work = CurrentWork {
            output: JobId::from_u128(1).output(OutputIndex::FIRST),
            ack_subject: "a".to_owned(),
            since: 1_000,
        };
        WorkerPresence {
            worker: name.parse().expect("allowed characters"),
            role,
            state: WorkerState::Busy,
            reason: None,
            host: "here".to_owned(),
            process: 7,
            device: Some("cpu".to_owned()),
            model_revision: None,
            health_address: None,
            held: vec![work; held],
            outputs_open: 2,
        }
    }

    #[test]
    fn a_person_sees_queues_first_and_what_each_worker_holds_for_how_long() {
        let depth = |queued, held, idle| QueueDepth { queued, held, idle };
        let queues = Queues {
            ar: depth(3, 1, 0),
            denoise: depth(0, 4, 12),
        };
        let quarantined = WorkerPresence {
            state: WorkerState::Quarantined,
            reason: Some("3 failures in a row".to_owned()),
            ..worker("d-2", Role::Denoiser, 0)
        };
        let workers = [
            worker("a-1", Role::ArBatcher, 5),
            worker("d-1", Role::Denoiser, 1),
            quarantined,
            worker("g-1", Role::Gateway, 0),
        ];
        let job = "00000000000000000000000000000001-0 for 2.5 s";
        let expected = [
            "AR queue:      3 queued, 1 held, 0 idle".to_owned(),
            "denoise queue: 0 queued, 4 held, 12 idle".to_owned(),
            "ID   ROLE        STATE                              HOST  PROCESS  DEVICE  MODEL  HOLDS".to_owned(),
            format!("a-1  ar-batcher  busy                               here  7        cpu     -      {job}, {job}, {job}, 2 more"),
            format!("d-1  denoiser    busy                               here  7        cpu     -      {job}"),
            "d-2  denoiser    quarantined (3 failures in a row)  here  7        cpu     -      -".to_owned(),
            "g-1  gateway     busy                               here  7        cpu     -      2 open outputs".to_owned(),
        ];
        assert_eq!(text(&queues, &workers, 3_500), expected);
    }

    #[test]
    fn a_program_gets_all_of_it() {
        let report = report(&Queues::default(), &[worker("d-1", Role::Denoiser, 1)]);
        assert_eq!(report["queues"]["denoise"]["idle"], 0);
        assert_eq!(report["workers"][0]["state"], "busy");
        assert_eq!(report["workers"][0]["held"][0]["since"], 1_000);
    }
}
