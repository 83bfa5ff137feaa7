//! A provisioned broker, a connection to it, and messages to send.

use std::{future::Future, time::Duration};

use async_nats::jetstream;
use messaging::{Bus, BusConfig, Delivery, PublishError, WorkQueue};
use protocol::{
    ArJob, DenoiseJob, DenoiseParameters, EncodedImage, ErrorCode, ImageFormat, ImageSize,
    JobError, JobId, OutputId, OutputIndex, OutputRequest, OutputResult, OutputTimings, Prefix,
    PriorTokens, PriorUsage, PriorityClass, Role, Seed, Subject, topology::Topology,
};
use tokio_util::task::TaskTracker;

use crate::common::Broker;

pub(crate) const SHORT_ACK_WAIT: Duration = Duration::from_secs(2);

pub(crate) struct Site {
    pub(crate) broker: Broker,
    pub(crate) bus: Bus,
    pub(crate) topology: Topology,
    pub(crate) tracker: TaskTracker,
}

pub(crate) fn prefix() -> Prefix {
    "t".parse().expect("a prefix")
}

pub(crate) async fn connect(broker: &Broker, role: Role) -> Bus {
    let config = BusConfig::new(vec![broker.url()], prefix(), role);
    let bus = Bus::connect(&config).await.expect("the address is one");
    within("connected", bus.connected()).await;
    bus
}

impl Site {
    pub(crate) async fn start() -> Self {
        Self::with(Topology::with_ack_wait(&prefix(), SHORT_ACK_WAIT)).await
    }

    pub(crate) async fn with(topology: Topology) -> Self {
        let broker = Broker::start();
        let bus = connect(&broker, Role::Operator).await;
        bus.provision(&topology)
            .await
            .expect("an empty broker can be provisioned");
        Self {
            broker,
            bus,
            topology,
            tracker: TaskTracker::new(),
        }
    }

    pub(crate) async fn queue(&self) -> WorkQueue {
        WorkQueue::open(&self.bus, &self.topology.denoise_consumer, &self.tracker)
            .await
            .expect("the consumer exists")
    }

    /// The server's own words, past our code.
    pub(crate) async fn raw(&self) -> jetstream::Context {
        jetstream::new(
            async_nats::connect(self.broker.url())
                .await
                .expect("the server runs"),
        )
    }

    pub(crate) async fn stored(&self, stream: &str) -> u64 {
        self.raw()
            .await
            .get_stream(stream)
            .await
            .expect("the stream exists")
            .cached_info()
            .state
            .messages
    }

    /// (held by workers, waiting pulls)
    pub(crate) async fn consumer(&self) -> (usize, usize) {
        let stream = self
            .raw()
            .await
            .get_stream(&self.topology.denoise.name)
            .await
            .expect("the stream exists");
        let info = stream
            .consumer_info(&self.topology.denoise_consumer.name)
            .await
            .expect("the consumer exists");
        (info.num_ack_pending, info.num_waiting)
    }

    /// Queues a request for the AR stage.
    pub(crate) async fn order(&self, job: &ArJob) -> Result<(), PublishError> {
        self.bus
            .publish_ar_job(PriorityClass::Standard, None, job)
            .await
    }

    pub(crate) async fn enqueue(&self, job: &DenoiseJob) {
        self.bus
            .publish_denoise_job(PriorityClass::Standard, None, job)
            .await
            .expect("the queue has room");
    }
}

/// A test that waits for something that never comes fails with its name.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(30), future).await {
        Ok(value) => value,
        Err(_) => panic!("not within 30 s: {what}"),
    }
}

/// Asks until the answer is yes.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let asking = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(what, asking).await;
}

pub(crate) fn output(job: u128) -> OutputId {
    JobId::from_u128(job).output(OutputIndex::new(0).expect("0 is an index"))
}

pub(crate) fn output_of(delivery: &Delivery) -> OutputId {
    match delivery.subject {
        Subject::Denoise(_, output) => output,
        other => panic!("{other} in the denoise queue"),
    }
}

fn size() -> ImageSize {
    ImageSize::new(64, 32).expect("multiples of 32")
}

fn parameters() -> DenoiseParameters {
    DenoiseParameters::new(8, 1.5).expect("in range")
}

fn seed() -> Seed {
    Seed::new(7).expect("small")
}

pub(crate) fn ar_job(job: u128) -> ArJob {
    ArJob {
        job: JobId::from_u128(job),
        prompt: "a red circle".to_owned(),
        outputs: vec![OutputRequest {
            index: output(job).index,
            seed: seed(),
        }],
        size: size(),
        format: ImageFormat::Png,
        denoise: parameters(),
        prior: None,
        accepted_at: 1,
        deadline_at: 2,
    }
}

pub(crate) fn denoise_job(job: u128) -> DenoiseJob {
    DenoiseJob {
        output: output(job),
        prompt: "a red circle".to_owned(),
        seed: seed(),
        size: size(),
        format: ImageFormat::Png,
        denoise: parameters(),
        prior: PriorTokens::new(1, 2, vec![1, 2]).expect("two ids fill 1 x 2"),
        usage: PriorUsage {
            prompt_tokens: 3,
            generated_tokens: 3,
            cached: false,
        },
        prior_id: None,
        life: None,
        accepted_at: 1,
        ar_started_at: 1,
        ar_finished_at: 1,
        deadline_at: 2,
    }
}

pub(crate) fn picture(output: OutputId, bytes: Vec<u8>) -> OutputResult {
    let image = EncodedImage {
        format: ImageFormat::Png,
        size: size(),
        bytes,
    };
    OutputResult {
        outcome: Ok(image),
        ..failure(output)
    }
}

pub(crate) fn failure(output: OutputId) -> OutputResult {
    OutputResult {
        output,
        outcome: Err(JobError::new(ErrorCode::DenoiseFailed, "no picture")),
        seed: Some(seed()),
        usage: None,
        prior_id: None,
        timings: OutputTimings::default(),
        worker: None,
    }
}
