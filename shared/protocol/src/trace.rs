//! The names in a trace: what every process, every dashboard and every test calls spans and what they carry.
//!
//! They follow OpenTelemetry's semantic conventions 1.44 where those have a word. Messaging is still in development
//! there and knows no NATS, so `messaging.system` is a value of our own, and what is NATS' alone has `nats` in its name.
//! What is ours starts with `fresco`. docs/tracing.md has them all; a test holds it to that.

/// Names of spans.
pub mod span {
    /// A job at the gateway that follows it: from its order to its last output.
    pub const JOB: &str = "job";
    /// A call of an SRT server.
    pub const SRT_GENERATE: &str = "POST /generate";
    /// The AR message, by whoever stores it.
    pub const PUBLISH_AR: &str = "publish ar";
    /// A request at an AR-batcher.
    pub const PROCESS_AR: &str = "process ar";
    /// A row that waits for an engine.
    pub const AR_WAIT: &str = "ar.wait";
    /// A row in a batch.
    pub const AR_RUN: &str = "ar.run";
    /// A row that is being fanned out or answered for.
    pub const AR_SETTLE: &str = "ar.settle";
    /// Rows that run together: linked to each of them, and a child of the oldest.
    pub const AR_BATCH: &str = "ar.batch";
    /// The call of the AR engine.
    pub const AR_ENGINE: &str = "ar.engine";
    /// The denoise message of an output.
    pub const PUBLISH_DENOISE: &str = "publish denoise";
    /// An output at a denoiser.
    pub const PROCESS_DENOISE: &str = "process denoise";
    /// Asking what is known of an output, and writing the start down.
    pub const CLAIM: &str = "claim";
    /// Prompt and prior tokens become what the denoiser is conditioned on.
    pub const PREPARE: &str = "prepare";
    /// The denoising steps.
    pub const DENOISE: &str = "denoise";
    /// Latents become pixels.
    pub const VAE_DECODE: &str = "vae_decode";
    /// Pixels become a file.
    pub const ENCODE: &str = "encode";
    /// The result goes through the fence.
    pub const STORE: &str = "store";
    /// An attempt of a worker that nobody heard of again, told by the next one.
    pub const LOST_ATTEMPT: &str = "lost attempt";
}

/// Names of events within spans.
pub mod event {
    /// A denoising step is done.
    pub const STEP: &str = "step";
    /// A result has come.
    pub const OUTPUT_ENDED: &str = "output ended";
}

/// Names of attributes.
pub mod attribute {
    /// The program.
    pub const SERVICE_NAME: &str = "service.name";
    /// The deployment.
    pub const SERVICE_NAMESPACE: &str = "service.namespace";
    /// The worker's name, as the fleet knows it.
    pub const SERVICE_INSTANCE_ID: &str = "service.instance.id";
    /// Of the program.
    pub const SERVICE_VERSION: &str = "service.version";

    /// The name of what is called, where that sends no spans.
    pub const SERVICE_PEER_NAME: &str = "service.peer.name";

    /// What went wrong: an `ErrorCode`, the status of an HTTP answer, or what no client hears of.
    pub const ERROR_TYPE: &str = "error.type";

    /// `GET`.
    pub const HTTP_REQUEST_METHOD: &str = "http.request.method";
    /// The path's pattern.
    pub const HTTP_ROUTE: &str = "http.route";
    /// `http`.
    pub const URL_SCHEME: &str = "url.scheme";
    /// Of a call, without credentials.
    pub const URL_FULL: &str = "url.full";
    /// The path.
    pub const URL_PATH: &str = "url.path";
    /// The answer.
    pub const HTTP_RESPONSE_STATUS_CODE: &str = "http.response.status_code";
    /// How often the same call was made before.
    pub const HTTP_REQUEST_RESEND_COUNT: &str = "http.request.resend_count";
    /// Of the server that is called, or of the broker.
    pub const SERVER_ADDRESS: &str = "server.address";
    /// Of the server that is called, or of the broker.
    pub const SERVER_PORT: &str = "server.port";

    /// `nats`.
    pub const MESSAGING_SYSTEM: &str = "messaging.system";
    /// `publish` or `process`.
    pub const MESSAGING_OPERATION_NAME: &str = "messaging.operation.name";
    /// `send` or `process`.
    pub const MESSAGING_OPERATION_TYPE: &str = "messaging.operation.type";
    /// The subject.
    pub const MESSAGING_DESTINATION_NAME: &str = "messaging.destination.name";
    /// The subject's pattern.
    pub const MESSAGING_DESTINATION_TEMPLATE: &str = "messaging.destination.template";
    /// Rows of a batch.
    pub const MESSAGING_BATCH_MESSAGE_COUNT: &str = "messaging.batch.message_count";
    /// Under which the broker drops a repeat.
    pub const MESSAGING_MESSAGE_ID: &str = "messaging.message.id";
    /// The durable consumer, which workers share.
    pub const MESSAGING_CONSUMER_GROUP_NAME: &str = "messaging.consumer.group.name";
    /// Where the broker keeps it.
    pub const MESSAGING_NATS_STREAM: &str = "messaging.nats.stream";
    /// Its place there: `nats stream get STREAM SEQUENCE`, as long as nobody is done with it.
    pub const MESSAGING_NATS_STREAM_SEQUENCE: &str = "messaging.nats.stream_sequence";
    /// How often the server has delivered it.
    pub const MESSAGING_NATS_DELIVERED_COUNT: &str = "messaging.nats.delivered_count";

    /// `generate_content`: there is no word for pictures.
    pub const GEN_AI_OPERATION_NAME: &str = "gen_ai.operation.name";
    /// `fresco`.
    pub const GEN_AI_PROVIDER_NAME: &str = "gen_ai.provider.name";
    /// The model that requests name.
    pub const GEN_AI_REQUEST_MODEL: &str = "gen_ai.request.model";
    /// Tokens of the expanded prompt, as the answer has them.
    pub const GEN_AI_USAGE_INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
    /// Prior tokens, as the answer has them.
    pub const GEN_AI_USAGE_OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
    /// `image`.
    pub const GEN_AI_OUTPUT_TYPE: &str = "gen_ai.output.type";
    /// How many.
    pub const GEN_AI_REQUEST_CHOICE_COUNT: &str = "gen_ai.request.choice.count";

    /// The job.
    pub const JOB_ID: &str = "fresco.job.id";
    /// Which output of it.
    pub const OUTPUT_INDEX: &str = "fresco.output.index";
    /// Whose it is; `none` where a deployment does not tell its clients apart.
    pub const TENANT: &str = "fresco.tenant";
    /// Its priority class.
    pub const CLASS: &str = "fresco.class";
    /// Its size in pixels.
    pub const SIZE: &str = "fresco.size";
    /// Its denoising steps.
    pub const STEPS: &str = "fresco.steps";
    /// How a job, an output or a stage ended.
    pub const OUTCOME: &str = "fresco.outcome";
    /// Which attempt at this stage, from 1.
    pub const ATTEMPT: &str = "fresco.attempt";
    /// Who made an attempt that somebody else tells of.
    pub const WORKER: &str = "fresco.worker";

    /// Which step, from 1.
    pub const STEP: &str = "fresco.step";
    /// The noise level that it starts at.
    pub const STEP_SIGMA: &str = "fresco.step.sigma";
    /// How long it took.
    pub const STEP_MS: &str = "fresco.step.ms";
}

/// Values of attributes.
pub mod value {
    /// Of `messaging.system`.
    pub const NATS: &str = "nats";
    /// Of `messaging.operation.name`.
    pub const PUBLISH: &str = "publish";
    /// Of `messaging.operation.type`.
    pub const SEND: &str = "send";
    /// Of `messaging.operation.name` and `.type`.
    pub const PROCESS: &str = "process";
    /// Of `messaging.destination.template`.
    pub const AR_TEMPLATE: &str = "{prefix}.ar.{class}.{job}";
    /// Of `messaging.destination.template`.
    pub const DENOISE_TEMPLATE: &str = "{prefix}.dn.{class}.{job}.{index}";
    /// Of `gen_ai.operation.name`.
    pub const GENERATE_CONTENT: &str = "generate_content";
    /// Of `gen_ai.output.type`.
    pub const IMAGE: &str = "image";
    /// Of `gen_ai.provider.name`.
    pub const FRESCO: &str = "fresco";
    /// Of `url.scheme`. TLS is the business of a proxy in front.
    pub const HTTP: &str = "http";
    /// Of `service.peer.name`: a server of the AR stage.
    pub const SRT: &str = "srt";
    /// Of `error.type`: the device said nothing for too long.
    pub const DEVICE_HANGS: &str = "device_hangs";
    /// Of `error.type`: nobody heard of the worker again.
    pub const WORKER_LOST: &str = "worker_lost";
    /// Of `error.type`: the message is probably another worker's.
    pub const LEASE_LOST: &str = "lease_lost";
    /// Of `fresco.outcome`: a picture. Other ends are those of `OutputState`.
    pub const DONE: &str = "done";
    /// Of `fresco.outcome`: the output had ended before the work on it was done.
    pub const ENDED_ELSEWHERE: &str = "ended_elsewhere";
    /// Of `fresco.outcome`: given back unfinished by a worker that stops.
    pub const GIVEN_BACK: &str = "given_back";
}

/// Names in log lines.
pub mod log {
    /// Of the trace that the line belongs to.
    pub const TRACE_ID: &str = "trace_id";
    /// Of the span.
    pub const SPAN_ID: &str = "span_id";
}
