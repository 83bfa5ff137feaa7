//! What a scrape asks the broker: queues, streams, workers. The broker's truth, at the moment somebody looks, and no
//! load while nobody does.

use std::{sync::Arc, time::Duration};

use messaging::{Bus, BusError, Measures, QueueMeasure, StreamMeasure};
use protocol::{PriorityClass, Role, UnixMillis, WorkerPresence};
use service::{
    clock::unix_millis,
    metrics::{
        Counter, Gauge, Labelled, Metrics, Process, STATES,
        catalog::{
            BROKER_LOOKS_FAILED, DEAD_LETTER_DEPTH, DEAD_LETTER_OLDEST, OUTPUTS_OPEN, QUEUE_DEPTH,
            QUEUE_ETA, QUEUE_HELD, QUEUE_HELD_MAX, QUEUE_IDLE_PULLS, QUEUE_OLDEST,
            QUEUE_REDELIVERED, STREAM_BYTES, STREAM_MAX_BYTES, STREAM_MAX_MESSAGES,
            STREAM_MESSAGES, WORKERS_BY_STATE,
        },
        number, state_label,
    },
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use crate::{counters::class_label, rooms::Rooms};

/// Scrapes may come in any number; the broker is asked once in so long.
const AGE_MIN: Duration = Duration::from_secs(1);

/// A scrape waits no longer: Prometheus gives up after 10 s, and what the process itself knows is worth having.
const LOOK_TIME_MAX: Duration = Duration::from_secs(2);

/// The denoise queue has one consumer for all of them.
const EVERY_CLASS: &str = "all";

/// The gauges.
#[derive(Debug, Clone)]
pub(crate) struct Gauges {
    depth: Labelled<Gauge, 2>,
    held: Labelled<Gauge, 2>,
    held_max: Labelled<Gauge, 2>,
    redelivered: Labelled<Gauge, 2>,
    idle: Labelled<Gauge, 2>,
    oldest: Labelled<Gauge, 2>,
    eta: Labelled<Gauge, 1>,
    outputs_open: Gauge,
    dead_depth: Labelled<Gauge, 0>,
    dead_oldest: Labelled<Gauge, 0>,
    messages: Labelled<Gauge, 1>,
    messages_max: Labelled<Gauge, 1>,
    bytes: Labelled<Gauge, 1>,
    bytes_max: Labelled<Gauge, 1>,
    workers: Labelled<Gauge, 2>,
    failed: Counter,
}

impl Gauges {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        Self {
            depth: metrics.gauges(QUEUE_DEPTH),
            held: metrics.gauges(QUEUE_HELD),
            held_max: metrics.gauges(QUEUE_HELD_MAX),
            redelivered: metrics.gauges(QUEUE_REDELIVERED),
            idle: metrics.gauges(QUEUE_IDLE_PULLS),
            oldest: metrics.gauges(QUEUE_OLDEST),
            eta: metrics.gauges(QUEUE_ETA),
            outputs_open: metrics.gauge(OUTPUTS_OPEN),
            dead_depth: metrics.gauges(DEAD_LETTER_DEPTH),
            dead_oldest: metrics.gauges(DEAD_LETTER_OLDEST),
            messages: metrics.gauges(STREAM_MESSAGES),
            messages_max: metrics.gauges(STREAM_MAX_MESSAGES),
            bytes: metrics.gauges(STREAM_BYTES),
            bytes_max: metrics.gauges(STREAM_MAX_BYTES),
            workers: metrics.gauges(WORKERS_BY_STATE),
            failed: metrics.counter(BROKER_LOOKS_FAILED),
        }
    }

    /// Nobody knows: what was true a minute ago must not look like now.
    fn forget(&self) {
        for gauges in [
            &self.depth,
            &self.held,
            &self.held_max,
            &self.redelivered,
            &self.idle,
            &self.oldest,
            &self.workers,
        ] {
            gauges.forget();
        }
        for gauges in [
            &self.eta,
            &self.messages,
            &self.messages_max,
            &self.bytes,
            &self.bytes_max,
        ] {
            gauges.forget();
        }
        self.dead_depth.forget();
        self.dead_oldest.forget();
    }

    fn show(&self, seen: &Seen, now: UnixMillis) {
        let Seen {
            measures,
            workers,
            pace,
        } = seen;
        for (class, measure) in &measures.ar {
            self.show_queue(["ar", class_label(*class)], measure, now);
        }
        self.show_queue(["denoise", EVERY_CLASS], &measures.denoise, now);
        for (class, eta) in etas(measures, *pace) {
            self.eta.of([class_label(class)]).set(eta);
        }
        self.dead_depth.of([]).set(number(measures.dead.messages));
        let oldest = age(measures.dead.oldest_at, now);
        self.dead_oldest.of([]).set(oldest);
        for stream in &measures.streams {
            self.show_stream(stream);
        }
        self.show_workers(workers);
    }

    /// States that nobody is in are 0 rather than absent, so that gateways that look at different moments can be averaged.
    fn show_workers(&self, workers: &[WorkerPresence]) {
        for role in [Role::Gateway, Role::ArBatcher, Role::Denoiser] {
            for state in STATES {
                let are = |worker: &&WorkerPresence| (worker.role, worker.state) == (role, state);
                let count = workers.iter().filter(are).count() as u64;
                let labels = [role_label(role), state_label(state)];
                self.workers.of(labels).set(number(count));
            }
        }
    }

    fn show_queue(&self, labels: [&'static str; 2], measure: &QueueMeasure, now: UnixMillis) {
        let QueueMeasure {
            depth,
            held_max,
            redelivered,
            oldest_at,
        } = *measure;
        self.depth.of(labels).set(number(depth.queued));
        self.held.of(labels).set(number(depth.held));
        self.idle.of(labels).set(number(depth.idle));
        self.redelivered.of(labels).set(number(redelivered));
        self.oldest.of(labels).set(age(oldest_at, now));
        if let Some(held_max) = held_max {
            self.held_max.of(labels).set(number(held_max));
        }
    }

    fn show_stream(&self, stream: &StreamMeasure) {
        let labels = [stream.name];
        self.messages.of(labels).set(number(stream.messages));
        self.bytes.of(labels).set(number(stream.bytes));
        if let Some(messages_max) = stream.messages_max {
            self.messages_max.of(labels).set(number(messages_max));
        }
        if let Some(bytes_max) = stream.bytes_max {
            self.bytes_max.of(labels).set(number(bytes_max));
        }
    }
}

/// What one look found.
#[derive(Debug)]
struct Seen {
    measures: Measures,
    workers: Vec<WorkerPresence>,
    pace: Pace,
}

/// What a forecast counts with.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Outputs that the deployment finishes in a second when it has work.
    per_second: Option<f64>,
    /// Outputs of one message of the AR queue, on the average: its own number only its reader knows.
    per_request: f64,
}

/// Looks before each scrape.
pub(crate) fn keep(metrics: &Metrics, process: Process, bus: &Bus, rooms: &Rooms) {
    let gauges = Gauges::register(metrics);
    let (bus, rooms, looked_at) = (bus.clone(), rooms.clone(), Arc::new(Mutex::new(None)));
    metrics.before_scrapes(move || {
        let connection = *bus.connection().borrow();
        process.connection(connection.up, connection.epoch);
        let (gauges, bus, rooms) = (gauges.clone(), bus.clone(), rooms.clone());
        let looked_at = Arc::clone(&looked_at);
        async move {
            gauges.outputs_open.set(number(rooms.open()));
            // Held while looking: who comes meanwhile gets what is found. The one lock of ours across an await, and no state
            // that somebody changes behind another's back: a task of its own would be waited for alike, for LOOK_TIME_MAX too.
            let mut looked_at = looked_at.lock().await;
            if looked_at.is_some_and(|at: Instant| at.elapsed() < AGE_MIN) {
                return;
            }
            match timeout(LOOK_TIME_MAX, look(&bus, &rooms)).await {
                Ok(Ok(seen)) => gauges.show(&seen, unix_millis()),
                failed => {
                    tracing::debug!(?failed, "the broker does not say how its queues are");
                    gauges.failed.inc();
                    gauges.forget();
                }
            }
            *looked_at = Some(Instant::now());
        }
    });
}

async fn look(bus: &Bus, rooms: &Rooms) -> Result<Seen, BusError> {
    let (measures, workers) = tokio::try_join!(bus.measures(), bus.workers())?;
    Ok(Seen {
        measures,
        workers,
        pace: Pace {
            per_second: rooms.per_second(),
            per_request: rooms.outputs_per_request(),
        },
    })
}

/// In seconds; 0 of nothing.
fn age(at: Option<UnixMillis>, now: UnixMillis) -> f64 {
    let ms = at.map_or(0, |at| now.saturating_sub(at));
    Duration::from_millis(ms).as_secs_f64()
}

/// What an output accepted now waits, by class: until what is in front of it is done, at the rate measured lately. What
/// workers hold is in front of it too: batchers hold as many requests again as they run.
fn etas(measures: &Measures, pace: Pace) -> Vec<(PriorityClass, f64)> {
    let Some(per_second) = pace.per_second.filter(|rate| *rate > 0.0) else {
        return Vec::new();
    };
    let denoise = measures.denoise.depth;
    // A denoiser that waits for work is behind nobody.
    let painted = if denoise.idle > 0 { 0 } else { denoise.held };
    let outputs = |requests: u64| number(requests) * pace.per_request;
    let in_ar: u64 = measures.ar.iter().map(|(_, ar)| ar.depth.held).sum();
    let mut before = number(denoise.queued.saturating_add(painted)) + outputs(in_ar);
    let in_order = measures.ar.iter();
    in_order
        .map(|(class, measure)| {
            before += outputs(measure.depth.queued);
            (*class, before / per_second)
        })
        .collect()
}

const fn role_label(role: Role) -> &'static str {
    match role {
        Role::Gateway => "gateway",
        Role::ArBatcher => "ar-batcher",
        Role::Denoiser => "denoiser",
        Role::Operator => "operator",
    }
}

#[cfg(test)]
mod tests {
    use messaging::QueueDepth;
    use service::metrics::catalog::names_of;

    use super::*;
    use crate::{counters::Counters, rooms::tests::presence};

    fn queue(queued: u64) -> QueueMeasure {
        QueueMeasure {
            depth: QueueDepth {
                queued,
                held: 1,
                idle: 0,
            },
            held_max: Some(9),
            redelivered: 0,
            oldest_at: (queued > 0).then_some(4_000),
        }
    }

    fn seen(per_second: Option<f64>) -> Seen {
        let dead = StreamMeasure {
            name: "DEAD",
            messages: 2,
            messages_max: Some(20_000),
            bytes: 100,
            bytes_max: Some(1_000),
            oldest_at: Some(1_000),
        };
        let queued = PriorityClass::ALL.into_iter().zip([1, 4, 0]);
        Seen {
            measures: Measures {
                ar: queued.map(|(class, n)| (class, queue(n))).collect(),
                denoise: queue(3),
                dead,
                streams: vec![dead],
            },
            workers: vec![presence(Role::Denoiser, 0)],
            pace: pace(per_second),
        }
    }

    /// Of requests for one output each.
    fn pace(per_second: Option<f64>) -> Pace {
        Pace {
            per_second,
            per_request: 1.0,
        }
    }

    #[test]
    fn a_gateway_has_the_metrics_of_the_catalogue() {
        let metrics = Metrics::new(Role::Gateway);
        Process::register(&metrics);
        Gauges::register(&metrics);
        Counters::register(&metrics, None);
        assert_eq!(metrics.names(), names_of(Role::Gateway));
    }

    #[test]
    fn who_is_behind_more_waits_longer() {
        let measures = seen(None).measures;
        assert_eq!(etas(&measures, pace(None)), []);
        assert_eq!(etas(&measures, pace(Some(0.0))), []);
        let etas = etas(&measures, pace(Some(2.0)));
        let of = |class| etas.iter().find(|(of, _)| *of == class).unwrap().1;
        // Three wait and one is painted, three are held by batchers, and then who waits by class.
        assert_eq!(of(PriorityClass::High), 4.0);
        assert_eq!(of(PriorityClass::Standard), 6.0);
        assert_eq!(of(PriorityClass::Low), 6.0);
    }

    #[test]
    fn a_request_in_front_counts_as_many_outputs_as_requests_have() {
        let measures = seen(None).measures;
        let etas = etas(
            &measures,
            Pace {
                per_second: Some(2.0),
                per_request: 4.0,
            },
        );
        let of = |class| etas.iter().find(|(of, _)| *of == class).unwrap().1;
        // Four outputs at the denoise stage; three requests that batchers hold; one, and four more, that wait.
        assert_eq!(of(PriorityClass::High), (4.0 + 4.0 * 4.0) / 2.0);
        assert_eq!(of(PriorityClass::Low), (4.0 + 4.0 * 8.0) / 2.0);
    }

    #[test]
    fn who_is_let_in_while_a_denoiser_idles_does_not_wait_for_what_others_paint() {
        let mut measures = seen(None).measures;
        measures.denoise = QueueMeasure {
            depth: QueueDepth {
                queued: 0,
                held: 7,
                idle: 1,
            },
            ..measures.denoise
        };
        for (_, measure) in &mut measures.ar {
            measure.depth = QueueDepth::default();
        }
        assert!(
            etas(&measures, pace(Some(1.0)))
                .iter()
                .all(|(_, eta)| *eta == 0.0)
        );
    }

    #[test]
    fn what_the_broker_does_not_say_is_absent_rather_than_old() {
        let metrics = Metrics::new(Role::Gateway);
        let gauges = Gauges::register(&metrics);
        gauges.show(&seen(Some(2.0)), 5_500);
        let text = metrics.exposition().unwrap();
        for line in [
            "fresco_queue_depth{stage=\"ar\",class=\"standard\"} 4.0\n",
            "fresco_queue_oldest_seconds{stage=\"denoise\",class=\"all\"} 1.5\n",
            "fresco_queue_oldest_seconds{stage=\"ar\",class=\"low\"} 0.0\n",
            "fresco_queue_held_max{stage=\"denoise\",class=\"all\"} 9.0\n",
            "fresco_dead_letter_depth 2.0\n",
            "fresco_dead_letter_oldest_seconds 4.5\n",
            "fresco_stream_bytes{stream=\"DEAD\"} 100.0\n",
            "fresco_stream_max_messages{stream=\"DEAD\"} 20000.0\n",
            "fresco_workers{role=\"denoiser\",state=\"idle\"} 1.0\n",
            "fresco_workers{role=\"denoiser\",state=\"busy\"} 0.0\n",
            "fresco_workers{role=\"ar-batcher\",state=\"idle\"} 0.0\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        gauges.forget();
        let text = metrics.exposition().unwrap();
        for absent in [
            "fresco_queue",
            "fresco_dead",
            "fresco_stream",
            "fresco_workers",
        ] {
            assert!(!text.contains(absent), "{absent} in\n{text}");
        }
    }
}
