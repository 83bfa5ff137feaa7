//! Every bound of the wire, by name. A limit that only one role enforces lives with that role.

use std::time::Duration;

/// Most outputs one request may ask for (`n` of the OpenAI Images API).
pub const OUTPUTS_PER_JOB_MAX: u8 = 10;

/// Longest prompt, in bytes of UTF-8, because bytes bound what the models read: at most one token each, in the AR
/// model's prefill and in the glyph encoder, which looks at 2,048 of them per quoted text anyway. DALL-E 3 allowed
/// 4,000 characters; at 8,192 characters of four bytes one prefill blocked the AR stage of a laptop for a minute.
pub const PROMPT_BYTES_MAX: usize = 4_096;

/// Texts that a prompt may not hold: they would reach the AR model as control tokens, which shift its positions or
/// end its grid (the reference implementation crashes on `<|image|>`).
pub const PROMPT_RESERVED_TEXTS: [&str; 3] = ["<|", "<sop>", "<eop>"];

/// Width and height are multiples of this many pixels: one AR token covers 32 x 32.
pub const SIDE_PIXELS_MULTIPLE: u32 = 32;

/// Longest side, in pixels: the published VAE's and ViT's largest size is 2048.
pub const SIDE_PIXELS_MAX: u32 = 2_048;

/// Denoising steps. 1000 is the length of the training schedule: more steps would repeat timesteps.
pub const STEPS_MAX: u16 = 1_000;

/// Largest guidance scale. The published default is 1.5; above 20 every published picture is saturated noise.
pub const GUIDANCE_SCALE_MAX: f64 = 20.0;

/// Largest seed: torch's generators take an `i64`, and output `i` uses `seed + i`.
pub const SEED_MAX: u64 = i64::MAX as u64;

/// Largest message of any kind, in bytes; the server's `max_payload` must be at least this.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Largest encoded picture, in bytes: the payload limit less 64 KB for headers and the fields around it.
pub const IMAGE_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - 64 * 1024;

/// Longest error text that is stored with a result, in characters.
pub const ERROR_TEXT_CHARS_MAX: usize = 500;

/// Most tenants that a deployment tells apart. Each has some thirty series of its own in every gateway's metrics, and one
/// in every denoiser's.
pub const TENANTS_MAX: usize = 100;

/// How long a message may stay with a worker that says nothing before the server gives it to another one.
///
/// 15 s suits one server. Workers read the value in force from their consumer, so changing a deployment never needs a new binary.
pub const ACK_WAIT: Duration = Duration::from_secs(15);

/// The same where several servers keep a copy: an election takes 4 to 8 s (measured, ARCHITECTURE.md), in which no sign of life
/// arrives.
pub const ACK_WAIT_OF_CLUSTER: Duration = Duration::from_secs(30);

/// Progress acks go out this many times per ack deadline: two may be lost without losing the lease.
pub const PROGRESS_PER_ACK_WAIT: u32 = 3;

/// How long a finished result can be fetched.
pub const RESULT_TTL: Duration = Duration::from_secs(60 * 60);

/// How long a job may wait or run in total: no message outlives it in a queue.
pub const JOB_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A worker that has not said it is alive for this long is gone.
pub const PRESENCE_TTL: Duration = Duration::from_secs(15);

/// Workers say they are alive this often: a third of [`PRESENCE_TTL`].
pub const PRESENCE_PERIOD: Duration = Duration::from_secs(5);

/// Tries of an output at one stage that may fail or take their worker down before it goes to the dead letters. Three:
/// one for the worker's own bad luck, one to see that it was not luck, one to be sure (Celery's and SQS's common
/// choice).
pub const ATTEMPTS_MAX: u32 = 3;

/// Most outputs in flight on one AR engine: as many requests for one output each wait meanwhile, and the queue lets one
/// AR-batcher hold no more than twice as many.
pub const AR_SLOTS_MAX: u16 = 128;

/// Longest that a batch may wait for company, in milliseconds: a tenth of what a job may take by default.
pub const AR_DELAY_MS_MAX: u64 = 60_000;

/// How long a dead letter is kept.
pub const DEAD_LETTER_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Longest idempotency key, in bytes: what the IETF draft's known implementations take.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
