//! What a person finds who asks: every query to Tempo and Loki that we ship, run by evaluators of our own over the spans
//! and log lines of a fleet whose jobs are known one by one.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::{Duration, Instant},
};

use integration::{
    api::{Api, IN_BACKGROUND, first_output},
    binary,
    fleet::{END_WITHIN, Fleet},
    http,
    otlp::{Captured, Collector, Tree},
    queries::{
        Asked, Filled,
        grammar::{Language, parsed},
        logql, shipped, traceql,
    },
    tenants::{PRESS, STUDIO, TestTenant},
};
use protocol::{
    Role, Tenant, WorkerPresence,
    trace::{attribute, span},
};
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table};
use serde_json::{Value, json};

const STEP: Duration = Duration::from_millis(200);

const TIMES: Table = Table {
    ar: ArTimes::new(&[(1, 100.0)], 254),
    denoise: DenoiseTimes {
        step_ms: 200.0,
        decode_ms: 100.0,
    },
};

/// What became of each job; its place is its trace's number.
const JOBS: [&str; 6] = ["killed", "poisoned", "quick", "cancelled", "slow", REPLAYED];

/// The poisoned one's dead letter, once the poison is gone. No gateway took it in: its trace has a number of its own.
const REPLAYED: &str = "replayed";

fn trace(job: &str) -> String {
    let number = JOBS.iter().position(|name| *name == job).unwrap() + 0xf0;
    format!("{number:032x}")
}

/// Everything that happened, once all processes have ended.
struct Past {
    spans: Vec<Captured>,
    /// The trace of the replayed one.
    replay: String,
    lines: Vec<logql::Line>,
    /// The deployment's prefix.
    namespace: String,
    /// By what became of them.
    ids: BTreeMap<&'static str, String>,
    /// Longer than every job but the slow one, shorter than its denoising.
    longer: String,
    /// The worker that was killed.
    killed: String,
    /// Worker → pictures that it says it painted.
    painted: BTreeMap<String, u64>,
}

async fn submit(api: &Api, key: Option<TestTenant>, job: &'static str, steps: u64) -> String {
    let request = json!({
        "prompt": format!("a {job} fox"), "size": "64x64", "seed": 7, "num_inference_steps": steps,
    });
    let parent = format!("00-{}-b7ad6b7169203331-01", trace(job));
    let mut headers = vec![IN_BACKGROUND, ("traceparent", parent.as_str())];
    if let Some(key) = key {
        headers.push(key.header());
    }
    api.generate(&request, &headers).await.unwrap().id()
}

async fn run() -> Past {
    let collector = Collector::start().await;
    let mut fleet = Fleet::watched(TIMES, &collector).await;
    fleet.script(&[Rule {
        prompt_contains: "poisoned".to_owned(),
        stage: FaultStage::Denoise,
        fault: Fault::Fail,
    }]);
    let api = Api::new(&fleet.gateway);
    let (mut second, keyed) = fleet.watched_gateway_of_tenants(&collector).await;
    let (start, mut ids) = (Instant::now(), BTreeMap::new());
    ids.insert("killed", submit(&keyed, Some(STUDIO), "killed", 10).await);
    let (painting, _) = fleet.until_painting().await;
    let dead = fleet.denoisers.remove(painting);
    let mut workers = workers(&fleet).await.into_iter();
    let killed = workers.find(|worker| worker.process == dead.id());
    let killed = killed.unwrap();
    drop(dead);
    ids.insert("poisoned", submit(&keyed, Some(PRESS), "poisoned", 1).await);
    ids.insert("quick", submit(&keyed, Some(STUDIO), "quick", 2).await);
    ids.insert("cancelled", submit(&api, None, "cancelled", 100).await);
    api.until_state(&ids["cancelled"], "denoise_running").await;
    api.cancel(&ids["cancelled"]).await;
    for id in ids.values() {
        api.until_ended(id).await;
    }
    fleet.script(&[]);
    ids.insert(REPLAYED, replay(&fleet, &ids["poisoned"]));
    api.until_ended(&ids[REPLAYED]).await;
    // None of them took longer than this; one second more, and one more for the slow one's denoising.
    let longer = start.elapsed() + Duration::from_secs(1);
    let steps = (longer + Duration::from_secs(1)).div_duration_f64(STEP);
    let steps = steps.ceil() as u64;
    ids.insert("slow", submit(&keyed, Some(PRESS), "slow", steps).await);
    api.until_ended(&ids["slow"]).await;
    fleet.until_queues_empty().await;
    let painted = painted(&fleet).await;
    second.terminate(END_WITHIN).await;
    fleet.terminate().await;
    let spans = collector.spans();
    let replay = Tree::all(&spans).into_iter().find(|(_, tree)| {
        let of_replay = |span: &&Captured| span.text(attribute::JOB_ID) == Some(&ids[REPLAYED]);
        let painted = tree.named(span::PROCESS_DENOISE);
        painted.iter().any(of_replay)
    });
    Past {
        replay: replay.expect("it was painted").0,
        spans,
        lines: fleet.log_lines(),
        namespace: fleet.broker.prefix().to_string(),
        ids,
        longer: format!("{}ms", longer.as_millis()),
        killed: killed.worker.to_string(),
        painted,
    }
}

/// Queues the dead letter of `job` again; the id of the new one.
fn replay(fleet: &Fleet, job: &str) -> String {
    let output = first_output(job).to_string();
    let replay = Command::new(binary("fresco"))
        .args(["dead", "replay", &output])
        .args(fleet.broker.flags(Role::Operator))
        .args(["--gateway", &fleet.gateway])
        .output();
    let told = String::from_utf8(replay.unwrap().stdout).unwrap();
    told.trim().rsplit('/').next().unwrap().to_owned()
}

async fn workers(fleet: &Fleet) -> Vec<WorkerPresence> {
    fleet.bus.workers().await.unwrap()
}

async fn painted(fleet: &Fleet) -> BTreeMap<String, u64> {
    let mut painted = BTreeMap::new();
    for worker in workers(fleet).await {
        let url = format!("http://{}/metrics", worker.health_address.unwrap());
        let (Role::Denoiser, Some((_, text))) = (worker.role, http::text(&url).await) else {
            continue;
        };
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix("fresco_outputs_painted_total "));
        painted.insert(worker.worker.to_string(), count.unwrap().parse().unwrap());
    }
    painted.retain(|_, count| *count > 0);
    painted
}

impl Past {
    fn filled<'a>(&'a self, trace: &'a str, job: &'a str, longer: &'a str) -> Filled<'a> {
        Filled {
            trace,
            job,
            longer,
            namespace: &self.namespace,
            ..Filled::default()
        }
    }

    fn trace(&self, job: &str) -> String {
        match job {
            REPLAYED => self.replay.clone(),
            job => trace(job),
        }
    }

    fn search(&self, query: &str) -> Vec<traceql::Found> {
        let tree = parsed(Language::TraceQl, query);
        let found = traceql::search(&tree, &self.spans);
        found.unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// A column of a table that is empty whatever is found is of an attribute that nobody has.
    fn fills_its_columns(&self, query: &str) {
        let query = asked(query).filled(&self.filled("", ".*", "0s"));
        let found = self.search(&query);
        for column in 0..found.first().map_or(0, |first| first.selected.len()) {
            let mut cells = found.iter().map(|found| &found.selected[column]);
            let name = &found[0].selected[column].0;
            let is_filled = cells.any(|(_, values)| !values.is_empty());
            assert!(is_filled, "{query}: {name}");
        }
    }

    /// What became of the jobs whose traces a query finds. Clients also look at jobs, in traces of their own.
    fn found(&self, query: &str) -> BTreeSet<&str> {
        let found = self.search(query);
        let of = |trace: &str| JOBS.into_iter().find(|job| self.trace(job) == trace);
        // Of one span each.
        let is_look = |found: &traceql::Found| {
            let name = found.spans[0].name();
            name.starts_with("GET ") || name.starts_with("DELETE ")
        };
        let jobs = found.iter().filter_map(|found| match of(&found.trace) {
            None if is_look(found) => None,
            job => Some(job.unwrap_or_else(|| panic!("{query}: {} is of no job", found.trace))),
        });
        jobs.collect()
    }
}

/// A query as it is shipped, what is typed in for it, and the jobs that it is to find.
type Case<'a> = (&'a str, Filled<'a>, &'a [&'a str]);

fn cases(past: &Past) -> Vec<Case<'_>> {
    let (all, longer) = (
        past.filled("", ".*", "0s"),
        past.filled("", ".*", &past.longer),
    );
    let of = |job: &str, longer| past.filled("", &past.ids[job], longer);
    let whose = |tenant, with| Filled { tenant, ..with };
    let elsewhere = Filled {
        namespace: "another",
        ..all
    };
    let (studio, press, nobody) = (STUDIO.name, PRESS.name, Tenant::NONE);
    vec![
        (BY_ID, longer, &["slow"]),
        (BY_ID, of("quick", "0s"), &["quick"]),
        (BY_ID, of("killed", "0s"), &["killed"]),
        (BY_ID, of("quick", &past.longer), &[]),
        (BY_ID, all, &JOBS),
        (BY_ID, whose(studio, all), &["killed", "quick"]),
        (BY_ID, whose(press, all), &["poisoned", REPLAYED, "slow"]),
        (BY_ID, of(REPLAYED, "0s"), &[REPLAYED]),
        (BY_ID, whose(press, of(REPLAYED, "0s")), &[REPLAYED]),
        (BY_ID, whose(studio, of(REPLAYED, "0s")), &[]),
        (BY_ID, whose(nobody, all), &["cancelled"]),
        (BY_ID, whose(press, of("quick", "0s")), &[]),
        (SLOW, longer, &["slow"]),
        (SLOW, whose(press, longer), &["slow"]),
        (SLOW, whose(studio, longer), &[]),
        (SLOW, whose(studio, all), &["killed", "quick"]),
        (FAILURES, all, &["killed", "poisoned"]),
        (AGAIN, all, &["killed", "poisoned"]),
        (DENOISING, longer, &["slow"]),
        (DENOISING, whose(press, longer), &["slow"]),
        (DENOISING, whose(press, all), &[REPLAYED, "slow"]),
        (DENOISING, whose(studio, longer), &[]),
        (DENOISING, whose(studio, all), &["killed", "quick"]),
        (BY_ID, elsewhere, &[]),
        (SLOW, elsewhere, &[]),
        (FAILURES, elsewhere, &[]),
        (AGAIN, elsewhere, &[]),
        (DENOISING, elsewhere, &[]),
        (OF_STUDIO, all, &["killed", "quick"]),
        (ASKED_BY_STUDIO, all, &["killed", "quick"]),
        (r#"{ name = "lost attempt" }"#, all, &["killed"]),
        (
            r#"{ name = "process denoise" && span.fresco.attempt > 1 }"#,
            all,
            &["killed", "poisoned"],
        ),
        (r#"{ name = "job" && duration > 60s }"#, all, &[]),
        (
            r#"{ span.fresco.job.id = "01890a5d-ac96-774b-bcce-b302099a8057" }"#,
            all,
            &[],
        ),
        (
            r#"{ name = "process denoise" } >> { name = "denoise" && duration > 30s }"#,
            all,
            &[],
        ),
    ]
}

const BY_ID: &str = r#"{ resource.service.namespace =~ "$namespace" && span.fresco.tenant =~ "$tenant" } && { span.fresco.job.id =~ "$job" && duration > $longer } | select(span.fresco.job.id, span.fresco.tenant, span.fresco.size, span.fresco.class)"#;
const SLOW: &str = r#"{ resource.service.namespace =~ "$namespace" && name = "job" && span.fresco.tenant =~ "$tenant" && duration > $longer } | select(span.fresco.job.id, span.fresco.tenant, span.fresco.size, span.fresco.steps)"#;
const FAILURES: &str = r#"{ resource.service.namespace =~ "$namespace" && status = error } | select(span.fresco.job.id, span.error.type, resource.service.instance.id)"#;
const AGAIN: &str = r#"{ resource.service.namespace =~ "$namespace" && (name = "lost attempt" || span.messaging.nats.delivered_count > 1) } | select(span.fresco.job.id, span.fresco.attempt, span.fresco.worker)"#;
const DENOISING: &str = r#"{ resource.service.namespace =~ "$namespace" && span.fresco.tenant =~ "$tenant" } && ({ name = "process denoise" } >> { name = "denoise" && duration > $longer })"#;
const OF_STUDIO: &str = r#"{ span.fresco.tenant = "studio" }"#;
/// By the requests alone: a job that no gateway lived to follow to its end is still somebody's.
const ASKED_BY_STUDIO: &str = r#"{ kind = server && span.fresco.tenant = "studio" }"#;
const BY_DENOISER: &str = r#"{ resource.service.namespace =~ "$namespace" && name = "process denoise" } | quantile_over_time(duration, 0.5, 0.95) by (resource.service.instance.id)"#;
const OF_ANY_DENOISER: &str = r#"{ name = "process denoise" } | quantile_over_time(duration, 0.5, 0.95) by (resource.service.instance.id)"#;
const TO_LINES: &str =
    r#"{service_namespace="${__span.tags["service.namespace"]}"} |= "${__span.traceId}""#;
const LINES: &str = r#"{service_namespace=~"$namespace"} |= "$trace""#;
const TROUBLE: &str = r#"sum by (service_name, level) (count_over_time({service_namespace=~"$namespace"} | json | level =~ "WARN|ERROR" [$__auto]))"#;

#[tokio::test]
async fn each_query_finds_the_jobs_that_it_should_and_no_others() {
    let past = run().await;
    let cases = cases(&past);
    let of_jobs: BTreeSet<_> = cases.iter().map(|(query, ..)| *query).collect();
    for query in &of_jobs {
        past.fills_its_columns(query);
    }
    let known: BTreeSet<_> = of_jobs
        .into_iter()
        .chain([BY_DENOISER, OF_ANY_DENOISER, TO_LINES, LINES, TROUBLE])
        .collect();
    for asked in shipped() {
        // A comment is for people.
        let text = asked.text.split(" //").next().unwrap().trim();
        assert!(
            known.contains(text),
            "{}: what does {text} find?",
            asked.place
        );
    }
    for (query, with, wanted) in cases {
        let query = asked(query).filled(&with);
        let wanted: BTreeSet<_> = wanted.iter().copied().collect();
        assert_eq!(past.found(&query), wanted, "{query}");
    }
    let by_worker = format!(r#"{{ span.fresco.worker = "{}" }}"#, past.killed);
    assert_eq!(past.found(&by_worker), BTreeSet::from(["killed"]));
    let nobodys = format!(
        r#"{{ resource.service.namespace != "{}" }}"#,
        past.namespace
    );
    assert_eq!(past.found(&nobodys), BTreeSet::new());
    groups_by_denoiser(&past);
    log_lines(&past);
}

fn asked(text: &str) -> Asked {
    Asked {
        place: "a case".to_owned(),
        language: Language::TraceQl,
        text: text.to_owned(),
    }
}

fn groups_by_denoiser(past: &Past) {
    let groups = |query: &str| traceql::metrics(&parsed(Language::TraceQl, query), &past.spans);
    let done = r#"{ name = "process denoise" && span.fresco.outcome = "done" } | count_over_time() by (resource.service.instance.id)"#;
    let counts = groups(done).unwrap().into_iter();
    let counts: BTreeMap<_, _> = counts
        .map(|(mut key, group)| (key.remove(0), group.count as u64))
        .collect();
    assert_eq!(counts, past.painted, "what each says it painted");
    let by_denoiser = |namespace| {
        let with = Filled {
            namespace,
            ..Filled::default()
        };
        groups(&asked(BY_DENOISER).filled(&with)).unwrap()
    };
    assert!(by_denoiser("another").is_empty());
    let of_any = groups(OF_ANY_DENOISER).unwrap();
    let groups = by_denoiser(&past.namespace);
    assert!(groups.keys().eq(of_any.keys()));
    let names: BTreeSet<_> = groups.keys().map(|key| &key[0]).collect();
    assert!(past.painted.keys().all(|worker| names.contains(worker)));
    assert!(!names.contains(&past.killed), "its span died with it");
    assert!(
        groups
            .values()
            .all(|group| group.quantiles[0] <= group.quantiles[1])
    );
    let slowest = groups.values().map(|group| group.quantiles[1]);
    let longer: f64 = past.longer.trim_end_matches("ms").parse().unwrap();
    assert!(slowest.fold(0.0, f64::max) > longer / 1000.0);
}

/// A field of a line, as JSON has it.
fn field<'a>(line: &'a Value, name: &str) -> Option<&'a str> {
    line[name].as_str()
}

fn log_lines(past: &Past) {
    let parsed_lines = || {
        past.lines.iter().map(|line| {
            let json: Value = serde_json::from_str(&line.text).unwrap();
            (line, json)
        })
    };
    for job in JOBS {
        let trace = past.trace(job);
        let of_trace = parsed_lines().filter(|(_, json)| field(json, "trace_id") == Some(&trace));
        let wanted: Vec<_> = of_trace.map(|(line, _)| line.clone()).collect();
        assert!(!wanted.is_empty(), "{job}");
        let with = past.filled(&trace, "", "");
        for query in [TO_LINES, LINES] {
            let query = asked(query).filled(&with);
            let found = logql::search(&parsed(Language::LogQl, &query), &past.lines);
            assert_eq!(found.unwrap(), wanted, "{query}");
        }
    }
    let query = asked(TROUBLE).filled(&past.filled("", "", ""));
    let counts = logql::counts(&parsed(Language::LogQl, &query), &past.lines);
    let mut wanted: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for (line, json) in parsed_lines() {
        if let Some(level @ ("WARN" | "ERROR")) = field(&json, "level") {
            let key = vec![line.labels["service_name"].clone(), level.to_owned()];
            *wanted.entry(key).or_default() += 1;
        }
    }
    assert!(!wanted.is_empty(), "a poisoned job is warned of");
    assert_eq!(counts.unwrap(), wanted);
}
