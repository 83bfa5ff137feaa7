//! `fresco dead`: the outputs that were given up. A prompt is shown only to who asks for it.

use messaging::{Bus, BusError};
use protocol::{
    Attempt, AttemptOutcome, DeadLetter, DeadMessage, JobError, JobId, JobRecord, OutputId,
    PriorityClass, Tenant, UnixMillis,
};
use serde_json::json;
use service::{clock, exit::Failure};

use crate::{
    args::{DeadCommand, WhichDead},
    generate::client::Gateway,
    nats, table, terminal,
};

const HEAD: [&str; 5] = ["OUTPUT", "STAGE", "ATTEMPTS", "AGE", "REASON"];

/// Carries out one of its commands.
pub(crate) async fn run(command: DeadCommand) -> Result<(), Failure> {
    match command {
        DeadCommand::List { bus: args, json } => {
            let bus = nats::connect(&args).await?;
            let letters = bus.dead_letters().await.map_err(|error| failed(&error))?;
            if json {
                terminal::say(report(&letters));
            } else {
                list(&letters, clock::unix_millis())
                    .iter()
                    .for_each(terminal::say);
            }
            bus.close().await;
        }
        DeadCommand::Show {
            bus: args,
            output,
            prompt,
        } => {
            let bus = nats::connect(&args).await?;
            let letter = letter(&bus, output).await?;
            show(&letter, clock::unix_millis())
                .iter()
                .for_each(terminal::say);
            if prompt {
                terminal::say(format_args!("prompt    {}", prompt_of(&letter.message)));
            }
            bus.close().await;
        }
        DeadCommand::Replay {
            bus: args,
            which,
            tenant,
            gateway,
        } => {
            let gateway = Gateway::of(&gateway)?;
            let bus = nats::connect(&args).await?;
            for letter in chosen(&bus, &which).await? {
                let job = replay(&bus, &letter, tenant.as_ref()).await?;
                terminal::say(format_args!(
                    "{} is queued again as job {job}: {}",
                    letter.output,
                    gateway.job_url(job)
                ));
            }
            bus.close().await;
        }
        DeadCommand::Drop { bus: args, which } => {
            let bus = nats::connect(&args).await?;
            for letter in chosen(&bus, &which).await? {
                bus.drop_dead_letter(letter.output)
                    .await
                    .map_err(|error| failed(&error))?;
                terminal::say(format_args!("{} is dropped", letter.output));
            }
            bus.close().await;
        }
    }
    Ok(())
}

fn failed(error: &BusError) -> Failure {
    Failure::failed(error)
}

async fn letter(bus: &Bus, output: OutputId) -> Result<DeadLetter, Failure> {
    let letter = bus
        .dead_letter(output)
        .await
        .map_err(|error| failed(&error))?;
    letter.ok_or_else(|| Failure::Failed(format!("{output} is not among the dead")))
}

async fn chosen(bus: &Bus, which: &WhichDead) -> Result<Vec<DeadLetter>, Failure> {
    match which.output {
        Some(output) => Ok(vec![letter(bus, output).await?]),
        None => bus.dead_letters().await.map_err(|error| failed(&error)),
    }
}

/// The record first, so that a gateway can answer for the job; the letter goes last: a replay that breaks off can be
/// made again.
async fn replay(bus: &Bus, letter: &DeadLetter, tenant: Option<&Tenant>) -> Result<JobId, Failure> {
    let job = JobId::generate();
    let mut revival = letter.revive(job, clock::unix_millis());
    let record = bus.job(letter.output.job).await;
    let record = record.map_err(|error| failed(&error))?;
    revival.record.tenant = owner(letter.output, record, tenant)?;
    bus.create_job(&revival.record)
        .await
        .map_err(|error| Failure::failed(&error))?;
    // Which class it had is not kept, and nobody waits for it any more.
    let class = PriorityClass::Standard;
    let tenant = revival.record.tenant.as_ref();
    let queued = match &revival.message {
        DeadMessage::Ar(message) => bus.publish_ar_job(class, tenant, message).await,
        DeadMessage::Denoise(message) => bus.publish_denoise_job(class, tenant, message).await,
    };
    queued.map_err(|error| Failure::failed(&error))?;
    bus.drop_dead_letter(letter.output)
        .await
        .map_err(|error| failed(&error))?;
    Ok(job)
}

/// Whose `output` is: that says the record of its job for as long as there is one, and then the operator.
fn owner(
    output: OutputId,
    record: Option<JobRecord>,
    named: Option<&Tenant>,
) -> Result<Option<Tenant>, Failure> {
    let Some(JobRecord { tenant, .. }) = record else {
        return Ok(named.cloned());
    };
    if named.is_some() && named != tenant.as_ref() {
        let whose = tenant.as_ref().map_or("nobody", Tenant::as_str);
        return Err(Failure::Unusable(format!(
            "--tenant: the record of {output} says whose it is: {whose}'s"
        )));
    }
    Ok(tenant)
}

fn report(letters: &[DeadLetter]) -> serde_json::Value {
    let letters = letters.iter().map(|letter| {
        json!({
            "output": letter.output,
            "stage": letter.stage,
            "attempts": letter.attempts,
            "reason": letter.reason,
            "dead_at": letter.dead_at,
        })
    });
    letters.collect()
}

fn list(letters: &[DeadLetter], now: UnixMillis) -> Vec<String> {
    let row = |letter: &DeadLetter| {
        vec![
            letter.output.to_string(),
            letter.stage.to_string(),
            letter
                .attempts
                .iter()
                .filter(|attempt| attempt.counts())
                .count()
                .to_string(),
            table::ago(letter.dead_at, now),
            reason(&letter.reason),
        ]
    };
    table::lines(&HEAD, &letters.iter().map(row).collect::<Vec<_>>())
}

fn reason(error: &JobError) -> String {
    format!("{} ({})", error.text, error.code)
}

/// All but the prompt and the prior tokens.
fn show(letter: &DeadLetter, now: UnixMillis) -> Vec<String> {
    let (size, denoise, seed) = match &letter.message {
        DeadMessage::Ar(job) => {
            let own = job
                .outputs
                .iter()
                .find(|output| output.index == letter.output.index);
            (job.size, job.denoise, own.map(|output| output.seed))
        }
        DeadMessage::Denoise(job) => (job.size, job.denoise, Some(job.seed)),
    };
    let mut lines = vec![
        format!("output    {}", letter.output),
        format!("stage     {}", letter.stage),
        format!("reason    {}", reason(&letter.reason)),
        format!("dead      {} ago", table::ago(letter.dead_at, now)),
        format!("size      {size}"),
        format!(
            "denoise   {} steps, guidance {}",
            denoise.steps(),
            denoise.guidance_scale()
        ),
        format!(
            "seed      {}",
            seed.map_or_else(|| "-".to_owned(), |seed| seed.to_string())
        ),
    ];
    lines.extend(
        letter
            .attempts
            .iter()
            .map(|attempt| attempt_line(attempt, now)),
    );
    lines
}

fn attempt_line(attempt: &Attempt, now: UnixMillis) -> String {
    let outcome = match &attempt.outcome {
        None => "no end known".to_owned(),
        Some(AttemptOutcome::Finished) => "finished".to_owned(),
        Some(AttemptOutcome::GivenBack) => "given back".to_owned(),
        Some(AttemptOutcome::Lost) => "worker lost".to_owned(),
        Some(AttemptOutcome::Failed(error)) => reason(error),
    };
    let took = attempt
        .ended_at
        .map(|ended| table::ago(attempt.started_at, ended));
    let took = took.map_or_else(String::new, |took| format!(" after {took}"));
    let (stage, worker) = (attempt.stage, &attempt.worker);
    let began = table::ago(attempt.started_at, now);
    format!("attempt   {began} ago, {stage} on {worker}: {outcome}{took}")
}

fn prompt_of(message: &DeadMessage) -> &str {
    match message {
        DeadMessage::Ar(job) => &job.prompt,
        DeadMessage::Denoise(job) => &job.prompt,
    }
}
