//! `fresco bench`: measures a fleet of replay engines under a load, beside its bound and its plan.
//!
//! `load` says what comes, `client` asks for it, `summary` makes figures of the answers, `report` tables of the figures.

mod client;
mod collector;
mod cpu;
mod fleet;
pub(crate) mod load;
mod origin;
mod plot;
mod report;
pub(crate) mod summary;

use std::{collections::BTreeMap, fs, path::Path};

use replay::Times;
use serde::{Deserialize, Serialize};
use service::exit::Failure;

use self::{
    client::{Asker, failures},
    collector::Collector,
    fleet::Fleet,
    load::Load,
    origin::Origin,
    summary::{Edge, Spread, Stages, Summary, summarise},
};
use crate::{
    args::{BenchCommand, BenchRunArgs},
    plan::{policy, simulation::simulate},
    terminal,
};

/// Everything about a run, as its file has it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// What was typed, without credentials and folders of the machine.
    command: String,
    pub(crate) origin: Origin,
    pub(crate) load: Load,
    pub(crate) admission: String,
    pub(crate) denoisers: usize,
    pub(crate) ar_slots: usize,
    pub(crate) time_scale: f64,
    /// Every job sends its spans to a collector that counts.
    #[serde(default)]
    pub(crate) traced: bool,
    pub(crate) measured: Summary,
    /// What the simulation makes of the same load; none where nothing takes time.
    pub(crate) planned: Option<Summary>,
    /// Of each role, client and broker included; none of a fleet that others started but the client's.
    pub(crate) cpu_ms_per_request: BTreeMap<String, f64>,
}

impl Outcome {
    /// Of the best that any policy could reach. None of an open load: it asks for what it asks for.
    pub(crate) fn share_of_bound(&self) -> Option<f64> {
        let bound = self.measured.bound_images_per_s?;
        let is_closed = self.load.at_once() > 0;
        is_closed.then(|| self.measured.images_per_s / bound)
    }
}

/// Carries out the command.
pub(crate) async fn run(command: BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Report(args) => report::run(&args),
        BenchCommand::Run(args) => {
            tokio::select! {
                done = measure_traced(&args) => done,
                // The fleet is dropped with what waits for it, and its folder too.
                _ = tokio::signal::ctrl_c() => Err(Failure::Failed("interrupted".to_owned())),
            }
        }
    }
}

/// Measures with a collector beside, where one is wanted.
async fn measure_traced(args: &BenchRunArgs) -> Result<(), Failure> {
    if !args.traced {
        return measure(args, None).await;
    }
    let collector = Collector::bind().await?;
    let (url, batches) = (collector.url()?, collector.batches());
    tokio::select! {
        measured = measure(args, Some(&url)) => measured?,
        () = collector.serve() => return Err(Failure::Failed("the collector has ended".to_owned())),
    }
    match batches.count() {
        0 => Err(Failure::Failed("no spans came".to_owned())),
        batches => {
            terminal::say(format_args!("traced      {batches} batches of spans"));
            Ok(())
        }
    }
}

async fn measure(args: &BenchRunArgs, collector: Option<&str>) -> Result<(), Failure> {
    let times = Times::read(&args.times, 1.0).map_err(|error| Failure::unusable(&error))?;
    let load = Load::new(&args.load).map_err(Failure::Unusable)?;
    let stages = Stages {
        denoisers: args.denoisers.into(),
        ar_slots: args.ar_slots.into(),
    };
    let delay = fleet::batch_delay(args.time_scale).div_f64(args.time_scale);
    let planned = simulate(&times, &load, stages, policy(args.admission, delay));
    let planned = summarise(&planned, &load, stages, &times);

    let own = match &args.url {
        Some(_) => None,
        None => Some(Fleet::start(args, collector).await?),
    };
    let url = own.as_ref().map(|fleet| fleet.url.clone());
    let url = url.or_else(|| args.url.clone()).unwrap_or_default();
    let supervisor = own.as_ref().and_then(Fleet::supervisor);
    let (mut before, mut after) = (cpu::times(supervisor), cpu::CpuTimes::new());
    let asker = Asker::new(&url, args, client::nonce(load.seed))?;
    let asked = asker.ask(&load, |edge| match edge {
        Edge::Opens => before = cpu::times(supervisor),
        Edge::Closes => after = cpu::times(supervisor),
    });
    let record = asked.await;
    if let Some(fleet) = own {
        fleet.stop().await?;
    }

    for (reason, times) in failures(&record) {
        terminal::note(format_args!("{times} requests failed: {reason}"));
    }
    let none = || Failure::Failed("no request was answered with pictures".to_owned());
    let measured = summarise(&record, &load, stages, &times).ok_or_else(none)?;
    let outcome = Outcome {
        name: args.name.clone(),
        command: origin::command(std::env::args().skip(1)),
        origin: Origin::here(args.commit.clone()),
        load,
        admission: args.admission.to_string(),
        denoisers: stages.denoisers,
        ar_slots: stages.ar_slots,
        time_scale: args.time_scale,
        traced: args.traced,
        cpu_ms_per_request: cpu::ms_per_request(&before, &after, measured.requests),
        measured,
        planned,
    };
    lines(&outcome).iter().for_each(terminal::say);
    if let Some(folder) = &args.out {
        write(folder, &outcome)?;
    }
    all_answered(&outcome)
}

/// A run in which requests failed is kept to be looked at, and no success.
fn all_answered(outcome: &Outcome) -> Result<(), Failure> {
    match (outcome.measured.failed, outcome.load.requests) {
        (0, _) => Ok(()),
        (failed, of) => Err(Failure::Failed(format!("{failed} of {of} requests failed"))),
    }
}

fn write(folder: &Path, outcome: &Outcome) -> Result<(), Failure> {
    let file = folder.join(format!("{}.json", outcome.name));
    let mut text =
        serde_json::to_string_pretty(outcome).map_err(|error| Failure::failed(&error))?;
    text.push('\n');
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&file, text));
    written.map_err(|error| Failure::Failed(format!("cannot write {}: {error}", file.display())))
}

/// For people.
fn lines(outcome: &Outcome) -> Vec<String> {
    let Outcome {
        measured, planned, ..
    } = outcome;
    let mut lines = vec![format!(
        "throughput  {:.4} images/s{}",
        measured.images_per_s,
        match (measured.bound_images_per_s, outcome.share_of_bound()) {
            (Some(bound), Some(share)) =>
                format!(", {:.1} % of the bound {bound:.4}", 100.0 * share),
            (Some(bound), None) => format!(", bound {bound:.4}"),
            (None, _) => String::new(),
        }
    )];
    let spread = |of: &str, spread: Spread| {
        let Spread {
            mean,
            p50,
            p90,
            p99,
        } = spread;
        format!("latency     mean {mean:.3} s, p50 {p50:.3}, p90 {p90:.3}, p99 {p99:.3}{of}")
    };
    lines.push(spread("", measured.latency_s));
    if measured.latency_by_size_s.len() > 1 {
        let sizes = measured.latency_by_size_s.iter();
        lines.extend(sizes.map(|(size, its)| spread(&format!(" of {size}"), *its)));
    }
    lines.push(format!(
        "busy        AR slots {:.1} %, denoisers {:.1} %",
        100.0 * measured.ar_slots_busy,
        100.0 * measured.denoisers_busy
    ));
    let roles = outcome.cpu_ms_per_request.iter();
    let roles: Vec<_> = roles.map(|(role, ms)| format!("{role} {ms:.2}")).collect();
    lines.push(format!("CPU         {} ms a request", roles.join(", ")));
    if let Some(planned) = planned {
        let (rate, latency) = (planned.images_per_s, planned.latency_s.mean);
        lines.push(format!(
            "plan        {rate:.4} images/s, mean latency {latency:.3} s"
        ));
    }
    lines.push(format!(
        "window      {:.1} s, {} requests, {} of all failed",
        measured.window_s, measured.requests, measured.failed
    ));
    lines
}
