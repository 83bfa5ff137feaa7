//! `fresco generate`: asks a gateway for pictures, shows how far they are, writes the files.

pub(crate) mod client;
mod show;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use service::exit::Failure;
use tokio::time::sleep;

use self::{
    client::{Gateway, Job, Output, Status, Wish},
    show::Show,
};
use crate::{args::GenerateArgs, terminal};

/// How often the gateway is asked how far the pictures are.
const POLL: Duration = Duration::from_millis(250);

/// Returns when every picture is a file, or cannot be.
pub(crate) async fn run(args: GenerateArgs) -> Result<(), Failure> {
    let gateway = Gateway::of(&args.gateway)?;
    // Before anything is queued: a picture that cannot be written need not be painted.
    fs::create_dir_all(&args.out).map_err(|error| cannot_write(&args.out, &error))?;
    let wish = Wish {
        prompt: &args.prompt,
        n: args.n,
        size: args.size,
        seed: args.seed,
        num_inference_steps: args.steps,
        guidance_scale: args.guidance,
        priority: args.priority,
        prior_id: args.prior_id,
    };
    let job = gateway.submit(&wish).await?;
    terminal::note(format_args!("job {} is queued", job.id));
    let outputs = follow(&gateway, job, &args.out).await?;
    let mut failed = 0;
    for output in &outputs {
        match (output.status, output.timings) {
            (Status::Completed, timings) => {
                let file = file(&args.out, output);
                terminal::say(show::line(&file, output, timings.unwrap_or_default()));
            }
            (status, _) => {
                failed += 1;
                let error = output
                    .error
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                terminal::note(format_args!(
                    "picture {} (seed {}) {status}: {error}",
                    output.id.index, output.seed
                ));
            }
        }
    }
    match failed {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!(
            "{failed} of {} pictures failed",
            outputs.len()
        ))),
    }
}

/// Watches `job` to its end; writes each picture as soon as it is there.
async fn follow(gateway: &Gateway, mut job: Job, out: &Path) -> Result<Vec<Output>, Failure> {
    let mut show = Show::new(job.outputs.len());
    let mut written = vec![false; job.outputs.len()];
    loop {
        for (output, written) in job.outputs.iter().zip(&mut written) {
            show.update(output);
            if output.status == Status::Completed && !*written {
                let file = file(out, output);
                let bytes = gateway.picture(output.id).await?;
                write_whole(&file, &bytes).map_err(|error| cannot_write(&file, &error))?;
                *written = true;
            }
        }
        if job.outputs.iter().all(|output| output.status.is_final()) {
            show.end();
            return Ok(job.outputs);
        }
        sleep(POLL).await;
        job = gateway.job(job.id).await?;
    }
}

fn file(out: &Path, output: &Output) -> PathBuf {
    out.join(format!("{}.png", output.id))
}

/// A file that is there is whole.
fn write_whole(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = file.with_extension("png.part");
    fs::write(&fresh, bytes)?;
    fs::rename(fresh, file)
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {error}", path.display()))
}
