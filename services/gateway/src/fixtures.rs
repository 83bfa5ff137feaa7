//! What unit tests of answers start from.

use protocol::{
    DenoiseParameters, ImageFormat, ImageSize, JobId, JobRecord, OutputIndex, OutputRequest, Seed,
};

/// Job 1 with seeds 7, 8, ….
pub(crate) fn record(outputs: u8) -> JobRecord {
    let seed = |index: OutputIndex| Seed::new(7 + u64::from(index.get())).expect("small");
    JobRecord {
        job: JobId::from_u128(1),
        outputs: OutputIndex::first(outputs)
            .map(|index| OutputRequest {
                index,
                seed: seed(index),
            })
            .collect(),
        size: ImageSize::new(96, 160).expect("allowed"),
        format: ImageFormat::Png,
        denoise: DenoiseParameters::new(30, 1.5).expect("allowed"),
        accepted_at: 10_000,
        deadline_at: 610_000,
        tenant: None,
        trace_id: None,
    }
}

pub(crate) fn index(index: u8) -> OutputIndex {
    OutputIndex::new(index).expect("below 10")
}
