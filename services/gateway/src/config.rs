//! The gateway's flags.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::builder::{PathBufValueParser, TypedValueParser as _};
use protocol::limits::JOB_AGE_MAX;
use service::{BusArgs, ShellArgs, address::PublicUrl, some_seconds, unshown};

use crate::tenants::Tenants;

/// HTTP in, jobs out, pictures back: the OpenAI Images API over a Fresco deployment
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "fresco-gateway", version)]
pub struct Config {
    #[command(flatten)]
    pub bus: BusArgs,

    #[command(flatten)]
    pub shell: ShellArgs,

    /// Address of the API; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,

    /// File to write the bound address of the API to
    #[arg(long, value_name = "FILE")]
    pub listen_file: Option<PathBuf>,

    /// Start of the picture addresses in answers, for example `https://images.example.com`; by default what the client called
    #[arg(long, value_name = "URL", value_parser = unshown::<PublicUrl>())]
    pub public_url: Option<PublicUrl>,

    /// File that names the clients and the hashes of their keys, see docs/tenants.md; without, all are one and bring no key
    #[arg(
        long,
        env = "FRESCO_TENANTS",
        value_name = "FILE",
        value_parser = PathBufValueParser::new().try_map(|file| Tenants::read(&file))
    )]
    pub tenants: Option<Tenants>,

    /// Seconds a job may take, waiting included, before it ends with an error
    #[arg(long = "job-timeout-s", value_name = "SECONDS", default_value = "600", value_parser = job_timeout)]
    pub job_timeout: Duration,

    /// Outputs that may be open in the whole deployment; a request beyond is told when to come back
    #[arg(long, value_name = "OUTPUTS", default_value_t = QUEUE_OUTPUTS_MAX, value_parser = clap::value_parser!(u32).range(1..))]
    pub queue_outputs_max: u32,
}

/// Half of what the queue of outputs can hold: what several gateways let in between two looks at each other must find
/// room too, because what is accepted is never refused by a queue later on.
const QUEUE_OUTPUTS_MAX: u32 = 10_000;

/// A number of seconds above 0 and at most [`JOB_AGE_MAX`], the age at which queues drop messages. Results may be kept
/// for less, which the broker knows: readiness compares.
fn job_timeout(text: &str) -> Result<Duration, String> {
    match some_seconds(text) {
        Ok(timeout) if timeout <= JOB_AGE_MAX => Ok(timeout),
        Ok(_) | Err(_) => Err(format!(
            "not a number of seconds above 0 and at most {}",
            JOB_AGE_MAX.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_job_takes_some_time_and_at_most_a_day_a27() {
        for text in ["0", "-1", "86401", "NaN", "inf", "1m", ""] {
            let parsed =
                Config::try_parse_from(["fresco-gateway", &format!("--job-timeout-s={text}")]);
            assert!(parsed.is_err(), "{text}");
        }
        let parsed = Config::try_parse_from(["fresco-gateway", "--job-timeout-s=0.5"]);
        assert_eq!(
            parsed.map(|config| config.job_timeout).ok(),
            Some(Duration::from_millis(500))
        );
    }

    #[test]
    fn every_accepted_output_finds_room_in_its_queue() {
        let most = i64::from(QUEUE_OUTPUTS_MAX);
        assert!(2 * most <= protocol::topology::QUEUE_MESSAGES_MAX);
    }
}
