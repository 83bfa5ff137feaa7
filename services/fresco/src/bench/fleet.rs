//! A fleet of replay engines in a temporary folder: `fresco up`, started by this program of itself.

use std::{process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use service::exit::Failure;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::args::BenchRunArgs;

/// How long a fleet may take to be ready: 64 denoisers on a machine that compiles.
const START_MAX: Duration = Duration::from_secs(120);
/// How long it may take to stop; `fresco up` kills what is late after 5 s.
const STOP_MAX: Duration = Duration::from_secs(15);
/// How often is looked whether it is ready: beside a start of seconds that is nothing.
const POLL: Duration = Duration::from_millis(50);

/// The flags of tracing, which every process of a fleet inherits; the first is the collector.
const OTLP_VARIABLES: [&str; 4] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_TRACES_SAMPLER_ARG",
    "FRESCO_OTLP_METRICS_S",
];

/// The AR-batcher's default at the table's own pace.
const BATCH_DELAY_MS: f64 = 20.0;

/// How long a batch waits for company under batched admission, by the clock: scaled as everything else, but no less
/// than the AR-batcher can be told.
pub(crate) fn batch_delay(time_scale: f64) -> Duration {
    Duration::from_millis((BATCH_DELAY_MS * time_scale).round().max(1.0) as u64)
}

/// A fleet that runs. Dropped, it is killed.
pub(crate) struct Fleet {
    up: Child,
    /// Of its gateway.
    pub(crate) url: String,
    _folder: TempDir,
}

impl Fleet {
    /// Returns when it is ready. Its processes send all their spans to `collector`, or to nobody.
    pub(crate) async fn start(
        args: &BenchRunArgs,
        collector: Option<&str>,
    ) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::failed(&error);
        let folder = TempDir::new().map_err(failed)?;
        let url_file = folder.path().join("url");
        let fresco = std::env::current_exe().map_err(failed)?;
        let batch_delay_ms = batch_delay(args.time_scale).as_millis();
        let mut command = Command::new(&fresco);
        // A fleet does not outlive whoever measures it.
        command
            .args(["leash", "--parent", &std::process::id().to_string(), "--"])
            .arg(&fresco)
            .args(["up", "--engine", "replay", "--listen", "127.0.0.1:0"])
            .arg("--times")
            .arg(&args.times)
            .args(["--time-scale", &args.time_scale.to_string()])
            .args(["--denoisers", &args.denoisers.to_string()])
            .args(["--ar-slots-max", &args.ar_slots.to_string()])
            .args(["--admission", &args.admission.to_string()])
            .args(["--ar-delay-ms", &batch_delay_ms.to_string()])
            // What is measured is both stages.
            .arg("--no-prior-cache")
            .arg("--data")
            .arg(folder.path().join("data"))
            .arg("--url-file")
            .arg(&url_file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        // Nothing that somebody exported for fleets of his own.
        for name in OTLP_VARIABLES {
            command.env_remove(name);
        }
        if let Some(url) = collector {
            command.env(OTLP_VARIABLES[0], url);
        }
        let mut up = command.spawn().map_err(failed)?;
        let give_up_at = Instant::now() + START_MAX;
        loop {
            if let Ok(url) = std::fs::read_to_string(&url_file)
                && !url.trim().is_empty()
            {
                let url = url.trim().to_owned();
                return Ok(Self {
                    up,
                    url,
                    _folder: folder,
                });
            }
            if let Some(status) = up.try_wait().map_err(failed)? {
                return Err(Failure::Failed(format!("fresco up ended: {status}")));
            }
            if Instant::now() >= give_up_at {
                let text = format!("fresco up is not ready after {} s", START_MAX.as_secs());
                return Err(Failure::Failed(text));
            }
            sleep(POLL).await;
        }
    }

    /// The process whose children the services are.
    pub(crate) fn supervisor(&self) -> Option<u32> {
        self.up.id()
    }

    /// Returns when all its processes have ended.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        if let Some(id) = self.up.id().and_then(|id| i32::try_from(id).ok()) {
            kill(Pid::from_raw(id), Signal::SIGTERM).map_err(|error| Failure::failed(&error))?;
        }
        match timeout(STOP_MAX, self.up.wait()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Failure::failed(&error)),
            Err(_) => Err(Failure::Failed("fresco up does not stop".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_company_is_scaled_as_all_else() {
        for (time_scale, ms) in [
            (1.0, 20),
            (0.5, 10),
            (0.05, 1),
            (0.001, 1),
            (1_000.0, 20_000),
        ] {
            assert_eq!(
                batch_delay(time_scale),
                Duration::from_millis(ms),
                "{time_scale}"
            );
        }
    }
}
