//! The bytes of every message, held still. A failure here means that running deployments could not read each
//! other: restore the old bytes, or give the new shape a new version. Never regenerate a line of this file.

use protocol::{
    ArJob, Attempt, AttemptOutcome, CurrentWork, DeadLetter, DeadMessage, DecodeError, DenoiseJob,
    DenoiseParameters, EncodedImage, ErrorCode, IdempotencyRecord, ImageFormat, ImageSize,
    JobError, JobId, JobRecord, Message, OutputIndex, OutputLife, OutputRequest, OutputResult,
    OutputState, OutputTimings, PriorId, PriorTokens, PriorUsage, Progress, Role, Seed, Stage,
    StoredLife, StoredPrior, WorkStage, WorkerPresence, WorkerState, decode, encode,
};

const JOB: JobId = JobId::from_u128(0x0192_a3b4_c5d6_7e8f_8000_0000_0000_0001);

fn outputs() -> Vec<OutputRequest> {
    let output = |i| OutputRequest {
        index: OutputIndex::new(i).expect("below 10"),
        seed: Seed::new(7 + u64::from(i)).expect("small"),
    };
    vec![output(0), output(1)]
}

fn size() -> ImageSize {
    ImageSize::new(64, 32).expect("multiples of 32")
}

fn denoise() -> DenoiseParameters {
    DenoiseParameters::new(8, 1.5).expect("in range")
}

/// The message's bytes are `hex`, and `hex` reads back as the message.
fn held<T: Message + PartialEq + std::fmt::Debug>(message: &T, hex: &str) {
    let bytes = encode(message).expect("the message encodes");
    let written: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(written, hex, "{} version {}", T::KIND, T::VERSION);
    assert_eq!(&decode::<T>(&bytes).expect("the bytes decode"), message);
}

fn job_record() -> JobRecord {
    JobRecord {
        job: JOB,
        outputs: outputs(),
        size: size(),
        format: ImageFormat::Png,
        denoise: denoise(),
        accepted_at: 1_700_000_000_000,
        deadline_at: 1_700_000_600_000,
        tenant: Some("studio".parse().expect("a name")),
        trace_id: "0af7651916cd43dd8448eb211c80319c".parse().ok(),
    }
}

/// As version 1 had it.
fn job_record_of_nobody() -> JobRecord {
    JobRecord {
        tenant: None,
        trace_id: None,
        ..job_record()
    }
}

#[test]
fn the_job_record_keeps_its_bytes() {
    held(
        &job_record(),
        include_str!("bytes/job_record.v2.hex").trim_end(),
    );
}

#[test]
fn records_of_an_older_build_are_read_as_nobodys() {
    let record = decode::<JobRecord>(&bytes(include_str!("bytes/job_record.v1.hex")));
    assert_eq!(record.expect("version 1 is read"), job_record_of_nobody());
    let claim = bytes(include_str!("bytes/idempotency_record.v1.hex"));
    let claim = decode::<IdempotencyRecord>(&claim).expect("version 1 is read");
    assert_eq!(claim.record, job_record_of_nobody());
}

fn ar_job() -> ArJob {
    ArJob {
        job: JOB,
        prompt: "a „red“ circle".into(),
        outputs: outputs(),
        size: size(),
        format: ImageFormat::Png,
        denoise: denoise(),
        prior: Some(stored_prior()),
        accepted_at: 1_700_000_000_000,
        deadline_at: 1_700_000_600_000,
    }
}

fn stored_prior() -> StoredPrior {
    StoredPrior {
        id: PriorId::from_u128(0xab),
        tokens: PriorTokens::new(1, 2, vec![16_383, 2]).expect("two ids fill 1 x 2"),
        usage: PriorUsage {
            prompt_tokens: 20,
            generated_tokens: 257,
            cached: false,
        },
    }
}

#[test]
fn a_stored_prior_keeps_its_bytes() {
    held(
        &stored_prior(),
        include_str!("bytes/stored_prior.v1.hex").trim_end(),
    );
}

#[test]
fn the_ar_job_keeps_its_bytes() {
    held(&ar_job(), include_str!("bytes/ar_job.v2.hex").trim_end());
}

fn denoise_job() -> DenoiseJob {
    DenoiseJob {
        output: JOB.output(outputs()[1].index),
        prompt: "a red circle".into(),
        seed: outputs()[1].seed,
        size: size(),
        format: ImageFormat::Png,
        denoise: denoise(),
        prior: PriorTokens::new(1, 2, vec![16_383, 2]).expect("two ids fill 1 x 2"),
        usage: PriorUsage {
            prompt_tokens: 20,
            generated_tokens: 257,
            cached: true,
        },
        prior_id: Some(PriorId::from_u128(0xab)),
        life: Some(StoredLife {
            life: life(),
            sequence: 300,
        }),
        accepted_at: 1_700_000_000_000,
        ar_started_at: 1_700_000_000_100,
        ar_finished_at: 1_700_000_000_300,
        deadline_at: 1_700_000_600_000,
    }
}

#[test]
fn the_denoise_job_keeps_its_bytes() {
    held(
        &denoise_job(),
        include_str!("bytes/denoise_job.v2.hex").trim_end(),
    );
}

fn result(outcome: Result<EncodedImage, JobError>) -> OutputResult {
    OutputResult {
        output: JOB.output(outputs()[0].index),
        outcome,
        seed: Some(outputs()[0].seed),
        usage: Some(PriorUsage {
            prompt_tokens: 20,
            generated_tokens: 257,
            cached: true,
        }),
        prior_id: Some(PriorId::from_u128(0xab)),
        timings: OutputTimings {
            accepted_at: 1_700_000_000_000,
            ar_started_at: Some(1_700_000_000_100),
            ar_finished_at: Some(1_700_000_000_300),
            denoise_started_at: Some(1_700_000_000_301),
            denoise_finished_at: None,
            finished_at: 1_700_000_000_900,
        },
        worker: Some("denoiser-1".parse().expect("allowed characters")),
    }
}

#[test]
fn a_result_with_a_picture_keeps_its_bytes() {
    let image = EncodedImage {
        format: ImageFormat::Png,
        size: size(),
        bytes: vec![0x89, b'P', b'N', b'G'],
    };
    held(
        &result(Ok(image)),
        include_str!("bytes/output_result_ok.v2.hex").trim_end(),
    );
}

#[test]
fn a_result_with_an_error_keeps_its_bytes() {
    let error = JobError::new(ErrorCode::DenoiseFailed, "out of memory");
    held(
        &result(Err(error)),
        include_str!("bytes/output_result_error.v2.hex").trim_end(),
    );
}

#[test]
fn progress_keeps_its_bytes() {
    let progress = Progress {
        output: JOB.output(outputs()[0].index),
        stage: Stage::Denoise,
        step: 3,
        steps: 8,
    };
    held(&progress, include_str!("bytes/progress.v1.hex").trim_end());
}

#[test]
fn presence_keeps_its_bytes() {
    let presence = WorkerPresence {
        worker: "denoiser-1".parse().expect("allowed characters"),
        role: Role::Denoiser,
        state: WorkerState::Busy,
        reason: None,
        host: "node-7".into(),
        process: 4_242,
        device: Some("cpu".into()),
        model_revision: Some("0123456789ab".into()),
        health_address: Some("127.0.0.1:9000".parse().expect("an address")),
        held: vec![CurrentWork {
            output: JOB.output(outputs()[0].index),
            ack_subject: "$JS.ACK.fresco-DN.standard.1.2.3.4.5".into(),
            since: 1_700_000_000_301,
        }],
        outputs_open: 0,
    };
    held(
        &presence,
        include_str!("bytes/worker_presence.v2.hex").trim_end(),
    );
}

fn bytes(hex: &str) -> Vec<u8> {
    let hex = hex.trim_end();
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

/// Whether `hex` is refused as version 1 of `T`.
fn is_refused_as_version_1<T: Message>(hex: &str) -> bool {
    matches!(
        decode::<T>(&bytes(hex)),
        Err(DecodeError::Version { found: 1, .. })
    )
}

#[test]
fn the_messages_of_an_older_build_are_refused_as_such() {
    let presence = include_str!("bytes/worker_presence.v1.hex");
    assert!(is_refused_as_version_1::<WorkerPresence>(presence));
    let ar_job = include_str!("bytes/ar_job.v1.hex");
    assert!(is_refused_as_version_1::<ArJob>(ar_job));
    let denoise_job = include_str!("bytes/denoise_job.v1.hex");
    assert!(is_refused_as_version_1::<DenoiseJob>(denoise_job));
    for result in [
        include_str!("bytes/output_result_ok.v1.hex"),
        include_str!("bytes/output_result_error.v1.hex"),
    ] {
        assert!(is_refused_as_version_1::<OutputResult>(result));
    }
    for letter in [
        include_str!("bytes/dead_letter_ar.v1.hex"),
        include_str!("bytes/dead_letter_denoise.v1.hex"),
    ] {
        assert!(is_refused_as_version_1::<DeadLetter>(letter));
    }
}

fn attempts() -> Vec<Attempt> {
    let attempt = |outcome: Option<AttemptOutcome>| Attempt {
        stage: WorkStage::Denoise,
        worker: "denoiser-1".parse().expect("allowed characters"),
        started_at: 1_700_000_000_301,
        ended_at: outcome.as_ref().map(|_| 1_700_000_000_900),
        outcome,
    };
    let failed = JobError::new(ErrorCode::DenoiseFailed, "out of memory");
    vec![
        attempt(Some(AttemptOutcome::Finished)),
        attempt(Some(AttemptOutcome::GivenBack)),
        attempt(Some(AttemptOutcome::Lost)),
        attempt(Some(AttemptOutcome::Failed(failed))),
        attempt(None),
    ]
}

fn life() -> OutputLife {
    OutputLife {
        output: JOB.output(outputs()[1].index),
        state: OutputState::DenoiseRunning,
        since: 1_700_000_000_301,
        attempts: attempts(),
    }
}

#[test]
fn a_life_keeps_its_bytes() {
    held(&life(), include_str!("bytes/output_life.v1.hex").trim_end());
}

#[test]
fn a_dead_letter_keeps_its_bytes() {
    let letter = |stage, message| DeadLetter {
        output: JOB.output(outputs()[1].index),
        stage,
        reason: JobError::new(ErrorCode::DenoiseFailed, "out of memory"),
        attempts: attempts(),
        message,
        dead_at: 1_700_000_001_000,
    };
    held(
        &letter(WorkStage::Denoise, DeadMessage::Denoise(denoise_job())),
        include_str!("bytes/dead_letter_denoise.v2.hex").trim_end(),
    );
    held(
        &letter(WorkStage::Prior, DeadMessage::Ar(ar_job())),
        include_str!("bytes/dead_letter_ar.v2.hex").trim_end(),
    );
}

#[test]
fn an_idempotency_record_keeps_its_bytes() {
    let record = IdempotencyRecord {
        request_digest: "ab".repeat(32),
        record: job_record(),
    };
    held(
        &record,
        include_str!("bytes/idempotency_record.v2.hex").trim_end(),
    );
}

#[test]
fn another_kind_or_version_is_refused_as_such() {
    let progress = Progress {
        output: JOB.output(outputs()[0].index),
        stage: Stage::Prior,
        step: 0,
        steps: 1,
    };
    let bytes = encode(&progress).expect("encodes");
    assert!(
        matches!(decode::<JobRecord>(&bytes), Err(DecodeError::Kind { found, .. }) if found == "progress")
    );

    // A later build's message: version 2, and a body this build has never seen.
    let later: &[u8] = b"\x83\xa4kind\xa8progress\xa7version\x02\xa4body\xa3new";
    assert!(matches!(
        decode::<Progress>(later),
        Err(DecodeError::Version { found: 2, .. })
    ));
}

#[test]
fn broken_bytes_are_an_error_and_never_a_panic() {
    let job = ArJob {
        job: JOB,
        prompt: "p".into(),
        outputs: outputs(),
        size: size(),
        format: ImageFormat::Png,
        denoise: denoise(),
        prior: None,
        accepted_at: 0,
        deadline_at: 1,
    };
    let bytes = encode(&job).expect("encodes");
    for cut in 0..bytes.len() {
        assert!(
            matches!(
                decode::<ArJob>(&bytes[..cut]),
                Err(DecodeError::Bytes { .. })
            ),
            "cut at {cut}"
        );
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_decode_or_fail_a20_a55_a56_a57(bytes: Vec<u8>) {
        drop(decode::<DenoiseJob>(&bytes));
        drop(decode::<OutputResult>(&bytes));
    }
}

#[test]
fn a_grid_of_1024_by_1024_is_two_kilobytes() {
    let grid = PriorTokens::new(32, 32, vec![16_000; 1024]).expect("fills the grid");
    let bytes = rmp_len(&grid);
    assert!((2_048..2_100).contains(&bytes), "{bytes} bytes");
}

fn rmp_len(grid: &PriorTokens) -> usize {
    let job = |prior| DenoiseJob {
        output: JOB.output(outputs()[0].index),
        prompt: String::new(),
        seed: outputs()[0].seed,
        size: size(),
        format: ImageFormat::Png,
        denoise: denoise(),
        prior,
        usage: PriorUsage {
            prompt_tokens: 0,
            generated_tokens: 0,
            cached: false,
        },
        prior_id: None,
        life: None,
        accepted_at: 0,
        ar_started_at: 0,
        ar_finished_at: 0,
        deadline_at: 0,
    };
    let empty = PriorTokens::new(0, 0, Vec::new()).expect("fills nothing");
    encode(&job(grid.clone())).expect("encodes").len() - encode(&job(empty)).expect("encodes").len()
}
