//! `fresco cancel`: ends a job through a gateway.

use service::exit::Failure;

use crate::{args::CancelArgs, generate::client::Gateway, terminal};

/// Says how each output of the job has ended; what was painted before stays.
pub(crate) async fn run(args: CancelArgs) -> Result<(), Failure> {
    let job = Gateway::of(&args.gateway)?.cancel(args.job).await?;
    for output in &job.outputs {
        terminal::say(format_args!("{} {}", output.id, output.status));
    }
    Ok(())
}
